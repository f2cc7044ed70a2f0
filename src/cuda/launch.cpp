// See launch.hpp.
#include "cuda/launch.hpp"

#include <iterator>

#include "cuda/unfused/steps.hpp"

namespace monomoe::cuda {
namespace {

Result<void> launch_kernel(const Params& params, int thread_blocks, cudaStream_t stream) {
  return params.problem.weights == WeightFormat::kFp8 ? launch_fp8(params, thread_blocks, stream)
                                                      : launch_fp4(params, thread_blocks, stream);
}

}  // namespace

Result<void> prepare_device() {
  if (auto done = prepare_fp4(); !done) return done;
  if (auto done = prepare_fp8(); !done) return done;
  for (const unfused::Step* step : unfused::kSteps) {
    if (auto done = step->prepare(); !done) return done;
  }
  return {};
}

int num_launches(LaunchVariant variant) {
  switch (variant) {
    case LaunchVariant::kOne:
      return 1;
    case LaunchVariant::kSplit:
      return 2;
    case LaunchVariant::kUnfused:
      break;
  }
  return static_cast<int>(std::size(unfused::kSteps));
}

const char* launch_name(LaunchVariant variant, int index) {
  switch (variant) {
    case LaunchVariant::kOne:
      return "layer";
    case LaunchVariant::kSplit:
      return index == 0 ? "to gemm1" : "from gemm2";
    case LaunchVariant::kUnfused:
      break;
  }
  return unfused::kStepNames[index];
}

Result<void> launch_part(const RankLaunch& launch, int index, cudaStream_t stream) {
  if (launch.variant == LaunchVariant::kUnfused) {
    const UnfusedParams params{launch.params, launch.unfused_memory, unfused_layout(launch.params.problem, launch.max_slots)};
    return unfused::kSteps[index]->launch(params, launch.thread_blocks, stream);
  }
  Params params = launch.params;
  if (launch.variant == LaunchVariant::kSplit) params.phase = index == 0 ? LaunchPhase::kFirst : LaunchPhase::kSecond;
  return launch_kernel(params, launch.thread_blocks, stream);
}

}  // namespace monomoe::cuda
