// What goes wrong: a rank that is silent, late, stuck in the middle or refuses. Every rank's call ends with a sentence, y is
// whole or untouched, and the workspace is usable or says why not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "protocol/fake_layer.hpp"

namespace monomoe::cpu::fake {
namespace {

constexpr int64_t kTopk = 2, kCapacity = 128;

class Failure : public ::testing::Test {
 protected:
  LayerShape shape{128, 32, 8, 3};
  CpuWeights weights = make_weights(shape);
  std::unique_ptr<CpuWorkspace> workspace = make_workspace(shape, kTopk, kCapacity, 3);
  std::mt19937 random{21};
  std::vector<Tokens> tokens;
  std::vector<RankCall> calls;

  void bring(const std::vector<int64_t>& counts) {
    tokens.clear();
    calls.clear();
    for (int64_t count : counts) tokens.push_back(make_tokens(random, count, kTopk, shape));
    for (Tokens& one : tokens) calls.push_back(one.call());
  }
  RunOptions options(uint32_t timeout_ms, int32_t threads = 2) const { return {&kernels(), threads, timeout_ms}; }
  bool untouched(int rank) const {
    return std::all_of(tokens[rank].y.begin(), tokens[rank].y.end(), [](uint16_t value) { return value == kUntouched; });
  }
  // A call of all ranks that must succeed with the right bits.
  void expect_works() {
    bring({128, 7, 0});
    const auto results = collective(weights, *workspace, calls, options(60000));
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(results[rank].ok()) << results[rank].error().message;
      EXPECT_EQ(tokens[rank].y, expected(weights, tokens[rank], kTopk));
    }
  }
  static bool contains(const Error& error, const std::string& text) { return error.message.find(text) != std::string::npos; }
};

TEST_F(Failure, ASilentRankIsNamedByAllOthers) {
  expect_works();
  bring({20, 5, 20});
  const auto results = collective(weights, *workspace, calls, options(500), 1u << 1);
  for (int rank : {0, 2}) {
    ASSERT_FALSE(results[rank].ok());
    EXPECT_EQ(results[rank].error().status, Status::kTimeout);
    EXPECT_TRUE(contains(results[rank].error(), "route lists: rank 1 did not arrive within 500 ms (flag arrived, expected epoch 2, seen 1)"))
        << results[rank].error().message;
    EXPECT_TRUE(untouched(rank));
  }
  // The workspace is done for, the late rank learns why, and a new one works.
  EXPECT_TRUE(workspace->poisoned());
  const auto later = collective(weights, *workspace, calls, options(500));
  for (const auto& result : later) {
    EXPECT_EQ(result.error().status, Status::kPoisoned);
    EXPECT_TRUE(contains(result.error(), "rank 1 did not arrive")) << result.error().message;
  }
  workspace = make_workspace(shape, kTopk, kCapacity, 3);
  expect_works();
}

TEST_F(Failure, ALateRankSucceeds) {
  bring({20, 5, 20});
  calls[1].hook = [](TaskKind kind) {
    if (kind == TaskKind::kNone) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  const auto results = collective(weights, *workspace, calls, options(60000));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(results[rank].ok()) << results[rank].error().message;
    EXPECT_EQ(tokens[rank].y, expected(weights, tokens[rank], kTopk));
  }
}

// Rank 1 stops in front of the given task until the others have given up; then it must leave too.
void stop_in_front_of(TaskKind stop, RankCall& call, const std::atomic<bool>& released) {
  call.hook = [&released, stop](TaskKind kind) {
    while (kind == stop && !released.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
}

TEST_F(Failure, ARankStuckInTheMiddleTimesOutEverywhere) {
  for (TaskKind stop : {TaskKind::kDispatch, TaskKind::kGemm1, TaskKind::kGemm2}) {
    SCOPED_TRACE(static_cast<int>(stop));
    workspace = make_workspace(shape, kTopk, kCapacity, 3);
    expect_works();
    bring({30, 30, 30});
    for (Tokens& one : tokens) {
      for (size_t i = 0; i < one.ids.size(); ++i) {
        one.ids[i] = static_cast<int32_t>(i % 8);  // every rank serves every other
        one.weights[i] = 1.0f;
      }
    }
    std::atomic<bool> released{false};
    stop_in_front_of(stop, calls[1], released);
    std::atomic<int> left{0};
    std::vector<Result<void>> results(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        results[rank] = run_rank(weights, *workspace, rank, calls[rank], options(500, 1), nullptr);
        if (rank != 1 && ++left == 2) released = true;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_FALSE(results[rank].ok());
      EXPECT_EQ(results[rank].error().status, Status::kTimeout) << results[rank].error().message;
      // In front of GEMM2 rank 1 has given every sign but the last: a token that rank 0 serves too could miss either's part.
      const bool named = contains(results[rank].error(), ": rank 1 did not");
      EXPECT_TRUE(named || (stop == TaskKind::kGemm2 && contains(results[rank].error(), "one of the ranks that serve it")))
          << results[rank].error().message;
      EXPECT_TRUE(untouched(rank));
    }
  }
}

// Rank 1 is stuck. Rank 0 needs nothing from it and succeeds. Of rank 2's tokens the first chunk is complete, but not the
// second: nothing of its y may be written.
TEST_F(Failure, YIsWholeOrUntouched) {
  bring({20, 0, 20});
  for (int rank : {0, 2}) {
    for (size_t i = 0; i < tokens[rank].ids.size(); ++i) {
      const bool to_stuck_rank = rank == 2 && i / kTopk >= 16;
      tokens[rank].ids[i] = to_stuck_rank ? 4 : rank == 0 ? 1 : 7;
      tokens[rank].weights[i] = 1.0f;
    }
  }
  std::atomic<bool> released{false};
  stop_in_front_of(TaskKind::kGemm2, calls[1], released);
  std::vector<Result<void>> results(3);
  std::thread stuck([&] { results[1] = run_rank(weights, *workspace, 1, calls[1], options(1000, 1), nullptr); });
  std::thread complete([&] { results[0] = run_rank(weights, *workspace, 0, calls[0], options(1000, 3), nullptr); });
  results[2] = run_rank(weights, *workspace, 2, calls[2], options(1000, 3), nullptr);
  released = true;
  stuck.join();
  complete.join();
  ASSERT_TRUE(results[0].ok()) << results[0].error().message;
  EXPECT_EQ(tokens[0].y, expected(weights, tokens[0], kTopk));
  for (int rank : {1, 2}) EXPECT_EQ(results[rank].error().status, Status::kTimeout);
  EXPECT_TRUE(contains(results[2].error(), "rank 2, combine: rank 1 did not send its contributions to token 16 within 1000 ms (flag arrivals, "
                                           "expected pieces 2, seen 0)"))
      << results[2].error().message;
  EXPECT_TRUE(untouched(2));
  EXPECT_EQ(run_rank(weights, *workspace, 0, calls[0], options(1000), nullptr).error().status, Status::kPoisoned);
}

// A rank that works for longer than the timeout, task by task, is not silent: here 12 GEMM2 tasks after its last other flag.
TEST_F(Failure, SlowProgressIsNotSilence) {
  shape.hidden = 1024;
  weights = make_weights(shape);
  workspace = make_workspace(shape, kTopk, kCapacity, 3);
  bring({1, 1, 1});
  for (int rank = 0; rank < 3; ++rank) {
    tokens[rank].ids = {3 + rank, 4};  // all on rank 1, three experts
    tokens[rank].weights = {1.0f, 1.0f};
  }
  calls[1].hook = [](TaskKind kind) {
    if (kind == TaskKind::kGemm2) std::this_thread::sleep_for(std::chrono::milliseconds(120));
  };
  const auto results = collective(weights, *workspace, calls, options(700, 1));
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(results[rank].ok()) << results[rank].error().message;
    EXPECT_EQ(tokens[rank].y, expected(weights, tokens[rank], kTopk));
  }
}

TEST_F(Failure, TooManyTokensAreRejectedOnAllRanksAtOnce) {
  expect_works();
  bring({10, 129, 10});
  const auto begin = std::chrono::steady_clock::now();
  const auto results = collective(weights, *workspace, calls, options(3600 * 1000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(30));
  EXPECT_EQ(results[1].error().status, Status::kUsage);
  EXPECT_TRUE(contains(results[1].error(), "rank 1: 129 tokens exceed the capacity of 128")) << results[1].error().message;
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[rank].error().status, Status::kRejected);
    EXPECT_TRUE(contains(results[rank].error(), "rank 1 refused this call: 129 tokens exceed the capacity of 128;"))
        << results[rank].error().message;
    EXPECT_TRUE(untouched(rank));
  }
  EXPECT_FALSE(workspace->poisoned());
  expect_works();
}

TEST_F(Failure, RefusalsInARowByChangingRanksLeaveTheWorkspaceUsable) {
  std::vector<std::vector<Status>> wanted;
  for (int round = 0; round < 12; ++round) {
    bring({10, 20, 1});
    uint32_t refusing = 1 + random() % 7;  // one to three ranks at once
    for (int rank = 0; rank < 3; ++rank) {
      if ((refusing >> rank & 1) != 0) tokens[rank].ids[0] = 8;
    }
    const auto results = collective(weights, *workspace, calls, options(60000));
    for (int rank = 0; rank < 3; ++rank) {
      const bool refused = (refusing >> rank & 1) != 0;
      ASSERT_EQ(results[rank].error().status, refused ? Status::kUsage : Status::kRejected) << results[rank].error().message;
      EXPECT_TRUE(contains(results[rank].error(), "expert id 8 ")) << results[rank].error().message;
      EXPECT_TRUE(untouched(rank));
    }
    if (round % 3 == 2) expect_works();
  }
}

// A rank that refuses twice before the others have begun the first of the two calls: they are rejected twice and then go on.
TEST_F(Failure, ARankMayRefuseAheadOfTheOthers) {
  bring({3, 3, 3});
  RankCall bad = calls[0];
  bad.y = nullptr;
  for (int call = 0; call < 2; ++call) {
    const auto result = run_rank(weights, *workspace, 0, bad, options(60000), nullptr);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().status, Status::kUsage);
    EXPECT_TRUE(contains(result.error(), "rank 0: y is null")) << result.error().message;
  }
  for (int call = 0; call < 2; ++call) {
    const auto results = collective(weights, *workspace, calls, options(60000), 1u << 0);
    for (int rank : {1, 2}) {
      EXPECT_EQ(results[rank].error().status, Status::kRejected);
      EXPECT_TRUE(contains(results[rank].error(), "rank 0 refused this call: one of its arguments is wrong"))
          << results[rank].error().message;
    }
  }
  expect_works();
}

