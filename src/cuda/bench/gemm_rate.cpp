// See gemm_rate.hpp. FP8 products of cuBLASLt want the first operand transposed: D = A^T B with A [k, m] and B [k, n] in columns.
#include "cuda/bench/gemm_rate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/bench/cublaslt.hpp"
#include "cuda/bench/events.hpp"
#include "cuda/bench/kernels.hpp"
#include "cuda/status.hpp"
#include "cuda/stream.hpp"

namespace monomoe::cuda {
namespace {

constexpr int64_t kSize = 8192;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kWarmUps = 3, kSamples = 15;
constexpr int8_t kFast = 1;

Result<void> check_lt(int status, const char* doing) {
  if (status == 0) return {};
  return unavailable(fmt::format("cuBLASLt cannot run the FP8 product of {}^3: {} gave status {}", kSize, doing, status));
}

// Descriptors of the product; destroyed in any case.
struct Product {
  const CublasLt& lt;
  void *handle = nullptr, *desc = nullptr, *a = nullptr, *b = nullptr, *d = nullptr, *preference = nullptr;
  CublasLt::Heuristic best = {};

  explicit Product(const CublasLt& library) : lt(library) {}
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (preference != nullptr) lt.preference_destroy(preference);
    for (void* layout : {a, b, d}) {
      if (layout != nullptr) lt.layout_destroy(layout);
    }
    if (desc != nullptr) lt.matmul_desc_destroy(desc);
    if (handle != nullptr) lt.destroy(handle);
  }

  Result<void> prepare() {
    if (auto done = check_lt(lt.create(&handle), "cublasLtCreate"); !done) return done;
    if (auto done = check_lt(lt.matmul_desc_create(&desc, kLtComputeF32, kLtF32), "cublasLtMatmulDescCreate"); !done) return done;
    if (auto done = check_lt(lt.matmul_desc_set(desc, kLtTransposeA, &kLtTranspose, sizeof kLtTranspose), "the transposition"); !done) return done;
    if (auto done = check_lt(lt.matmul_desc_set(desc, kLtFastAccumulation, &kFast, sizeof kFast), "fast accumulation"); !done) return done;
    for (void** layout : {&a, &b}) {
      if (auto done = check_lt(lt.layout_create(layout, kLtE4m3, kSize, kSize, kSize), "cublasLtMatrixLayoutCreate"); !done) return done;
    }
    if (auto done = check_lt(lt.layout_create(&d, kLtBf16, kSize, kSize, kSize), "cublasLtMatrixLayoutCreate"); !done) return done;
    if (auto done = check_lt(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate"); !done) return done;
    if (auto done = check_lt(lt.preference_set(preference, kLtMaxWorkspace, &kWorkspaceBytes, sizeof kWorkspaceBytes), "the workspace"); !done) return done;
    int found = 0;
    if (auto done = check_lt(lt.heuristic(handle, desc, a, b, d, d, preference, 1, &best, &found), "cublasLtMatmulAlgoGetHeuristic"); !done) return done;
    return found > 0 ? check_lt(best.state, "its best algorithm") : unavailable("cuBLASLt knows no algorithm for the FP8 product of 8192^3");
  }
};

struct Operands {
  DeviceBuffer a, b, d, workspace;

  static Result<Operands> make(int multiprocessors, cudaStream_t stream) {
    Operands made;
    const std::pair<DeviceBuffer*, int64_t> sizes[] = {
        {&made.a, kSize * kSize}, {&made.b, kSize * kSize}, {&made.d, kSize * kSize * 2}, {&made.workspace, kWorkspaceBytes}};
    for (const auto& [buffer, bytes] : sizes) {
      auto one = DeviceBuffer::make(bytes, "the product of 8192^3");
      if (!one) return one.error();
      *buffer = one.take();
    }
    fill_codes(made.a.data(), made.a.bytes(), 1, multiprocessors, stream);
    fill_codes(made.b.data(), made.b.bytes(), 2, multiprocessors, stream);
    if (auto done = check(cudaGetLastError(), "filling the operands of the product"); !done) return done.error();
    return Result<Operands>(std::move(made));
  }
};

}  // namespace

Result<GemmRate> measure_gemm(int multiprocessors) {
  auto library = CublasLt::load();
  if (!library) return library.error();
  const CublasLt& lt = library.value();
  Product product(lt);
  if (auto done = product.prepare(); !done) return done.error();
  auto stream = make_stream();
  if (!stream) return stream.error();
  const cudaStream_t queue = stream.value().get();
  auto operands = Operands::make(multiprocessors, queue);
  if (!operands) return operands.error();
  const Operands& memory = operands.value();
  auto timer = EventPair::make();
  if (!timer) return timer.error();
  const float one = 1.0f, zero = 0.0f;
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + kSamples; ++i) {
    if (auto done = timer.value().begin(queue); !done) return done.error();
    const int status = lt.matmul(product.handle, product.desc, &one, memory.a.data(), product.a, memory.b.data(), product.b, &zero, memory.d.data(),
                                 product.d, memory.d.data(), product.d, product.best.algorithm, memory.workspace.data(), kWorkspaceBytes, queue);
    if (auto done = check_lt(status, "cublasLtMatmul"); !done) return done.error();
    if (auto done = timer.value().end(queue); !done) return done.error();
    auto took = timer.value().seconds();
    if (!took) return took.error();
    if (i >= kWarmUps) seconds.push_back(took.value());
  }
  std::sort(seconds.begin(), seconds.end());
  const double size = static_cast<double>(kSize);
  return GemmRate{2 * size * size * size / seconds[seconds.size() / 2], lt.name};
}

}  // namespace monomoe::cuda
