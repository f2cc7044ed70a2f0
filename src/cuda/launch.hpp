// The launches of one rank's call. One translation unit per instantiation; this is all the rest of the library sees of them.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.hpp"
#include "cuda/launch_variant.h"
#include "cuda/moe_kernel/params.h"

namespace monomoe::cuda {

Result<void> prepare_fp4();
Result<void> prepare_fp8();
Result<void> launch_fp4(const Params& params, int thread_blocks, cudaStream_t stream);
Result<void> launch_fp8(const Params& params, int thread_blocks, cudaStream_t stream);

// Once per device before the first launch on it: loads the kernels, and asks for shared memory beyond the default.
Result<void> prepare_device();

// What a rank's call is launched with.
struct RankLaunch {
  LaunchVariant variant = LaunchVariant::kOne;
  Params params;
  int thread_blocks = 1;              // at most one per multiprocessor is resident; several ranks on one GPU share them out
  uint8_t* unfused_memory = nullptr;  // kUnfused: [unfused_layout(..).bytes] of the rank
  int64_t max_slots = 0;              // the workspace's, as unfused_layout was given it
};

// Launches of one call.
int num_launches(LaunchVariant variant);
// What launch `index` of the call does, in a word or two.
const char* launch_name(LaunchVariant variant, int index);
// Launch `index` of the call; all of them in order on one stream. Ranks that share a GPU: launch i of every rank before launch i + 1 of
// any, so that streams which share a hardware queue hold no rank up that another waits for.
Result<void> launch_part(const RankLaunch& launch, int index, cudaStream_t stream);

}  // namespace monomoe::cuda
