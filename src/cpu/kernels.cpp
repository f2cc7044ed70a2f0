// Chooses a table of kernels by what this processor offers.
#include "cpu/kernels.hpp"

#include "cpu/kernels_tables.hpp"

namespace monomoe::cpu {

bool has_vectors(int vector_bits) {
  switch (vector_bits) {
    case 128: return true;
    case 256: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case 512:
      return has_vectors(256) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    default: return false;
  }
}

const Kernels& kernels(int vector_bits) {
  const int limit = vector_bits == 0 ? 512 : vector_bits;
  if (limit >= 512 && has_vectors(512)) return kKernels512;
  if (limit >= 256 && has_vectors(256)) return kKernels256;
  return kKernels128;
}

}  // namespace monomoe::cpu
