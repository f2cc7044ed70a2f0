// See cublaslt.hpp.
#include "cuda/bench/cublaslt.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace monomoe::cuda {
namespace {

// By name: where LD_LIBRARY_PATH and the loader's cache lead. Then the usual folder of a toolkit.
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so"};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, CublasLt& lt) {
  return find(library, "cublasLtCreate", lt.create) && find(library, "cublasLtDestroy", lt.destroy) &&
         find(library, "cublasLtMatmulDescCreate", lt.matmul_desc_create) && find(library, "cublasLtMatmulDescDestroy", lt.matmul_desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", lt.matmul_desc_set) && find(library, "cublasLtMatrixLayoutCreate", lt.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic) && find(library, "cublasLtMatmul", lt.matmul);
}

}  // namespace

Result<CublasLt> CublasLt::load() {
  std::string looked_for;
  for (const char* name : kNames) {
    looked_for += fmt::format("{}{}", looked_for.empty() ? "" : ", ", name);
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    CublasLt lt;
    if (find_all(library, lt)) {
      lt.name = name;
      return lt;
    }
    dlclose(library);
  }
  return unavailable(fmt::format("no cuBLASLt found (looked for {}); name its folder in LD_LIBRARY_PATH", looked_for));
}

}  // namespace monomoe::cuda
