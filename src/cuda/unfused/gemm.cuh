// The grouped GEMM of the unfused path: [128 tokens x K] times [K x 128 packed weight rows], finished sums in fp32. Tokens are WGMMA's M
// operand, both operands come from shared memory, FP4 is expanded there first. Two stages: while one is multiplied the next is copied.
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/unfused/common.cuh"
#include "numerics/fp32.h"
#include "numerics/tensor_core.h"
#include "numerics/weight_codes.h"

namespace monomoe::cuda::unfused {

inline constexpr int kTileTokens = static_cast<int>(kUnfusedTokenBlock);
inline constexpr int kColumns = kHalfRows;  // packed weight rows of a tile
inline constexpr int kChunk = 64;           // of them, in one WGMMA
inline constexpr int kChunks = kColumns / kChunk;
inline constexpr int kScaleBytes = 256;  // values of an FP4 scale byte
static_assert(kThreads == 2 * kTileTokens, "a warpgroup for each 64 tokens");

template <bool kIsFp8>
struct alignas(1024) GemmShared {
  uint8_t tokens[2][kTileTokens * kBlockK];             // e4m3, K permuted, 128-byte swizzle
  uint8_t weights[kIsFp8 ? 2 : 1][kColumns * kBlockK];  // the same
  alignas(128) uint8_t packed[2][kIsFp8 ? 128 : kFp4HalfBytes];
  float scales[2][kTileTokens];
  const uint8_t* row_codes[kTileTokens];  // where each token's row begins
  const float* row_scales[kTileTokens];
  uint2 tables[2][kIsFp8 ? 1 : kScaleBytes];  // gate, up (down: twice the same): scale byte -> eight e4m3 magnitudes
};

// One tile.
struct GemmTile {
  bool down;
  BlockInfo block;
  int64_t half;           // of the expert's packed rows
  const uint8_t* expert;  // packed
  int64_t k_blocks;
};

__device__ __forceinline__ GemmTile tile_at(const UnfusedParams& params, int64_t task, bool down) {
  const Params& call = params.call;
  const int64_t halves = down ? call.experts.down_halves : call.experts.gate_up_halves;
  GemmTile tile;
  tile.down = down;
  tile.block = reinterpret_cast<const BlockInfo*>(params.memory + params.layout.blocks)[task / halves];
  tile.half = task % halves;
  tile.expert = call.packed_experts + tile.block.slot * call.experts.bytes;
  tile.k_blocks = down ? call.experts.down_k_blocks : call.experts.gate_up_k_blocks;
  return tile;
}

// Where the rows of the block's routes begin: the intermediate, the rank's own tokens, or where their source pushed them.
template <bool kIsFp8>
__device__ __forceinline__ void find_rows(const Params& call, GemmShared<kIsFp8>& shared, const GemmTile& tile) {
  const Problem& p = call.problem;
  const int row = static_cast<int>(threadIdx.x);
  if (row >= tile.block.count) return;
  const int64_t number = tile.block.route_begin + row;
  if (tile.down) {
    shared.row_codes[row] = call.workspace + call.local.mid_codes + number * p.padded_intermediate();
    shared.row_scales[row] = reinterpret_cast<const float*>(call.workspace + call.local.mid_scales) + number * p.intermediate_blocks();
    return;
  }
  const Route route = routes_of(call)[number];
  const bool own = route.src == call.self;
  const int64_t index = own ? route.token : peer_block(route.src, call.self) * p.capacity + route.token;
  const uint8_t* codes = own ? call.workspace + call.local.own_codes : call.peers[call.self] + call.symmetric.row_codes;
  const uint8_t* scales = own ? call.workspace + call.local.own_scales : call.peers[call.self] + call.symmetric.row_scales;
  shared.row_codes[row] = codes + index * p.hidden;
  shared.row_scales[row] = reinterpret_cast<const float*>(scales) + index * p.hidden_blocks();
}

__device__ __forceinline__ uint32_t magnitudes(WeightFormat format, int first, int scale, int shift) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = format == WeightFormat::kNvfp4
                              ? e4m3_from_nvfp4(static_cast<uint8_t>(first + i), static_cast<uint8_t>(scale), shift)
                              : e4m3_from_mxfp4(static_cast<uint8_t>(first + i), static_cast<uint8_t>(scale), shift);
    word |= code << (8 * i);
  }
  return word;
}

