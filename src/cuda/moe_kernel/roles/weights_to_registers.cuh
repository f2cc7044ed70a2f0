// FP4 weights as register fragments of WGMMA's A operand: packed words and scale bytes -> e4m3, through a table per scale byte.
#pragma once

#include <cstdint>

#include "cuda/moe_kernel/shared_storage.cuh"
#include "cuda/ptx/copy.cuh"
#include "numerics/weight_codes.h"

namespace monomoe::cuda {

// Eight codes of one word (weight_packing.h) with the table of their scale: x gets k 0..3, y gets k 4..7.
__device__ __forceinline__ void expand_word(uint32_t word, uint2 table, uint32_t& x, uint32_t& y) {
  const uint32_t magnitudes = word & 0x77777777u;
  x = ptx::byte_permute(table.x, table.y, magnitudes) | (word & 0x80808080u);
  y = ptx::byte_permute(table.x, table.y, magnitudes >> 16) | ((word << 4) & 0x80808080u);
}

// a[4 * i + r] is register r of k32 step i for one block of 64 rows: r 0, 1: rows g, g + 8 with h 0; r 2, 3: the same with h 1.
template <class C>
__device__ __forceinline__ void expand_fp4(uint32_t (&a)[16], const SharedStorage<C>& smem, uint32_t half, int block, int thread) {
  const uint32_t codes = half + block * 4096 + thread * 16;
  const uint4 u = ptx::load_shared_16(codes), v = ptx::load_shared_16(codes + 2048);
  const uint32_t scales = ptx::load_shared_4(half + static_cast<uint32_t>(kFp4CodeBytes) + block * 512 + thread * 4);
  const uint32_t gate = ptx::smem_address(smem.tables[0]), up = ptx::smem_address(smem.tables[1]);
  const uint2 table[4] = {ptx::load_shared_8(gate + ((scales << 3) & 0x7F8u)), ptx::load_shared_8(up + ((scales >> 5) & 0x7F8u)),
                          ptx::load_shared_8(gate + ((scales >> 13) & 0x7F8u)), ptx::load_shared_8(up + ((scales >> 21) & 0x7F8u))};
  const uint32_t words[4][2] = {{u.x, u.y}, {u.z, u.w}, {v.x, v.y}, {v.z, v.w}};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) expand_word(words[i][r], table[(i >> 1) * 2 + r], a[4 * i + r], a[4 * i + 2 + r]);
  }
}

// Builds the tables of this task's shifts if they are not the ones in place. All math threads call it.
template <class C>
__device__ __forceinline__ void prepare_tables(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int thread) {
  if (smem.table_key[0] == task.shift[0] && smem.table_key[1] == task.shift[1]) return;
  ptx::named_barrier_sync(kMathBarrier, kMathThreads);  // everyone has read the old keys and uses the old tables no more
  const bool nvfp4 = params.problem.weights == WeightFormat::kNvfp4;
  for (int side = 0; side < 2; ++side) {
    uint32_t words[2] = {0, 0};
    for (int code = 0; code < 8; ++code) {
      const uint32_t e4m3 = nvfp4 ? e4m3_from_nvfp4(code, static_cast<uint8_t>(thread), task.shift[side])
                                  : e4m3_from_mxfp4(code, static_cast<uint8_t>(thread), task.shift[side]);
      words[code / 4] |= e4m3 << (8 * (code % 4));
    }
    smem.tables[side][thread] = make_uint2(words[0], words[1]);
    if (thread == 0) smem.table_key[side] = task.shift[side];
  }
  ptx::named_barrier_sync(kMathBarrier, kMathThreads);
}

}  // namespace monomoe::cuda
