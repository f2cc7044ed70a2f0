// Which launch a workspace uses: what the caller says, else what the context was given, else one.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "cuda/launch_variant.h"
#include "layer/context.hpp"
#include "monomoe/monomoe.h"

namespace monomoe::layer {

// field: `launch` of the options named `argument`. Refuses a number that is no launch, and one that the context's backend does not have.
Result<cuda::LaunchVariant> choose_launch(const monomoe_context& context, const monomoe_launch& field, std::string_view argument);
// "one", "split", "unfused".
const char* launch_word(cuda::LaunchVariant launch);

}  // namespace monomoe::layer
