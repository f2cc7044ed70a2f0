// FP4 weights as register fragments of WGMMA's A operand: packed words and scale bytes -> e4m3, through a table per scale byte. The same
// fragments, stored as matrices, make a tile in shared memory.
#pragma once

#include <cstdint>

#include "cuda/moe_kernel/shared_storage.cuh"
#include "cuda/ptx/copy.cuh"
#include "numerics/weight_codes.h"

namespace monomoe::cuda {

// Who expands: the math warps, bound by logic and permutes, which have half the rate of multiplications; or the side warps, whose multiplications
// would take the math warps' place.
enum class Shift { kByMultiplier, kByShifter };

// Eight codes of one word (weight_packing.h) with the table of their scale: x gets k 0..3, y gets k 4..7.
template <Shift kShift>
__device__ __forceinline__ void expand_word(uint32_t word, uint2 table, uint32_t& x, uint32_t& y) {
  const uint32_t magnitudes = word & 0x77777777u;
  x = ptx::byte_permute(table.x, table.y, magnitudes) | (word & 0x80808080u);
  const uint32_t upper = kShift == Shift::kByMultiplier ? __umulhi(magnitudes, 0x10000u) : magnitudes >> 16;
  y = ptx::byte_permute(table.x, table.y, upper) | ((word << 4) & 0x80808080u);
}

// What a thread has of one block of 64 rows: words of codes and four scale bytes; and the tables of these scales.
struct PackedCodes {
  uint4 first, second;
  uint32_t scales;
};
struct ScaleTables {
  uint2 of[4];
};

__device__ __forceinline__ PackedCodes load_codes(uint32_t half, int block, int thread) {
  const uint32_t codes = half + block * 4096 + thread * 16;
  const uint32_t scales = ptx::load_shared_4(half + static_cast<uint32_t>(kFp4CodeBytes) + block * 512 + thread * 4);
  return {ptx::load_shared_16(codes), ptx::load_shared_16(codes + 2048), scales};
}

__device__ __forceinline__ ScaleTables look_up_tables(uint32_t tables, uint32_t scales) {
  const uint32_t gate = tables, up = tables + sizeof(ExpandTables::entry[0]);
  const auto entry = [&](int byte) { return ptx::byte_permute(scales, 0, 0x4440 + byte) * static_cast<uint32_t>(sizeof(uint2)); };
  return {{ptx::load_shared_8(gate + entry(0)), ptx::load_shared_8(up + entry(1)), ptx::load_shared_8(gate + entry(2)), ptx::load_shared_8(up + entry(3))}};
}

// a[4 * i + r] is register r of k32 step i for one block of 64 rows: r 0, 1: rows g, g + 8 with h 0; r 2, 3: the same with h 1.
template <Shift kShift>
__device__ __forceinline__ void expand_fragment(uint32_t (&a)[16], const PackedCodes& codes, const ScaleTables& tables) {
  const uint32_t words[4][2] = {{codes.first.x, codes.first.y}, {codes.first.z, codes.first.w}, {codes.second.x, codes.second.y}, {codes.second.z, codes.second.w}};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) expand_word<kShift>(words[i][r], tables.of[(i >> 1) * 2 + r], a[4 * i + r], a[4 * i + 2 + r]);
  }
}

// e4m3_from_nvfp4 or e4m3_from_mxfp4 of the eight magnitudes with one scale byte. What a magnitude of 1 becomes is exact in fp32 (or far outside
// e4m3 on the same side), so the encoding is the only rounding; magnitude 0 is 0 whatever the scale.
__device__ __forceinline__ uint2 table_entry(bool nvfp4, uint32_t code, int shift) {
  using namespace weight_codes_detail;
  const float one = nvfp4 ? mul_rn(ptx::decode_e4m3(code), bounded_power(shift)) : bounded_power(static_cast<int>(code) - 127 + bounded_shift(shift));
  const uint32_t low = ptx::encode_e4m3_pair(0.0f, mul_rn(one, 0.5f)) | ptx::encode_e4m3_pair(one, mul_rn(one, 1.5f)) << 16;
  const uint32_t high = ptx::encode_e4m3_pair(mul_rn(one, 2.0f), mul_rn(one, 3.0f)) | ptx::encode_e4m3_pair(mul_rn(one, 4.0f), mul_rn(one, 6.0f)) << 16;
  return make_uint2(low, high);
}

// Makes `tables` those of the task's shifts; `key` tells which they are. All `threads` threads of the barrier call it.
__device__ __forceinline__ void prepare_tables(const Params& params, ExpandTables& tables, int32_t (&key)[2], const BlockTask& task, NamedBarrier barrier,
                                               int threads, int thread) {
  if (key[0] == task.shift[0] && key[1] == task.shift[1]) return;
  ptx::named_barrier_sync(barrier, threads);  // everyone has read the old keys and uses the old tables no more
  const bool nvfp4 = params.problem.weights == WeightFormat::kNvfp4;
  for (int code = thread; code < 256; code += threads) {
    tables.entry[0][code] = table_entry(nvfp4, code, task.shift[0]);
    tables.entry[1][code] = task.shift[1] == task.shift[0] ? tables.entry[0][code] : table_entry(nvfp4, code, task.shift[1]);
  }
  if (thread == 0) {
    key[0] = task.shift[0];
    key[1] = task.shift[1];
  }
  ptx::named_barrier_sync(barrier, threads);
}

}  // namespace monomoe::cuda