TEST_F(Failure, RunAllReportsTheRankThatFailedByItself) {
  bring({3, 3, 3});
  tokens[2].ids[1] = 1000;
  const auto result = run_all(weights, *workspace, calls, options(60000), nullptr);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().status, Status::kUsage);
  EXPECT_EQ(result.error().message, "rank 2: expert id 1000 of token 0, slot 1 is not below 8; use a negative id to drop a slot");
  expect_works();
}

TEST_F(Failure, ALayerThatDoesNotFitTheWorkspaceIsRefused) {
  const CpuWeights wide = make_weights({128, 64, 8, 3});
  const CpuWeights other = make_weights({256, 32, 8, 3});
  const CpuWeights crowded = make_weights({128, 32, 12, 3});
  bring({1, 1, 1});
  for (const CpuWeights* layer : {&wide, &other, &crowded}) {
    const auto result = run_all(*layer, *workspace, calls, options(60000), nullptr);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().status, Status::kUsage);
    EXPECT_TRUE(contains(result.error(), "the workspace was made for")) << result.error().message;
  }
  expect_works();
}

TEST_F(Failure, RanksOutOfStepAreNoticed) {
  const CpuWeights other = make_weights({128, 32, 8, 3, 2});
  bring({20, 20, 20});
  std::vector<Result<void>> results(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = run_rank(rank == 1 ? other : weights, *workspace, rank, calls[rank], options(60000), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_FALSE(results[rank].ok());
    EXPECT_EQ(results[rank].error().status, Status::kUsage);
    EXPECT_TRUE(contains(results[rank].error(), "uses other weights in this call")) << results[rank].error().message;
    EXPECT_TRUE(untouched(rank));
  }
  EXPECT_TRUE(workspace->poisoned());
}

TEST_F(Failure, OneCallAtATimePerRank) {
  bring({1, 1, 1});
  std::atomic<bool> inside{false}, release{false};
  calls[0].hook = [&](TaskKind kind) {
    if (kind != TaskKind::kNone) return;
    inside = true;
    while (!release) std::this_thread::yield();
  };
  std::vector<Result<void>> results;
  std::thread collective_call([&] { results = collective(weights, *workspace, calls, options(60000)); });
  while (!inside) std::this_thread::yield();
  const auto second = run_rank(weights, *workspace, 0, calls[0], options(60000), nullptr);
  EXPECT_EQ(second.error().message, "rank 0 is already in a call on this workspace; one call at a time");
  release = true;
  collective_call.join();
  for (const auto& result : results) EXPECT_TRUE(result.ok());
}

}  // namespace
}  // namespace monomoe::cpu::fake
