// Sentences for the rules of problem.h.
#include "plan/problem_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace monomoe {

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kBf16};

// The legal values on both sides of `value` (one where it lies outside the range).
std::string nearest_multiples(int64_t value, int64_t multiple, int64_t largest) {
  if (value < multiple) return fmt::format("nearest: {}", multiple);
  if (value > largest) return fmt::format("nearest: {}", largest);
  const int64_t below = value / multiple * multiple;
  if (below + multiple > largest) return fmt::format("nearest: {}", below);
  return fmt::format("nearest: {}, {}", below, below + multiple);
}

Error multiple_error(std::string_view what, int64_t value, int64_t multiple, int64_t largest) {
  if (value > 0 && value <= largest) {
    return usage_error(fmt::format("{} is {}; it must be a multiple of {} ({})", what, value, multiple,
                                   nearest_multiples(value, multiple, largest)));
  }
  return usage_error(fmt::format("{} is {}; it must be a multiple of {} from {} to {} ({})", what, value, multiple, multiple, largest,
                                 nearest_multiples(value, multiple, largest)));
}

Error range_error(std::string_view what, int64_t value, int64_t smallest, int64_t largest) {
  return usage_error(fmt::format("{} is {}; it must be {} to {} (nearest: {})", what, value, smallest, largest,
                                 std::clamp(value, smallest, largest)));
}

}  // namespace

Result<void> check(const Problem& p) {
  switch (broken_rule(p)) {
    case ProblemRule::kLegal: return {};
    case ProblemRule::kHidden: return multiple_error("hidden", p.hidden, kBlockK, kMaxHidden);
    case ProblemRule::kIntermediate: return multiple_error("intermediate", p.intermediate, 32, kMaxIntermediate);
    case ProblemRule::kExperts: return range_error("experts", p.experts, 1, kMaxExperts);
    case ProblemRule::kTopk: return range_error("topk", p.topk, 1, kMaxTopk);
    case ProblemRule::kRanks: return range_error("ranks", p.ranks, 1, kMaxRanks);
    case ProblemRule::kCapacity: return range_error("capacity (tokens of one rank)", p.capacity, 0, kMaxCapacity);
    case ProblemRule::kFormat:
      return usage_error(fmt::format("weights are {}; the layer runs fp8, nvfp4 or mxfp4: `monomoe pack --to nvfp4 --round` quantises the checkpoint",
                                     weight_format_text(p.weights)));
  }
  return internal_error("a problem breaks a rule without a sentence");
}

std::string_view weight_format_text(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8: return "fp8";
    case WeightFormat::kNvfp4: return "nvfp4";
    case WeightFormat::kMxfp4: return "mxfp4";
    case WeightFormat::kBf16: return "bf16";
  }
  return "unknown";
}

std::optional<WeightFormat> weight_format_from_text(std::string_view text) {
  for (WeightFormat format : kFormats) {
    if (text == weight_format_text(format)) return format;
  }
  return std::nullopt;
}

}  // namespace monomoe
