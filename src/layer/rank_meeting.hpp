// Where the blocking calls of the ranks of one process come together for a backend that starts all ranks at once: the last rank to come runs
// the call for all, each returns with its own result, and a rank that never comes is named to those that wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "cpu/executor_check.hpp"

struct monomoe_weights;

namespace monomoe::layer {

// One rank's part of a call: what it brings, or why it refuses.
struct RankPart {
  const monomoe_weights* weights = nullptr;
  cpu::RankCall call;
  std::optional<cpu::Refusal> refusal;
};

class RankMeeting {
 public:
  using Run = std::function<std::vector<Result<void>>(std::span<const RankPart>)>;
  using GiveUp = std::function<void(const Error&)>;

  RankMeeting(int32_t ranks, uint32_t timeout_ms) : ranks_(ranks), timeout_(timeout_ms), in_call_(ranks), round_(std::make_shared<Round>(ranks)) {}

  // Blocks until all ranks have come and the last one's run is done, or until nobody has come for the timeout: then give_up, once.
  Result<void> attend(int32_t rank, RankPart part, const Run& run, const GiveUp& give_up);
  // All ranks at once, from one thread; refused while a rank is in a call of its own.
  std::vector<Result<void>> attend_all(std::span<const RankPart> parts, const Run& run);

 private:
  using Clock = std::chrono::steady_clock;
  struct Round {
    explicit Round(int32_t ranks) : parts(ranks), present(ranks), results(ranks) {}
    std::vector<RankPart> parts;
    std::vector<bool> present;
    std::vector<Result<void>> results;
    int32_t count = 0;
    bool done = false;
    Clock::time_point newest;
  };
  Error missing_rank(int32_t waiting, const Round& round) const;
  void wait(std::unique_lock<std::mutex>& lock, int32_t rank, Round& round, const GiveUp& give_up);

  const int32_t ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<bool> in_call_;
  uint64_t calls_ = 0;
  std::shared_ptr<Round> round_;  // the one that ranks join
};

}  // namespace monomoe::layer
