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

// Collective over the ranks of the memory: returns when every rank has told and every rank has said that all agree.
// kUsage: ranks differ, naming both and the values; a rank's table of peers leads elsewhere, or to memory that it hands in for two ranks; this
// rank's memory was not zero. kTimeout: a rank did not come, naming it. A rank that gives up leaves word of it: the others, also those that come
// later, fail with the same status at once, naming it and its reason.
Result<void> exchange_fingerprints(const SymmetricMemory& memory, const Problem& problem, WorldBackend backend, const WorldRank& world);

// For a rank that fails before it comes to the exchange: the others are told instead of waiting for it. Changes nothing after one that failed.
void tell_failure(const SymmetricMemory& memory, const Problem& problem, const WorldRank& world);

}  // namespace monomoe
