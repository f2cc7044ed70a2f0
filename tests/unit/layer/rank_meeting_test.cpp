// Ranks that meet: the last one runs for all, each gets its own result, a missing one is named, and misuse is refused.
#include "layer/rank_meeting.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace monomoe::layer {
namespace {

RankPart part_with(int64_t tokens) {
  RankPart part;
  part.call.num_tokens = tokens;
  return part;
}

void never(const Error& error) { FAIL() << error.message; }

TEST(RankMeeting, RunsOnceForAllAndGivesEachItsResult) {
  RankMeeting meeting(3, 10000);
  std::atomic<int> runs = 0;
  const auto run = [&](std::span<const RankPart> parts) {
    ++runs;
    std::vector<Result<void>> results;
    for (const RankPart& part : parts) {
      results.push_back(part.call.num_tokens == 12 ? Result<void>(usage_error("twelve")) : Result<void>{});
    }
    return results;
  };
  for (int round = 1; round <= 50; ++round) {
    std::vector<Result<void>> results(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] { results[rank] = meeting.attend(rank, part_with(10 + rank), run, never); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(runs, round);
    EXPECT_TRUE(results[0].ok());
    EXPECT_TRUE(results[1].ok());
    ASSERT_FALSE(results[2].ok());
    EXPECT_EQ(results[2].error().message, "twelve");
  }
}

TEST(RankMeeting, AMissingRankIsNamedToAllWhoWait) {
  RankMeeting meeting(3, 100);
  std::atomic<int> given_up = 0;
  const auto run = [](std::span<const RankPart> parts) { return std::vector<Result<void>>(parts.size()); };
  const auto give_up = [&](const Error& error) {
    ++given_up;
    EXPECT_EQ(error.status, Status::kTimeout);
  };
  Result<void> zero, two;
  std::thread other([&] { zero = meeting.attend(0, {}, run, give_up); });
  two = meeting.attend(2, {}, run, give_up);
  other.join();
  EXPECT_EQ(given_up, 1);
  for (const Result<void>* result : {&zero, &two}) {
    ASSERT_FALSE(result->ok());
    EXPECT_EQ(result->error().status, Status::kTimeout);
    EXPECT_NE(result->error().message.find("rank 1 did not arrive within 100 ms"), std::string::npos) << result->error().message;
  }
  // The meeting itself goes on.
  const std::vector<RankPart> parts(3);
  for (const Result<void>& result : meeting.attend_all(parts, run)) EXPECT_TRUE(result.ok());
}

TEST(RankMeeting, ARunThatThrowsEndsEveryonesCall) {
  RankMeeting meeting(2, 10000);
  const auto run = [](std::span<const RankPart>) -> std::vector<Result<void>> { throw std::bad_alloc(); };
  Result<void> zero, one;
  std::thread other([&] { zero = meeting.attend(0, {}, run, never); });
  one = meeting.attend(1, {}, run, never);
  other.join();
  EXPECT_FALSE(zero.ok());
  EXPECT_FALSE(one.ok());
}

TEST(RankMeeting, TwoCallsOfOneRankAtATimeAreRefused) {
  RankMeeting meeting(1, 10000);
  Result<void> inner, all;
  const auto none = [](std::span<const RankPart> parts) { return std::vector<Result<void>>(parts.size()); };
  const auto run = [&](std::span<const RankPart> parts) {
    inner = meeting.attend(0, {}, none, never);
    all = meeting.attend_all(parts, none)[0];
    return std::vector<Result<void>>(parts.size());
  };
  EXPECT_TRUE(meeting.attend(0, {}, run, never).ok());
  for (const Result<void>* refused : {&inner, &all}) {
    ASSERT_FALSE(refused->ok());
    EXPECT_EQ(refused->error().status, Status::kUsage);
    EXPECT_NE(refused->error().message.find("rank 0 is already in a call"), std::string::npos);
  }
}

}  // namespace
}  // namespace monomoe::layer