__device__ __forceinline__ void build_tables(const Params& call, GemmShared<false>& shared, const GemmTile& tile) {
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(tile.expert);
  const int shift[2] = {tile.down ? header->down_shift : header->gate_shift, tile.down ? header->down_shift : header->up_shift};
  const int scale = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    shared.tables[side][scale] =
        make_uint2(magnitudes(call.problem.weights, 0, scale, shift[side]), magnitudes(call.problem.weights, 4, scale, shift[side]));
  }
}

// Starts the copies of one K block into a stage.
template <bool kIsFp8>
__device__ __forceinline__ void copy_stage(const Params& call, GemmShared<kIsFp8>& shared, const GemmTile& tile, int64_t k_block) {
  const int stage = static_cast<int>(k_block % 2), thread = static_cast<int>(threadIdx.x);
  const uint32_t tokens = ptx::smem_address(shared.tokens[stage]);
  for (int piece = thread; piece < tile.block.count * 8; piece += kThreads) {
    const int row = piece / 8, byte = piece % 8 * 16;
    ptx::copy_async_16(tokens + static_cast<uint32_t>(swizzle_128b(row, byte)), shared.row_codes[row] + k_block * kBlockK + byte);
  }
  if (thread < tile.block.count) ptx::copy_async_4(ptx::smem_address(&shared.scales[stage][thread]), shared.row_scales[thread] + k_block);
  const int64_t begin = tile.down ? call.experts.down_half(tile.half, k_block) : call.experts.gate_up_half(tile.half, k_block);
  const uint32_t weights = ptx::smem_address(kIsFp8 ? shared.weights[kIsFp8 ? stage : 0] : shared.packed[stage]);
  constexpr int kBytes = static_cast<int>(kIsFp8 ? kFp8HalfBytes : kFp4HalfBytes);
  for (int byte = thread * 16; byte < kBytes; byte += kThreads * 16) ptx::copy_async_16(weights + byte, tile.expert + begin + byte);
}

// The packed half of a stage -> e4m3 in the layout of WGMMA's operand.
__device__ __forceinline__ void expand_half(GemmShared<false>& shared, int stage) {
  const uint8_t* packed = shared.packed[stage];
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * 16; i += kThreads) {
    const int row = i / 16, t = i / 4 % 4, step = i % 4;
    const uint32_t word = *reinterpret_cast<const uint32_t*>(packed + fp4_half_word_offset(row, t, step));
    const uint8_t scale = packed[fp4_half_scale_offset(row, 2 * t + step / 2)];
    const uint2 table = shared.tables[row % (2 * kInterleave) / kInterleave][scale];
    // Magnitudes are the selectors of byte permutes; signs stand four bits apart.
    const uint32_t low = ptx::byte_permute(table.x, table.y, word & 0x7777u) | (word & 0x80808080u);
    const uint32_t high = ptx::byte_permute(table.x, table.y, word >> 16 & 0x7777u) | (word << 4 & 0x80808080u);
    const int k = 32 * t + 8 * step;
    *reinterpret_cast<uint32_t*>(shared.weights[0] + swizzle_128b(row, permuted_k(k))) = low;
    *reinterpret_cast<uint32_t*>(shared.weights[0] + swizzle_128b(row, permuted_k(k + 4))) = high;
  }
}

// Block scales of FP8 in one K block: gate's and up's columns; down's are one.
template <bool kIsFp8>
__device__ __forceinline__ float2 block_scales(const Params& call, const GemmTile& tile, int64_t k_block) {
  if constexpr (!kIsFp8) return make_float2(1.0f, 1.0f);
  const auto scale_at = [&](int64_t begin, int64_t row) {
    return __ldg(reinterpret_cast<const float*>(tile.expert + begin) + row * tile.k_blocks + k_block);
  };
  if (tile.down) {
    const float scale = scale_at(call.experts.down_scales_begin, tile.half);
    return make_float2(scale, scale);
  }
  return make_float2(scale_at(call.experts.gate_scales_begin, tile.half / 2), scale_at(call.experts.up_scales_begin, tile.half / 2));
}

// One chunk of columns of one K block: four k32 steps from zero, then the promotion. A thread holds tokens g and g + 8 (sums 4j, 4j + 1 and
// 4j + 2, 4j + 3) of columns 8j + 2t and + 1: j even is gate, odd is up.
template <bool kIsFp8>
__device__ __forceinline__ void multiply_chunk(float (&sum)[kChunk / 2], uint64_t tokens, uint64_t weights, const float (&token_scale)[2],
                                               float2 block_scale) {
  float partial[kChunk / 2];
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) ptx::Wgmma<kChunk>::shared(partial, tokens + 2 * step, weights + 2 * step, step > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) asm volatile("" : "+f"(partial[i])::"memory");  // not read before the wait
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float token = token_scale[i / 2 % 2];
    const float scale = kIsFp8 ? mul_rn(token, i / 4 % 2 == 0 ? block_scale.x : block_scale.y) : token;
    sum[i] = fma_rn(partial[i], scale, sum[i]);
  }
}

