// What the first rank that gave up was waiting for: written once into every rank's memory, told by all of them.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "plan/flags.h"
#include "plan/task_order.h"

namespace monomoe {

enum class FlagName : uint32_t { kArrived, kDrained, kArrivals, kRoutesReady, kBlockDone, kOutcome, kLayer, kUnknown };

struct ErrorRecord {
  Status code = Status::kTimeout;
  int32_t rank = 0;                 // who waited
  TaskKind role = TaskKind::kNone;  // doing what
  FlagName flag = FlagName::kArrived;
  int32_t peer = -1;      // for whom; -1: one of several
  int64_t item = -1;      // of what: the token, for arrivals
  uint64_t expected = 0;  // the flag's value that would have ended the wait
  uint64_t seen = 0;
  uint32_t timeout_ms = 0;
};

// One sentence: "rank 2, route lists: rank 1 did not arrive within 30000 ms (flag arrived, expected epoch 7, seen 6)".
std::string to_sentence(const ErrorRecord& record);

// Why a rank refused, for the others: "129 tokens exceed the capacity of 128". limit: the capacity or the number of experts.
std::string reject_sentence(RejectReason reason, uint64_t value, int64_t capacity, int64_t experts);

// Writes the record unless one is there already; the first stays. Any thread of any rank.
void write_record(SymmetricFlags& flags, const ErrorRecord& record);
// True as soon as some rank has begun to write a record.
bool has_record(SymmetricFlags& flags);
// The record; waits for its writer to finish the few words. Wants has_record. A writer that ended in between, as only another process can,
// leaves a record of kUnknown.
ErrorRecord read_record(SymmetricFlags& flags);

}  // namespace monomoe
