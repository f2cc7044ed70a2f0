// Proves that every numerics header compiles for the device and that the device computes the host's bits, over all codes and long sweeps.
// Build: nvcc -std=c++20 -O2 -Xcompiler -ffp-contract=off -I src -gencode arch=compute_90a,code=sm_90a -cudart static
//        -o numerics_device tests/cuda_compile/numerics_device.cu
// Prints one verdict line; exit code 0 same bits, 1 a difference, 4 no usable GPU.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

#include "numerics/activation_quant.h"
#include "cuda/moe_kernel/roles/swiglu_all.cuh"
#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp32.h"
#include "numerics/swiglu.h"
#include "numerics/tensor_core.h"
#include "numerics/weight_codes.h"

using namespace monomoe;

namespace {

// NaN payloads inside a computation are not part of the contract, only that it is a NaN.
MONOMOE_HD std::uint32_t result_bits(float value) { return is_nan(value) ? kFp32NaNBits : float_bits(value); }

MONOMOE_HD std::uint32_t mix(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Each check is a pure function of its index; the host and the device evaluate the same one.
struct Decode {
  static constexpr const char* name = "decode of all codes";
  static constexpr std::uint32_t count = 65536;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const auto byte = static_cast<std::uint8_t>(i);
    const std::uint32_t small = float_bits(e4m3_decode(byte)) ^ (float_bits(e2m1_decode(byte)) >> 1) ^ mix(float_bits(e8m0_decode(byte)));
    return small ^ mix(float_bits(bf16_decode(static_cast<std::uint16_t>(i))) + 1u);
  }
};

struct Encode {
  static constexpr const char* name = "encode over the whole fp32 range";
  static constexpr std::uint32_t count = 1u << 22;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const float x = bits_float(i * 1021u + (i & 1u));
    return e4m3_encode(x) | e2m1_encode(x) << 8 | static_cast<std::uint32_t>(bf16_encode(x)) << 16;
  }
};

struct Exponential {
  static constexpr const char* name = "exponential over the whole fp32 range";
  static constexpr std::uint32_t count = 1u << 22;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const { return result_bits(exp_contract(bits_float(i * 1021u))); }
};

struct Swiglu {
  static constexpr const char* name = "SwiGLU";
  static constexpr std::uint32_t count = 1u << 22;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const float gate = mul_rn(static_cast<float>(static_cast<std::int32_t>(mix(i))), 0x1p-24f);
    const float up = mul_rn(static_cast<float>(static_cast<std::int32_t>(mix(i + 77u))), 0x1p-27f);
    return result_bits(swiglu(gate, up, (i & 1u) ? 10.0f : fp32_infinity()));
  }
};

// The kernel's division without branches against div_rn: for any d in [1, 2^64), and for exponentials.
struct Division {
  static constexpr const char* name = "division of the kernel's SwiGLU";
  static constexpr std::uint32_t count = 1u << 24;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const float medium = bits_float(((127u - 50u) << 23) + mix(i) % (114u << 23) + (i & 1u) * 0x80000000u);
    const float any = bits_float((127u << 23) + mix(i ^ 0x5bd1e995u) % (64u << 23));
    const float near = add_rn(mul_rn(bits_float((mix(i + 0x9E3779B9u) & 0x007FFFFFu) | (127u << 23)), 54.0f), -97.9f);  // -43.9 .. 10
    return quotient(near, add_rn(1.0f, exp_contract(-near))) ^ mix(quotient(medium, any) + 1u);
  }
  MONOMOE_HD static std::uint32_t quotient(float g, float d) {
#if defined(__CUDA_ARCH__)
    return result_bits(cuda::divide_in_range(g, d));
#else
    return result_bits(div_rn(g, d));
#endif
  }
};

// The kernel's SwiGLU against the contract's: gates of any bits, gates as layers have them, and around the bounds of the short way.
struct KernelSwiglu {
  static constexpr const char* name = "SwiGLU of the kernel";
  static constexpr std::uint32_t count = 1u << 24;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const float any = bits_float(mix(i)), up = bits_float(mix(i + 0x85EBCA6Bu));
    const float usual = mul_rn(static_cast<float>(static_cast<std::int32_t>(mix(i + 77u))), 0x1p-25f);                      // +-64
    const float bounds[6] = {-44.0f, 0x1p-64f, -0x1p-64f, 0x1p64f, 10.0f, -80.0f};
    const float bound = bits_float(float_bits(bounds[i % 6u]) + (mix(i + 5u) % 9u) - 4u);
    const float limits[6] = {10.0f, fp32_infinity(), 7.0f, 0x1p-64f, 0x1p-70f, 1e30f};
    const float limit = limits[i / 6u % 6u];
    return value(any, up, limit) ^ mix(value(usual, mul_rn(usual, 0.25f), limit)) ^ mix(value(bound, up, limit) + 1u);
  }
  MONOMOE_HD static std::uint32_t value(float gate, float up, float limit) {
#if defined(__CUDA_ARCH__)
    float h[1];
    cuda::swiglu_all([&](int) { return cuda::GateUp{gate, up}; }, limit, h);
    return result_bits(h[0]);
#else
    return result_bits(swiglu(gate, up, limit));
#endif
  }
};

