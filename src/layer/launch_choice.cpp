// See launch_choice.hpp. The choice is made when a workspace is, so all of its ranks have the same and no call's numbers change it.
#include "layer/launch_choice.hpp"

#include <fmt/format.h>

#include "layer/arguments.hpp"

namespace monomoe::layer {
namespace {

Result<cuda::LaunchVariant> from_abi(int number, cuda::LaunchVariant automatic, std::string_view argument) {
  switch (number) {
    case MONOMOE_LAUNCH_AUTO:
      return automatic;
    case MONOMOE_LAUNCH_ONE:
      return cuda::LaunchVariant::kOne;
    case MONOMOE_LAUNCH_SPLIT:
      return cuda::LaunchVariant::kSplit;
    case MONOMOE_LAUNCH_UNFUSED:
      return cuda::LaunchVariant::kUnfused;
  }
  return usage_error(fmt::format("{}->launch is {}, wanted a monomoe_launch: 0 auto, 1 one, 2 split, 3 unfused", argument, number));
}

}  // namespace

Result<cuda::LaunchVariant> choose_launch(const monomoe_context& context, const monomoe_launch& field, std::string_view argument) {
  auto launch = from_abi(enum_number(field), context.launch, argument);
  if (!launch || launch.value() == cuda::LaunchVariant::kOne || context.cuda != nullptr) return launch;
  const std::string sentence = fmt::format("{}->launch is {}, which backend cuda alone has ({}); use launch auto or one, or backend cuda",
                                           argument, launch_word(launch.value()), context.why);
  return context.asked == MONOMOE_BACKEND_CPU ? usage_error(sentence) : unavailable(sentence);
}

const char* launch_word(cuda::LaunchVariant launch) {
  switch (launch) {
    case cuda::LaunchVariant::kOne:
      return "one";
    case cuda::LaunchVariant::kSplit:
      return "split";
    case cuda::LaunchVariant::kUnfused:
      break;
  }
  return "unfused";
}

}  // namespace monomoe::layer
