// A world behind the ABI's handle, and the memory that its ranks share.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/shareable_memory.hpp"
#include "comm/world.hpp"
#include "cuda/backend.hpp"
#include "monomoe/world.h"

struct monomoe_world {
  std::unique_ptr<monomoe::World> world;
  monomoe_sharing sharing = MONOMOE_SHARING_AUTO;
  std::vector<std::unique_ptr<monomoe::ShareableMemory>> retired;  // given back, but perhaps mapped elsewhere: kept until all have left
};

struct monomoe_world_memory {
  monomoe_world* world;
  std::unique_ptr<monomoe::ShareableMemory> memory;
  std::vector<void*> peers;
  std::string how;

  ~monomoe_world_memory();
};

namespace monomoe::layer {

// Collective. Every rank's value.
template <class T>
Result<std::vector<T>> gather(World& world, WorldStep step, const T& mine) {
  std::vector<T> all(static_cast<size_t>(world.ranks()));
  auto done = world.gather(step, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (!done) return done.error();
  return all;
}

// Collective. gpu: -1 for host memory.
Result<std::unique_ptr<monomoe_world_memory>> make_world_memory(monomoe_world& world, bool is_gpu, int gpu, int64_t bytes);
// Collective. See monomoe_world_place; why gets the sentence.
Result<void> place_rank(World& world, monomoe_context_options& options, std::string& why);

}  // namespace monomoe::layer
