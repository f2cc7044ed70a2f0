// The flags ranks and tasks meet at. docs/protocol.md has a row for each: writer, reader, order, when it changes.
// Flags between ranks carry the epoch (number of the call on this workspace, from 1), so nothing is cleared between calls.
#pragma once

#include <cstdint>

#include "plan/problem.h"

namespace monomoe {

// Why a rank refused a call before any work: sent to the others, who then return at once instead of waiting.
enum class RejectReason : uint32_t { kNone = 0, kTooManyTokens = 1, kBadExpertId = 2, kBadArgument = 3, kNoMemory = 4 };

// Counts up with every change of the flags, the layout of symmetric memory or their meaning: ranks of different numbers do not mix.
inline constexpr uint64_t kProtocolVersion = 2;

// What ranks with memory from outside tell each other before the first call; see comm/fingerprint.hpp.
inline constexpr int kFingerprintWords = 16;

// In symmetric memory, written by peers. Each 64-bit word has one writer, except the abort record, whose first word is won by one.
struct SymmetricFlags {
  uint64_t fingerprints[kMaxRanks][kFingerprintWords];  // [src]; first in every version, so that versions can be compared
  uint64_t refused[kMaxRanks];     // [src] newest epoch src has refused; written after the word below
  uint64_t reject[kMaxRanks];      // [src] RejectReason << 32 | value, for the epoch in `refused`
  uint64_t num_tokens[kMaxRanks];  // [src]
  uint64_t layer[kMaxRanks];       // [src] which weights src uses in this call: ranks out of step are noticed, not served
  uint64_t arrived[kMaxRanks];     // [src] epoch whose rows of src are all here; without ids_arrived its ids and weights too
  uint64_t ids_arrived[kMaxRanks]; // [src] GPU only: epoch whose ids and weights of src are all here
  uint64_t drained[kMaxRanks];     // [dst] epoch whose rows from this rank dst has finished reading
  uint64_t progress[kMaxRanks];    // [src] counts signs of life; a wait times out only while nobody's moves
  uint64_t abort_record[8];        // first word != 0: a rank gave up; see comm/error_record.hpp
};

// How a rank's call ends; decided once, so that y is written as a whole or not at all.
inline constexpr uint64_t kUndecided = 0, kComplete = 1, kAbandoned = 2;

// In the rank's own workspace; all but routes_ready are reset when a call begins.
struct LocalFlags {
  uint64_t next_task;      // the claim counter of this call
  uint64_t dispatch_done;  // dispatch tasks finished
  uint64_t routes_ready;   // epoch whose route lists are built
  uint64_t gemm1_done;     // GEMM1 tasks finished; all of them: the peers' rows are drained
  uint64_t outcome;        // kComplete once every contribution is here: from then on y is written, whatever happens elsewhere
};

}  // namespace monomoe
