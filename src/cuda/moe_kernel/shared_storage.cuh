// Shared memory of one thread block: the ring of stages, the queue of claimed tasks, and the epilogue's staging.
#pragma once

#include <cstdint>

#include "cuda/moe_kernel/params.h"
#include "cuda/ptx/sync.cuh"
#include "plan/source_matrix.h"

namespace monomoe::cuda {

// Threads: one warpgroup that moves data, two that compute.
inline constexpr int kMathWarpgroups = 2;
inline constexpr int kMathThreads = 128 * kMathWarpgroups;
inline constexpr int kThreads = 128 + kMathThreads;
inline constexpr int kMathWarps = kMathThreads / 32;
inline constexpr int kGatherWarps = 2;  // warps 2, 3 of the moving warpgroup; warp 0 claims tasks, warp 1 streams weights
inline constexpr int kMoveRegisters = 40;
inline constexpr int kMathRegisters = 232;
static_assert(kMoveRegisters * 128 + kMathRegisters * kMathThreads <= 65536, "the register file holds 65536 registers per thread block");

inline constexpr int kMaxTokens = kGpuTokenBlock;
inline constexpr int kQueueSlots = 2;
inline constexpr uint32_t kSharedLimit = 232448;  // what one thread block may have on sm_90

template <bool kIsFp8>
struct Config {
  static constexpr bool is_fp8 = kIsFp8;
  static constexpr int kStages = kIsFp8 ? 4 : 5;
  static constexpr uint32_t kWeightBytes = 2 * (kIsFp8 ? kFp8HalfBytes : kFp4HalfBytes);
};

// A claimed task as the roles need it.
struct BlockTask {
  int32_t kind;         // TaskKind
  int32_t slot;         // GEMMs: expert slot
  int32_t tile;
  int32_t count;        // GEMMs: routes of the block
  int64_t index;        // dispatch, combine: chunk
  int64_t block;
  int64_t route_begin;
  float multiplier[2];  // of gate and up rows, or both of down
  int32_t shift[2];
};

template <class C>
struct alignas(1024) SharedStorage {
  uint8_t weights[C::kStages][C::kWeightBytes];      // [256 rows x 128 K] packed
  uint8_t tokens[C::kStages][kMaxTokens * kBlockK];  // [tokens x 128] e4m3, K permuted, 128B-swizzled
  alignas(1024) uint8_t staging[16 * 260 * 4];       // epilogue: sums [16 tokens x 260 words] or contributions [32 tokens x 256] bf16
  float scales[C::kStages][kMaxTokens];
  const uint8_t* row_codes[kMaxTokens];              // gather: where each token's row begins
  const float* row_scales[kMaxTokens];
  uint2 tables[C::is_fp8 ? 1 : 2][C::is_fp8 ? 1 : 256];  // scale byte -> eight e4m3 magnitudes; gate and up
  int32_t table_key[2];
  BlockTask queue[kQueueSlots];
  uint64_t full[C::kStages], empty[C::kStages];
  uint64_t queue_full[kQueueSlots], queue_empty[kQueueSlots];
};

template <class C>
__device__ __forceinline__ SharedStorage<C>& shared_storage() {
  extern __shared__ __align__(1024) uint8_t bytes[];
  return *reinterpret_cast<SharedStorage<C>*>(bytes);
}

enum NamedBarrier : uint32_t { kMathBarrier = 1, kGatherBarrier = 2 };

}  // namespace monomoe::cuda
