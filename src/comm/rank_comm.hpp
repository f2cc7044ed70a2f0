// One rank's side of one call: its epoch, the flags of all ranks, and await, the only way to wait. Every wait ends: by its
// flag, by a rank that refused this call, by a rank that gave up, or by the timeout, which makes this rank give up for all.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/error_record.hpp"
#include "comm/flags.hpp"
#include "comm/symmetric_memory.hpp"
#include "plan/flags.h"

namespace monomoe {

enum class Outcome : uint8_t { kDone, kRejected, kAborted };

// What a wait is for, so that a timeout can say so. peers: bit mask of the ranks that could end it; none: the wait is for a
// worker of this rank, which works or waits under a clock of its own, so it has no clock.
struct WaitPoint {
  TaskKind role;
  FlagName flag;
  uint64_t peers = 0;
  int64_t item = -1;
};

using Clock = std::chrono::steady_clock;

class RankComm {
 public:
  RankComm(const SymmetricMemory& memory, int64_t flags_offset, int32_t self, uint64_t epoch, uint32_t timeout_ms)
      : memory_(&memory), flags_offset_(flags_offset), self_(self), epoch_(epoch), timeout_ms_(timeout_ms) {}

  int32_t self() const { return self_; }
  int32_t ranks() const { return memory_->num_ranks(); }
  uint64_t epoch() const { return epoch_; }
  uint32_t timeout_ms() const { return timeout_ms_; }
  uint64_t bit(int32_t rank) const { return uint64_t{1} << rank; }
  SymmetricFlags& flags(int32_t rank) const {
    return *reinterpret_cast<SymmetricFlags*>(memory_->base(rank) + flags_offset_);
  }
  SymmetricFlags& own_flags() const { return flags(self_); }

  // Waits until word >= wanted. waited: seconds spent here are added.
  template <class T>
  Outcome await(T& word, T wanted, const WaitPoint& point, double& waited) const;

  // Source self's rows, ids and weights of this epoch are on every rank.
  void publish_arrived(uint64_t num_tokens, uint64_t layer) const;
  // This rank reads no more of the rows its peers sent in this epoch.
  void publish_drained() const;
  void publish_refused(RejectReason reason, uint64_t value) const;
  void publish_progress() const;

  // Gives up for all ranks, unless another rank was first.
  Outcome abort(const ErrorRecord& record) const;
  bool aborted() const { return has_record(own_flags()); }
  // The first rank that refused this call, -1 if none has. A rank that is past this epoch without having arrived in it refused it.
  int32_t refusing_rank() const;

 private:
  class Patience;
  struct Seen {
    uint64_t wanted, value;
  };
  Outcome time_out(const WaitPoint& point, Seen seen) const;
  int32_t culprit(const WaitPoint& point) const;
  uint64_t signs_of_life() const;

  const SymmetricMemory* memory_;
  int64_t flags_offset_;
  int32_t self_;
  uint64_t epoch_;
  uint32_t timeout_ms_;
};

// Spins, then yields, then sleeps a little; after the spins it looks for refusals, aborts and the time.
class RankComm::Patience {
 public:
  explicit Patience(const RankComm& comm) : comm_(comm), begin_(Clock::now()), alive_(begin_), signs_(comm.signs_of_life()) {}
  Outcome pause(const WaitPoint& point, uint64_t wanted, uint64_t seen);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  const RankComm& comm_;
  Clock::time_point begin_;
  Clock::time_point alive_;  // the last time anybody's progress moved
  uint64_t signs_;
  uint32_t rounds_ = 0;
};

template <class T>
Outcome RankComm::await(T& word, T wanted, const WaitPoint& point, double& waited) const {
  T seen = look(word);
  if (seen >= wanted) return Outcome::kDone;
  Patience patience(*this);
  Outcome outcome = Outcome::kDone;
  while (outcome == Outcome::kDone && (seen = look(word)) < wanted) outcome = patience.pause(point, wanted, seen);
  waited += patience.seconds();
  return outcome;
}

}  // namespace monomoe
