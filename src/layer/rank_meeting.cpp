// See rank_meeting.hpp.
#include "layer/rank_meeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "comm/error_record.hpp"

namespace monomoe::layer {
namespace {

Error already_in_call(int32_t rank) {
  return usage_error(fmt::format("rank {} is already in a call on this workspace; one call at a time", rank));
}

// What run throws must not leave the other ranks waiting.
std::vector<Result<void>> run_for_all(const RankMeeting::Run& run, std::span<const RankPart> parts) {
  try {
    return run(parts);
  } catch (const std::exception& exception) {
    return std::vector<Result<void>>(parts.size(), internal_error(exception.what()));
  }
}

}  // namespace

Error RankMeeting::missing_rank(int32_t waiting, const Round& round) const {
  ErrorRecord record;
  record.rank = waiting;
  record.role = TaskKind::kRoutes;
  record.flag = FlagName::kArrived;
  record.peer = static_cast<int32_t>(std::find(round.present.begin(), round.present.end(), false) - round.present.begin());
  record.expected = calls_ + 1;
  record.seen = calls_;
  record.timeout_ms = static_cast<uint32_t>(timeout_.count());
  return Error{Status::kTimeout, to_sentence(record)};
}

void RankMeeting::wait(std::unique_lock<std::mutex>& lock, int32_t rank, Round& round, const GiveUp& give_up) {
  while (!round.done) {
    if (round.count == ranks_) {
      changed_.wait(lock);  // the run has a clock of its own
      continue;
    }
    changed_.wait_until(lock, round.newest + timeout_);
    if (round.done || round.count == ranks_ || Clock::now() < round.newest + timeout_) continue;
    Error error = missing_rank(rank, round);
    give_up(error);
    error.message += "; the workspace is poisoned: destroy it and create it anew";
    round.results.assign(ranks_, error);
    round.done = true;
    round_ = std::make_shared<Round>(ranks_);
    changed_.notify_all();
  }
}

Result<void> RankMeeting::attend(int32_t rank, RankPart part, const Run& run, const GiveUp& give_up) {
  std::unique_lock lock(lock_);
  if (in_call_[rank]) return already_in_call(rank);
  in_call_[rank] = true;
  const std::shared_ptr<Round> round = round_;
  round->parts[rank] = std::move(part);
  round->present[rank] = true;
  round->newest = Clock::now();
  if (++round->count < ranks_) {
    wait(lock, rank, *round, give_up);
  } else {
    round_ = std::make_shared<Round>(ranks_);
    ++calls_;
    lock.unlock();
    std::vector<Result<void>> results = run_for_all(run, round->parts);
    lock.lock();
    round->results = std::move(results);
    round->done = true;
    changed_.notify_all();
  }
  in_call_[rank] = false;
  return round->results[rank];
}

std::vector<Result<void>> RankMeeting::attend_all(std::span<const RankPart> parts, const Run& run) {
  {
    const std::lock_guard lock(lock_);
    const auto busy = std::find(in_call_.begin(), in_call_.end(), true);
    if (busy != in_call_.end()) {
      return std::vector<Result<void>>(ranks_, already_in_call(static_cast<int32_t>(busy - in_call_.begin())));
    }
    in_call_.assign(ranks_, true);
    ++calls_;
  }
  std::vector<Result<void>> results = run_for_all(run, parts);
  const std::lock_guard lock(lock_);
  in_call_.assign(ranks_, false);
  return results;
}

}  // namespace monomoe::layer
