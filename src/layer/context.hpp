// A backend and the ranks of this process. Immutable after creation, so any number of threads may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "cuda/backend.hpp"
#include "cuda/launch_variant.h"
#include "monomoe/monomoe.h"

struct monomoe_context {
  monomoe_backend backend = MONOMOE_BACKEND_CPU;  // taken
  monomoe_backend asked = MONOMOE_BACKEND_CPU;
  std::string why;  // of the backend taken
  int32_t num_ranks = 1;    // of the world: all in this process, or only_rank
  int32_t only_rank = -1;   // the one rank of a world that this context is; -1: all ranks are here
  int32_t num_threads = 1;  // over all ranks; at least one each
  int32_t vector_bits = 0;  // 128, 256 or 512: resolved
  uint32_t timeout_ms = 30000;
  monomoe::cuda::LaunchVariant launch = monomoe::cuda::LaunchVariant::kOne;  // of workspaces that leave it open
  std::unique_ptr<monomoe::cuda::Backend> cuda;  // null on the CPU backend

  bool holds(int32_t rank) const { return only_rank < 0 || rank == only_rank; }
};

namespace monomoe::layer {

// Usage error unless the rank is one of this process.
Result<void> require_local(const monomoe_context& context, int32_t rank);

}  // namespace monomoe::layer
