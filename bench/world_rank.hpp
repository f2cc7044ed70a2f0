// One rank's process of a benchmark: it joins the world that its arguments name, on its GPU. A failure ends the process with a sentence.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "monomoe/world.h"

namespace monomoe::bench {

[[noreturn]] inline void fail(const std::string& sentence) {
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::exit(5);
}
inline void must(monomoe_status status) {
  if (status != MONOMOE_OK) fail(monomoe_last_error());
}
inline void must(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) fail(std::string(doing) + ": CUDA says " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

template <auto destroy>
struct Destroyer {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
inline void leave(monomoe_world* world) { monomoe_world_leave(world, nullptr); }
using WorldHandle = std::unique_ptr<monomoe_world, Destroyer<leave>>;
using MemoryHandle = std::unique_ptr<monomoe_world_memory, Destroyer<monomoe_world_memory_destroy>>;

struct WorldRank {
  WorldHandle world;
  int32_t ranks = 1, rank = 0;
  monomoe_context_options options = {};  // placed
  std::string why;

  int device() const { return options.gpu - 1; }
  MemoryHandle memory(int64_t bytes) const {
    monomoe_world_memory* made = nullptr;
    must(monomoe_world_memory_create(world.get(), MONOMOE_BACKEND_CUDA, options.gpu, bytes, &made));
    return MemoryHandle(made);
  }
  void barrier() const { must(monomoe_world_gather(world.get(), nullptr, 0, nullptr)); }
  std::vector<double> gather(double mine) const {
    std::vector<double> all(static_cast<size_t>(ranks));
    must(monomoe_world_gather(world.get(), &mine, sizeof(mine), all.data()));
    return all;
  }
};

inline WorldRank join(const std::string& name, int32_t ranks, int32_t rank, monomoe_sharing sharing, uint32_t timeout_ms) {
  WorldRank out;
  out.ranks = ranks;
  out.rank = rank;
  monomoe_world_options options = {};
  options.struct_size = sizeof(options);
  options.name = name.c_str();
  options.ranks = ranks;
  options.rank = rank;
  options.timeout_ms = timeout_ms;
  options.sharing = sharing;
  monomoe_world* world = nullptr;
  must(monomoe_world_join(&options, &world));
  out.world.reset(world);
  out.options.struct_size = sizeof(out.options);
  out.options.backend = MONOMOE_BACKEND_CUDA;
  out.options.timeout_ms = timeout_ms;
  char* why = nullptr;
  must(monomoe_world_place(world, &out.options, &why));
  out.why = why;
  monomoe_free_text(why);
  must(cudaSetDevice(out.device()), "choosing the GPU");
  return out;
}

}  // namespace monomoe::bench