struct TileSums {
  float value[kChunks][kChunk / 2];
};

template <bool kIsFp8>
__device__ __forceinline__ void multiply(const Params& call, GemmShared<kIsFp8>& shared, const GemmTile& tile, TileSums& sums) {
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  copy_stage(call, shared, tile, 0);
  ptx::copy_async_commit();
  for (int64_t k_block = 0; k_block < tile.k_blocks; ++k_block) {
    const int stage = static_cast<int>(k_block % 2);
    if (k_block + 1 < tile.k_blocks) copy_stage(call, shared, tile, k_block + 1);
    ptx::copy_async_commit();
    ptx::copy_async_wait<1>();
    if constexpr (!kIsFp8) {
      __syncthreads();
      expand_half(shared, stage);
    }
    ptx::fence_proxy_async_smem();  // these writes are WGMMA's to read
    __syncthreads();
    if (warpgroup * 64 < tile.block.count) {
      const uint64_t tokens = ptx::matrix_descriptor(ptx::smem_address(shared.tokens[stage]) + warpgroup * 64 * 128);
      const uint64_t weights = ptx::matrix_descriptor(ptx::smem_address(shared.weights[kIsFp8 ? stage : 0]));
      const float token_scale[2] = {shared.scales[stage][row], shared.scales[stage][row + 8]};
      const float2 scale = block_scales<kIsFp8>(call, tile, k_block);
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        multiply_chunk<kIsFp8>(sums.value[c], tokens, weights + c * (kChunk * 128 / 16), token_scale, scale);
    }
    __syncthreads();  // the stage, and the expanded weights, may be overwritten
  }
}

// Finished sums, times the matrix's multiplier, as [route][packed rows].
__device__ __forceinline__ void store_sums(const UnfusedParams& params, const GemmTile& tile, const TileSums& sums) {
  const Problem& p = params.call.problem;
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(tile.expert);
  const float multiplier[2] = {tile.down ? header->down_multiplier : header->gate_multiplier,
                               tile.down ? header->down_multiplier : header->up_multiplier};
  const int64_t columns = tile.down ? p.hidden : 2 * p.padded_intermediate();
  const int first = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4,
            pair = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int row = first + 8 * side;
    if (row >= tile.block.count) continue;
    float* out = sums_of(params) + (tile.block.route_begin + row) * columns + tile.half * kColumns + 2 * pair;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < kChunk / 8; ++j) {
        const float* v = sums.value[c] + 4 * j + 2 * side;
        *reinterpret_cast<float2*>(out + c * kChunk + 8 * j) =
            make_float2(mul_rn(v[0], multiplier[j % 2]), mul_rn(v[1], multiplier[j % 2]));
      }
    }
  }
}

template <bool kIsFp8>
__global__ __launch_bounds__(kThreads, 2) void gemm_kernel(const __grid_constant__ UnfusedParams params, bool down) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& shared = *reinterpret_cast<GemmShared<kIsFp8>*>(bytes);
  const Params& call = params.call;
  if (is_over(call)) return;
  const int64_t tasks = totals_of(params).blocks * (down ? call.experts.down_halves : call.experts.gate_up_halves);
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const GemmTile tile = tile_at(params, task, down);
    find_rows(call, shared, tile);
    if constexpr (!kIsFp8) build_tables(call, shared, tile);
    __syncthreads();
    TileSums sums = {};
    multiply(call, shared, tile, sums);
    store_sums(params, tile, sums);
  }
}

template <bool kIsFp8>
Result<void> prepare_gemm() {
  return check(cudaFuncSetAttribute(gemm_kernel<kIsFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GemmShared<kIsFp8>)),
               "asking for shared memory");
}

template <bool kIsFp8>
Result<void> launch_gemm(const UnfusedParams& params, bool down, int thread_blocks, cudaStream_t stream) {
  gemm_kernel<kIsFp8><<<2 * thread_blocks, kThreads, sizeof(GemmShared<kIsFp8>), stream>>>(params, down);
  return launched(down ? "GEMM2" : "GEMM1");
}

}  // namespace monomoe::cuda::unfused
