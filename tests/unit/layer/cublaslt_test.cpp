// The numbers and the struct with which the benchmark calls cuBLASLt, against NVIDIA's own header where a toolkit is here.
#include "cuda/bench/cublaslt.hpp"

#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace monomoe::cuda {
namespace {

TEST(CublasLt, NumbersAreTheHeaders) {
  EXPECT_EQ(kLtE4m3, CUDA_R_8F_E4M3);
  EXPECT_EQ(kLtBf16, CUDA_R_16BF);
  EXPECT_EQ(kLtF32, CUDA_R_32F);
  EXPECT_EQ(kLtComputeF32, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(kLtTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(kLtFastAccumulation, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
  EXPECT_EQ(kLtMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(kLtTranspose, CUBLAS_OP_T);
  static_assert(sizeof(cublasOperation_t) == sizeof(kLtTranspose) && sizeof(cudaDataType) == sizeof(int) && sizeof(cublasStatus_t) == sizeof(int));
}

TEST(CublasLt, TheHeuristicsResultIsLaidOutAsInTheHeader) {
  EXPECT_EQ(sizeof(CublasLt::Heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(offsetof(CublasLt::Heuristic, algorithm), offsetof(cublasLtMatmulHeuristicResult_t, algo));
  EXPECT_EQ(offsetof(CublasLt::Heuristic, workspace_bytes), offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(CublasLt::Heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}

// The signatures: each pointer takes the header's function, but for handles and enumerators, which are plain pointers and ints here.
TEST(CublasLt, FunctionsTakeAsManyArguments) {
  static_assert(std::is_same_v<decltype(&cublasLtMatrixLayoutCreate),
                               cublasStatus_t (*)(cublasLtMatrixLayout_t*, cudaDataType, uint64_t, uint64_t, int64_t)>);
  static_assert(std::is_same_v<decltype(&cublasLtMatmulDescCreate), cublasStatus_t (*)(cublasLtMatmulDesc_t*, cublasComputeType_t, cudaDataType_t)>);
  static_assert(std::is_same_v<decltype(&cublasLtMatmulAlgoGetHeuristic),
                               cublasStatus_t (*)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t*, int*)>);
  static_assert(std::is_same_v<decltype(&cublasLtMatmul),
                               cublasStatus_t (*)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t, const void*,
                                                  cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                                                  const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t)>);
}

}  // namespace
}  // namespace monomoe::cuda
#else
TEST(CublasLt, NumbersAreTheHeaders) { GTEST_SKIP() << "no cublasLt.h here"; }
#endif
