// Shared memory of one thread block: the rings of weights, tokens and results, and the queue of claimed tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/moe_kernel/params.h"
#include "cuda/ptx/sync.cuh"
#include "plan/source_matrix.h"
#include "plan/task_order.h"

namespace monomoe::cuda {

// Threads: one warpgroup that moves data, two that compute, and one beside them that sees to their results and expands FP4 weights.
inline constexpr int kMathWarpgroups = 2;
inline constexpr int kMathThreads = 128 * kMathWarpgroups;
inline constexpr int kMathWarps = kMathThreads / 32;
inline constexpr int kSideThreads = 128;
inline constexpr int kSideWarps = kSideThreads / 32;
inline constexpr int kThreads = 128 + kMathThreads + kSideThreads;
// Warps of the moving warpgroup.
enum MoveWarp : int { kClaimWarp = 0, kWeightsWarp = 1, kGatherWarp = 2, kPublishWarp = 3 };

inline constexpr int kFewTokens = 64, kMiddleTokens = 128;
inline constexpr int kSubtileTokens = 64;
inline constexpr int kQueueSlots = 4;  // of which math holds one while it works, and side and publish perhaps the one before
inline constexpr uint32_t kSharedLimit = 232448;  // what one thread block may have on sm_90

// A stage of tokens holds four units of [64 rows x 128 B]: four K blocks of few tokens, two of up to 128, or one of up to 256.
inline constexpr int kUnits = 4;
inline constexpr int kUnitBytes = kSubtileTokens * kBlockK;
static_assert(kUnits * kSubtileTokens == kGpuTokenBlock);
// Of few tokens, a token's scales of the four K blocks lie side by side, as they do where its row is.
inline constexpr uint32_t kTokenScaleBytes = kUnits * sizeof(float);

// A slot of results holds tokens of a tile with their 256 rows: eight of GEMM1 in fp32, or sixteen of GEMM2 in bf16; or twice as many with a half's 128 rows.
inline constexpr int kGemm1ResultTokens = 8, kGemm2ResultTokens = 16;
inline constexpr int kResultSlotBytes = kGemm1ResultTokens * static_cast<int>(kTileRows) * 4;
static_assert(kResultSlotBytes == kGemm2ResultTokens * kTileRows * 2);

template <bool kIsFp8>
struct Config {
  static constexpr bool is_fp8 = kIsFp8;
  static constexpr uint32_t kHalfBytes = static_cast<uint32_t>(kIsFp8 ? kFp8HalfBytes : kFp4HalfBytes);
  // Of half a tile and one K block. Even, so that a slot stays with one warpgroup from one task of few tokens to the next: a phase bit tells only two uses of
  // a slot apart, and one warpgroup may run ahead of the other's. Where a slot changes hands the warpgroups meet (roles/math.cuh).
  static constexpr int kWeightSlots = kIsFp8 ? 6 : 8;
  static_assert(kWeightSlots % kMathWarpgroups == 0);
  static constexpr int kTokenStages = 3;
  static constexpr int kExpandedSlots = kIsFp8 ? 1 : 3;
  // Registers of a thread.
  static constexpr int kMoveRegisters = kIsFp8 ? 40 : 32, kMathRegisters = 216, kSideRegisters = kIsFp8 ? 40 : 48;
  static_assert(kMoveRegisters * 128 + kMathRegisters * kMathThreads + kSideRegisters * kSideThreads <= 65536,
                "the register file holds 65536 registers per thread block");
  static constexpr int kResultSlots = kIsFp8 ? 3 : kExpandedSlots * static_cast<int>(kFp8HalfBytes) / kResultSlotBytes;
};

// How a block of tokens is multiplied.
//   kFew     up to kFewTokens: weights are WGMMA's M operand, a warpgroup has a half of the tile
//   kMiddle  up to kMiddleTokens. FP4: weights are M, a warpgroup has a block of 64 rows of one half after the other. FP8: as kMany, two K blocks at a time
//   kMany    tokens are M, one half after the other
enum class BlockForm : int32_t { kFew, kMiddle, kMany };

// A claimed task as the roles need it.
struct BlockTask {
  int32_t kind;         // TaskKind
  int32_t slot;         // GEMMs: expert slot
  int32_t tile;
  int32_t count;        // GEMMs: routes of the block
  int64_t index;        // dispatch, combine: chunk
  int64_t block;
  int64_t route_begin;
  const uint8_t* expert;  // packed
  float multiplier[2];  // of gate and up rows, or both of down
  int32_t shift[2];
  BlockForm form;       // GEMMs
};

// Scale byte -> eight e4m3 magnitudes, for gate and for up rows.
struct ExpandTables {
  uint2 entry[2][256];
};
struct NoTables {};

// Dynamic shared memory begins here in a thread block's window where there is no static one; the kernel checks it.
inline constexpr uint32_t kSharedBase = 1024;

template <class C>
struct alignas(1024) SharedStorage {
  uint8_t tokens[C::kTokenStages][kUnits * kUnitBytes];  // e4m3, K permuted, 128B-swizzled rows
  // Results of tasks whose weights are M. In the same bytes FP4 has the expanded weights of many: [128 rows x 128] e4m3, swizzled.
  uint8_t results[C::kResultSlots][kResultSlotBytes];
  alignas(1024) uint8_t weights[C::kWeightSlots][C::kHalfBytes];
  float scales[C::kTokenStages][kGpuTokenBlock];  // of few tokens: [token][unit]
  alignas(16) const uint8_t* row_codes[kFewTokens];  // gather: where each token's row begins
  const float* row_scales[kFewTokens];
  // FP4: used by the math warps where weights are M and by the side warps where tokens are, never at once: these turn to a task when they have all results of the
  // one before, those when all of its tiles are multiplied.
  std::conditional_t<C::is_fp8, NoTables, ExpandTables> tables;
  int32_t table_key[2];  // the shifts the tables are for
  BlockTask queue[kQueueSlots];
  BlockTask piece;      // what the claiming warp arranges
  TaskCounts counts;    // the claiming warp's: it has few registers
  bool any_many;        // the same: whether a block has more than kMiddleTokens
  uint64_t epoch;       // of this call
  int64_t num_tokens;
  int32_t traced;       // events of this thread block so far
  bool rows_missing;    // a dispatch task of this thread block gave up: its rows must not be announced
  uint32_t given_tickets;  // of the rank: a thread block with a lower number began with a task in its queue
  uint64_t weights_full[C::kWeightSlots], weights_empty[C::kWeightSlots];
  uint64_t tokens_full[C::kTokenStages], tokens_empty[C::kTokenStages];
  uint64_t expanded_full[C::kExpandedSlots], expanded_empty[C::kExpandedSlots];
  uint64_t results_full[C::kResultSlots], results_empty[C::kResultSlots];
  uint64_t queue_full[kQueueSlots], queue_empty[kQueueSlots];
  uint64_t written[kQueueSlots];  // the slot's task has written its results

