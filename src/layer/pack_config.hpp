// config.json of a converted or packed checkpoint: the source's, with the experts' number and format as they are now.
#pragma once

#include <string>

#include "base/result.hpp"
#include "layer/pack_plan.hpp"

namespace monomoe::layer {

// Empty if the source has no config.json.
Result<std::string> pack_config(const Checkpoint& checkpoint, const PackRequest& request, const PackPlan& plan);

}  // namespace monomoe::layer
