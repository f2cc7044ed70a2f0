#include "comm/rank_comm.hpp"

#include <algorithm>
#include <bit>
#include <thread>

namespace monomoe {

void RankComm::publish_arrived(uint64_t num_tokens, uint64_t layer) const {
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    publish(flags(rank).num_tokens[self_], num_tokens);
    publish(flags(rank).layer[self_], layer);
    publish(flags(rank).arrived[self_], epoch_);
  }
}

void RankComm::publish_drained() const {
  for (int32_t rank = 0; rank < ranks(); ++rank) publish(flags(rank).drained[self_], epoch_);
}

void RankComm::publish_refused(RejectReason reason, uint64_t value) const {
  const uint64_t word = uint64_t{static_cast<uint32_t>(reason)} << 32 | std::min<uint64_t>(value, UINT32_MAX);
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    publish(flags(rank).reject[self_], word);
    publish(flags(rank).refused[self_], epoch_);
  }
}

void RankComm::publish_progress() const {
  for (int32_t rank = 0; rank < ranks(); ++rank) add<uint64_t>(flags(rank).progress[self_], 1);
}

// refused is read before arrived: a peer that arrived in this epoch and refused a later one has both visible then.
int32_t RankComm::refusing_rank() const {
  SymmetricFlags& own = own_flags();
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    if (look(own.refused[rank]) >= epoch_ && look(own.arrived[rank]) < epoch_) return rank;
  }
  return -1;
}

uint64_t RankComm::signs_of_life() const {
  uint64_t signs = 0;
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    signs += look(own_flags().progress[rank]) + look(own_flags().arrived[rank]) + look(own_flags().drained[rank]);
  }
  return signs;
}

// Of several peers, the one that has not even finished GEMM1; if none stands out and there are several, nobody.
int32_t RankComm::culprit(const WaitPoint& point) const {
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    if ((point.peers & bit(rank)) != 0 && rank != self_ && look(own_flags().drained[rank]) < epoch_) return rank;
  }
  return std::popcount(point.peers) == 1 ? std::countr_zero(point.peers) : -1;
}

Outcome RankComm::abort(const ErrorRecord& record) const {
  for (int32_t rank = 0; rank < ranks(); ++rank) write_record(flags(rank), record);
  return Outcome::kAborted;
}

Outcome RankComm::time_out(const WaitPoint& point, Seen seen) const {
  ErrorRecord record;
  record.rank = self_;
  record.role = point.role;
  record.flag = point.flag;
  record.peer = culprit(point);
  record.item = point.item;
  record.expected = seen.wanted;
  record.seen = seen.value;
  record.timeout_ms = timeout_ms_;
  return abort(record);
}

Outcome RankComm::Patience::pause(const WaitPoint& point, uint64_t wanted, uint64_t seen) {
  constexpr uint32_t kSpins = 100, kYields = 100;
  if (++rounds_ <= kSpins) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return Outcome::kDone;
  }
  if (comm_.aborted()) return Outcome::kAborted;
  if (comm_.refusing_rank() >= 0) return Outcome::kRejected;
  if (rounds_ <= kSpins + kYields) {
    std::this_thread::yield();
    return Outcome::kDone;
  }
  const Clock::time_point now = Clock::now();
  const uint64_t signs = comm_.signs_of_life();
  if (signs != signs_) {
    signs_ = signs;
    alive_ = now;
  } else if (point.peers != 0 && now - alive_ > std::chrono::milliseconds(comm_.timeout_ms_)) {
    return comm_.time_out(point, {wanted, seen});
  }
  const uint32_t doublings = std::min<uint32_t>((rounds_ - kSpins - kYields) / 8, 5);
  std::this_thread::sleep_for(std::chrono::microseconds(20 << doublings));
  return Outcome::kDone;
}

}  // namespace monomoe
