// Problems in words: the broken rule as a sentence, and the names of the weight formats.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.hpp"
#include "plan/problem.h"

namespace monomoe {

// The first broken rule: the value, the rule and the nearest legal values.
Result<void> check(const Problem& problem);

// "fp8", "nvfp4", "mxfp4", "bf16".
std::string_view weight_format_text(WeightFormat format);
std::optional<WeightFormat> weight_format_from_text(std::string_view text);

}  // namespace monomoe
