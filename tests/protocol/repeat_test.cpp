// Calls in a row on one workspace: nothing of an earlier call, and no timing, may show in the bits.
#include <gtest/gtest.h>

#include <chrono>

#include "protocol/fake_layer.hpp"

namespace monomoe::cpu::fake {
namespace {

// Delays a rank's tasks at random, each rank by its own seed.
std::function<void(TaskKind)> random_delays(uint32_t seed) {
  auto state = std::make_shared<std::atomic<uint32_t>>(seed * 2654435761u + 1);
  return [state](TaskKind) {
    const uint32_t drawn = state->fetch_add(0x9E3779B9u) * 2246822519u >> 8;
    if (drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 4 % 200));
    if (drawn % 4 == 1) std::this_thread::yield();
  };
}

struct Layers {
  LayerShape shapes[2] = {{128, 32, 8, 4, 1}, {128, 160, 5, 4, 2}};
  // The second layer holds other experts on other ranks, and rank 1 none.
  CpuWeights weights[2] = {make_weights(shapes[0]),
                           make_weights(shapes[1], {{4, 0, 0}, {3, 2, 0}, {2, 2, 1}, {1, 3, 0}, {0, 3, 1}, {4, 3, 2}})};
  static constexpr int64_t kTopk = 3, kCapacity = 24, kMaxSlots = 3;

  std::unique_ptr<CpuWorkspace> workspace() const { return make_workspace(shapes[1], kTopk, kCapacity, kMaxSlots); }
};

std::vector<Tokens> round_tokens(std::mt19937& random, int round, const LayerShape& shape) {
  std::vector<Tokens> tokens;
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t counts[4] = {1, Layers::kCapacity, 0, static_cast<int64_t>(random() % Layers::kCapacity)};
    tokens.push_back(make_tokens(random, counts[(round + (round % 3 == 0 ? 0 : rank)) % 4], Layers::kTopk, shape));
  }
  return tokens;
}

// 240 rounds, each rank in one thread that never waits for the others between calls, so that fast ranks run ahead.
TEST(Repeat, BackToBackCallsOfTwoLayersGiveTheBitsOfFreshOnes) {
  constexpr int kRounds = 240;
  const Layers layers;
  const auto workspace = layers.workspace();
  std::mt19937 random(11);
  std::vector<std::vector<Tokens>> rounds;
  for (int round = 0; round < kRounds; ++round) rounds.push_back(round_tokens(random, round, layers.shapes[round % 2]));
  std::vector<std::string> failures(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const RunOptions options{&kernels(), 1 + rank % 2, 60000};
      for (int round = 0; round < kRounds; ++round) {
        RankCall call = rounds[round][rank].call();
        call.hook = random_delays(round * 4 + rank);
        const auto result = run_rank(layers.weights[round % 2], *workspace, rank, call, options, nullptr);
        if (!result) failures[rank] += result.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < 4; ++rank) {
      const Tokens& tokens = rounds[round][rank];
      ASSERT_EQ(tokens.y, expected(layers.weights[round % 2], tokens, Layers::kTopk)) << "round " << round << ", rank " << rank;
    }
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(workspace->epoch(rank), static_cast<uint64_t>(kRounds));
}

TEST(Repeat, PreviousContentsDoNotShow) {
  const Layers layers;
  std::mt19937 random(12);
  std::vector<Tokens> tokens = round_tokens(random, 1, layers.shapes[1]);
  std::vector<std::vector<uint16_t>> fresh;
  const auto workspace = layers.workspace();
  for (int run = 0; run < 3; ++run) {
    if (run > 0) workspace->poison_bytes(run == 1 ? 0xFF : 0x5A);
    std::vector<RankCall> calls;
    for (Tokens& one : tokens) {
      one.y.assign(one.y.size(), kUntouched);
      calls.push_back(one.call());
    }
    const auto result = run_all(layers.weights[1], *workspace, calls, {&kernels(), 4, 20000}, nullptr);
    ASSERT_TRUE(result.ok()) << result.error().message;
    for (size_t rank = 0; rank < 4; ++rank) {
      if (run == 0) fresh.push_back(tokens[rank].y);
      EXPECT_EQ(tokens[rank].y, fresh[rank]) << "run " << run << ", rank " << rank;
      EXPECT_EQ(tokens[rank].y, expected(layers.weights[1], tokens[rank], Layers::kTopk));
    }
  }
}

}  // namespace
}  // namespace monomoe::cpu::fake