  // Addresses as PTX wants them. From literals, so that the main loops do this arithmetic in uniform registers.
  static __device__ __forceinline__ uint32_t tokens_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, tokens) + i * sizeof(tokens[0]); }
  static __device__ __forceinline__ uint32_t weights_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, weights) + i * sizeof(weights[0]); }
  static __device__ __forceinline__ uint32_t scales_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, scales) + i * sizeof(scales[0]); }
  static __device__ __forceinline__ uint32_t row_codes_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, row_codes) + i * sizeof(row_codes[0]); }
  static __device__ __forceinline__ uint32_t weights_full_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, weights_full) + i * sizeof(weights_full[0]); }
  static __device__ __forceinline__ uint32_t weights_empty_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, weights_empty) + i * sizeof(weights_empty[0]); }
  static __device__ __forceinline__ uint32_t tokens_full_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, tokens_full) + i * sizeof(tokens_full[0]); }
  static __device__ __forceinline__ uint32_t tokens_empty_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, tokens_empty) + i * sizeof(tokens_empty[0]); }
  static __device__ __forceinline__ uint32_t expanded_full_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, expanded_full) + i * sizeof(expanded_full[0]); }
  static __device__ __forceinline__ uint32_t expanded_empty_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, expanded_empty) + i * sizeof(expanded_empty[0]); }
  static __device__ __forceinline__ uint32_t results_full_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, results_full) + i * sizeof(results_full[0]); }
  static __device__ __forceinline__ uint32_t results_empty_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, results_empty) + i * sizeof(results_empty[0]); }
  static __device__ __forceinline__ uint32_t queue_full_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, queue_full) + i * sizeof(queue_full[0]); }
  static __device__ __forceinline__ uint32_t queue_empty_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, queue_empty) + i * sizeof(queue_empty[0]); }
  static __device__ __forceinline__ uint32_t written_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, written) + i * sizeof(written[0]); }
  static __device__ __forceinline__ uint32_t tables_at() { return kSharedBase + offsetof(SharedStorage, tables); }
  static __device__ __forceinline__ uint32_t results_at(uint32_t i) { return kSharedBase + offsetof(SharedStorage, results) + i * sizeof(results[0]); }
  static __device__ __forceinline__ uint32_t expanded_at(uint32_t i) { return results_at(0) + i * static_cast<uint32_t>(kFp8HalfBytes); }
};

__device__ __forceinline__ uint8_t* shared_bytes() {
  extern __shared__ __align__(1024) uint8_t bytes[];
  return bytes;
}
template <class C>
__device__ __forceinline__ SharedStorage<C>& shared_storage() {
  return *reinterpret_cast<SharedStorage<C>*>(shared_bytes());
}
enum NamedBarrier : uint32_t { kMathBarrier = 1, kSideBarrier = 2 };

}  // namespace monomoe::cuda
