// How ranks whose memory came from outside find each other: each tells all what it was made for, waits for the others' word, and compares.
// The rest of the protocol may then rely on equal layouts everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "comm/symmetric_memory.hpp"
#include "plan/problem.h"

namespace monomoe {

// One rank of a world, as the code below the ABI gets it. peers: read while the workspace is made.
struct WorldRank {
  int32_t rank = 0;
  std::span<void* const> peers;
  std::string_view library_version;  // at most 8 characters are told
  uint32_t timeout_ms = 30000;
  uint64_t launch = 0;  // a number for the way calls are launched: the same on all ranks
};

enum class WorldBackend : uint64_t { kCpu = 1, kCuda = 2 };

// Collective over the ranks of the memory: returns when every rank has told and all agree.
// kUsage: ranks differ, naming both and the values; a rank's table of peers leads elsewhere; this rank's memory was not zero.
// kTimeout: a rank did not come, naming it.
Result<void> exchange_fingerprints(const SymmetricMemory& memory, const Problem& problem, WorldBackend backend, const WorldRank& world);

}  // namespace monomoe