struct Operations {
  static constexpr const char* name = "single fp32 operations on random bits";
  static constexpr std::uint32_t count = 1u << 22;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const float a = bits_float(mix(i)), b = bits_float(mix(i + 0x1234567u)), c = bits_float(mix(i + 0x7654321u));
    return result_bits(add_rn(a, b)) ^ mix(result_bits(mul_rn(a, b))) ^ mix(result_bits(div_rn(a, b)) + 1u) ^
           mix(result_bits(fma_rn(a, b, c)) + 2u);
  }
};

struct Quantise {
  static constexpr const char* name = "group quantisation";
  static constexpr std::uint32_t count = 1u << 13;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    float x[kGroupChannels];
    const float unit = power_of_two(static_cast<int>(mix(i) % 200u) - 130);
    for (int k = 0; k < kGroupChannels; ++k) x[k] = mul_rn(static_cast<float>(static_cast<std::int32_t>(mix(i * 128u + k))), unit);
    if (i % 64u == 0) x[i % 128u] = fp32_infinity();
    std::uint8_t codes[kGroupChannels];
    float scale = 0;
    quantise_group(x, kGroupChannels, codes, &scale);
    std::uint32_t digest = float_bits(route_scale(scale, mul_rn(static_cast<float>(i), 0.001f)));
    for (std::uint8_t code : codes) digest = mix(digest ^ code);
    return digest ^ float_bits(scale);
  }
};

struct TensorCore {
  static constexpr const char* name = "tensor core blocks";
  static constexpr std::uint32_t count = 1u << 14;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    std::uint8_t a[kPromotionK], b[kPromotionK];
    for (std::uint32_t k = 0; k < kPromotionK; ++k) {
      a[k] = static_cast<std::uint8_t>(mix(i * 256u + k) & (i % 3u ? 0xB7u : 0xFEu));
      b[permuted_k(static_cast<int>(k))] = static_cast<std::uint8_t>(mix(i * 256u + 128u + k) & (i % 5u ? 0xBFu : 0xFFu));
    }
    return float_bits(tensor_core_block(a, b));
  }
};

struct WeightCodes {
  static constexpr const char* name = "weight codes";
  static constexpr std::uint32_t count = 16u * 256u * 64u;
  MONOMOE_HD std::uint32_t operator()(std::uint32_t i) const {
    const auto nibble = static_cast<std::uint8_t>(i & 15u), scale = static_cast<std::uint8_t>(i >> 4);
    const int shift = static_cast<int>(i >> 12) - 32;
    const double product = static_cast<double>(e2m1_decode(nibble)) * e8m0_decode(scale == 255 ? 254 : scale);
    return e4m3_from_nvfp4(nibble, scale, shift) | e4m3_from_mxfp4(nibble, scale, 4 * shift) << 8 |
           static_cast<std::uint32_t>(nvfp4_shift(product) & 0xFFF) << 16 | static_cast<std::uint32_t>(e8m0_encode(e8m0_decode(scale)) & 15) << 28;
  }
};

template <class Check>
__global__ void evaluate(std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < Check::count) out[i] = Check{}(i);
}

// Returns the number of indices at which host and device differ; -1 when the device failed.
template <class Check>
long differences() {
  std::uint32_t* device = nullptr;
  if (cudaMalloc(&device, Check::count * sizeof(std::uint32_t)) != cudaSuccess) return -1;
  evaluate<Check><<<(Check::count + 255) / 256, 256>>>(device);
  std::vector<std::uint32_t> got(Check::count);
  const cudaError_t error = cudaMemcpy(got.data(), device, got.size() * sizeof(std::uint32_t), cudaMemcpyDeviceToHost);
  cudaFree(device);
  if (error != cudaSuccess) {
    std::printf("%s: %s\n", Check::name, cudaGetErrorString(error));
    return -1;
  }
  long different = 0;
  for (std::uint32_t i = 0; i < Check::count; ++i) {
    const std::uint32_t want = Check{}(i);
    if (got[i] != want && different++ < 3) std::printf("%s: index %u: device %08x, host %08x\n", Check::name, i, got[i], want);
  }
  return different;
}

template <class... Checks>
bool all_same() {
  bool same = true;
  ((same = differences<Checks>() == 0 && same), ...);
  return same;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("numerics_device: NOT RUN, no usable GPU on this machine\n");
    return 4;
  }
  const bool same = all_same<Decode, Encode, Exponential, Division, Swiglu, KernelSwiglu, Operations, Quantise, TensorCore, WeightCodes>();
  std::printf("numerics_device: %s\n", same ? "PASS, host and device give the same bits" : "FAIL, host and device differ");
  return same ? 0 : 1;
}
