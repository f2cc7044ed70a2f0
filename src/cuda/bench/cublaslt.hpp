// cuBLASLt, looked for at run time: nothing is linked and no header is needed, so that the library builds and loads without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.hpp"

struct CUstream_st;  // a CUDA stream

namespace monomoe::cuda {

// Enumerators of library_types.h, cublas_api.h and cublasLt.h; tests/unit/layer/cublaslt_test.cpp holds them against the headers.
inline constexpr int kLtE4m3 = 28, kLtBf16 = 14, kLtF32 = 0;     // cudaDataType
inline constexpr int kLtComputeF32 = 68;                         // cublasComputeType_t
inline constexpr int kLtTransposeA = 3, kLtFastAccumulation = 25;  // cublasLtMatmulDescAttributes_t
inline constexpr int kLtMaxWorkspace = 1;                        // cublasLtMatmulPreferenceAttributes_t
inline constexpr int32_t kLtTranspose = 1;                       // cublasOperation_t

// The few functions of cublasLt.h that one product needs, with its types as plain ones: handles and descriptors are pointers, enumerators ints.
struct CublasLt {
  using Status = int;
  struct Heuristic {  // cublasLtMatmulHeuristicResult_t
    uint64_t algorithm[8];
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
  };

  Status (*create)(void** handle);
  Status (*destroy)(void* handle);
  Status (*matmul_desc_create)(void** desc, int compute_type, int scale_type);
  Status (*matmul_desc_destroy)(void* desc);
  Status (*matmul_desc_set)(void* desc, int attribute, const void* value, size_t bytes);
  Status (*layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t leading);
  Status (*layout_destroy)(void* layout);
  Status (*preference_create)(void** preference);
  Status (*preference_destroy)(void* preference);
  Status (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
  Status (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted, Heuristic* results, int* found);
  Status (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout, const void* beta,
                   const void* c, void* c_layout, void* d, void* d_layout, const void* algorithm, void* workspace, size_t workspace_bytes,
                   CUstream_st* stream);
  std::string name;  // of the file, as it was found

  // kUnavailable, naming where it was looked for. Stays loaded: its own threads and the driver may still use it.
  static Result<CublasLt> load();
};

}  // namespace monomoe::cuda
