// The executor computes the layer whatever the ranks, tokens, experts, copies and workers are.
#include <gtest/gtest.h>

#include <cmath>

#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "protocol/fake_layer.hpp"

namespace monomoe::cpu::fake {
namespace {

RunOptions options_with(int32_t threads) { return {&kernels(), threads, 20000}; }

// Runs counts[rank] random tokens a rank and compares every row with the direct computation.
void check(const CpuWeights& weights, CpuWorkspace& workspace, const LayerShape& shape, int64_t topk, const std::vector<int64_t>& counts,
           int32_t threads) {
  std::mt19937 random(7);
  std::vector<Tokens> tokens;
  for (int64_t count : counts) tokens.push_back(make_tokens(random, count, topk, shape));
  std::vector<RankCall> calls;
  for (Tokens& one : tokens) calls.push_back(one.call());
  const auto result = run_all(weights, workspace, calls, options_with(threads), nullptr);
  ASSERT_TRUE(result.ok()) << result.error().message;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    EXPECT_EQ(tokens[rank].y, expected(weights, tokens[rank], topk)) << "rank " << rank;
  }
}

TEST(Executor, ComputesTheLayerForAnyNumberOfRanksAndWorkers) {
  for (int64_t ranks : {1, 2, 3, 8}) {
    for (int32_t threads : {1, 5}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << threads << " threads");
      const LayerShape shape{384, 160, 8, ranks};
      const CpuWeights weights = make_weights(shape);
      const auto workspace = make_workspace(shape, 3, 40, 8);
      check(weights, *workspace, shape, 3, std::vector<int64_t>(ranks, 33), threads);
    }
  }
}

TEST(Executor, SixtyFourRanks) {
  const LayerShape shape{128, 32, 100, 64};
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 4, 2);
  check(weights, *workspace, shape, 2, std::vector<int64_t>(64, 3), 1);
}

TEST(Executor, ZeroTokensOnSomeOrAllRanks) {
  const LayerShape shape;
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 20, 2);
  check(weights, *workspace, shape, 2, {5, 0, 20, 1}, 4);
  check(weights, *workspace, shape, 2, {0, 0, 0, 0}, 4);
  check(weights, *workspace, shape, 2, {0, 0, 0, 1}, 4);
}

TEST(Executor, CapacityZero) {
  const LayerShape shape;
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 0, 2);
  check(weights, *workspace, shape, 2, {0, 0, 0, 0}, 4);
}

TEST(Executor, RanksWithoutExpertsAndRedundantCopies) {
  const LayerShape shape{128, 32, 3, 5};
  // Ranks 1 and 4 hold nothing; expert 0 has three copies.
  const CpuWeights weights = make_weights(shape, {{0, 0, 0}, {1, 0, 1}, {0, 2, 1}, {2, 2, 0}, {0, 3, 0}});
  const auto workspace = make_workspace(shape, 2, 20, 2);
  check(weights, *workspace, shape, 2, {17, 20, 3, 0, 9}, 5);
}

TEST(Executor, AllTokensToOneExpertFillSeveralBlocks) {
  const LayerShape shape{128, 32, 4, 2};
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 200, 2);
  std::mt19937 random(3);
  std::vector<Tokens> tokens;
  for (int rank = 0; rank < 2; ++rank) {
    tokens.push_back(make_tokens(random, 200, 2, shape));
    for (int32_t& id : tokens.back().ids) id = 3;  // twice in every token: each slot counts
    for (float& weight : tokens.back().weights) weight = 0.75f;
  }
  std::vector<RankCall> calls{tokens[0].call(), tokens[1].call()};
  const auto result = run_all(weights, *workspace, calls, options_with(4), nullptr);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(tokens[0].y, expected(weights, tokens[0], 2));
  EXPECT_EQ(tokens[1].y, expected(weights, tokens[1], 2));
}

TEST(Executor, DroppedTokensAreZeroAndTheirWeightsAreNotRead) {
  const LayerShape shape{128, 32, 8, 2};
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 8, 4);
  std::mt19937 random(5);
  std::vector<Tokens> tokens{make_tokens(random, 3, 2, shape), make_tokens(random, 1, 2, shape)};
  tokens[0].ids = {-1, 4, -7, -1, 2, 2};
  tokens[0].weights = {NAN, 1.0f, NAN, NAN, 0.5f, 0.25f};
  tokens[1].ids = {-1, -1};
  tokens[1].weights = {NAN, NAN};
  std::vector<RankCall> calls{tokens[0].call(), tokens[1].call()};
  ASSERT_TRUE(run_all(weights, *workspace, calls, options_with(2), nullptr).ok());
  EXPECT_EQ(tokens[0].y, expected(weights, tokens[0], 2));
  for (int64_t i = 0; i < 128; ++i) {
    EXPECT_EQ(tokens[0].y[128 + i], 0);
    EXPECT_EQ(tokens[1].y[i], 0);
    EXPECT_FALSE(is_nan(bf16_decode(tokens[0].y[i])));
  }
}

TEST(Executor, ANanRowReachesNoOtherRow) {
  const LayerShape shape{256, 32, 4, 2};
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 16, 2);
  std::mt19937 random(6);
  std::vector<Tokens> tokens{make_tokens(random, 16, 2, shape), make_tokens(random, 16, 2, shape)};
  for (Tokens& one : tokens) {
    for (size_t i = 0; i < one.ids.size(); ++i) {
      one.ids[i] = static_cast<int32_t>(i % 4);
      one.weights[i] = 1.0f;
    }
  }
  tokens[0].x[5 * 256 + 200] = kBf16NaN;
  std::vector<RankCall> calls{tokens[0].call(), tokens[1].call()};
  ASSERT_TRUE(run_all(weights, *workspace, calls, options_with(3), nullptr).ok());
  for (int64_t i = 0; i < 16 * 256; ++i) {
    EXPECT_EQ(is_nan(bf16_decode(tokens[0].y[i])), i / 256 == 5) << i;
    EXPECT_FALSE(is_nan(bf16_decode(tokens[1].y[i]))) << i;
  }
}

TEST(Executor, GivenRowsAndWideIdsAreTheSameAsOwnQuantisation) {
  const LayerShape shape{256, 64, 8, 2};
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 20, 4);
  std::mt19937 random(8);
  std::vector<Tokens> tokens{make_tokens(random, 20, 2, shape), make_tokens(random, 19, 2, shape)};
  std::vector<std::vector<uint8_t>> codes(2);
  std::vector<std::vector<float>> scales(2);
  std::vector<std::vector<int64_t>> ids(2);
  std::vector<RankCall> calls;
  for (int rank = 0; rank < 2; ++rank) {
    const Tokens& one = tokens[rank];
    for (uint16_t value : one.x) codes[rank].push_back(static_cast<uint8_t>(value));
    for (size_t i = 0; i < one.x.size(); i += 128) scales[rank].push_back(1.0f + one.x[i] % 16);
    ids[rank].assign(one.ids.begin(), one.ids.end());
    calls.push_back(tokens[rank].call());
    calls[rank].quantised = calls[rank].wide_ids = true;
    calls[rank].x = codes[rank].data();
    calls[rank].x_scales = scales[rank].data();
    calls[rank].topk_ids = ids[rank].data();
  }
  ASSERT_TRUE(run_all(weights, *workspace, calls, options_with(2), nullptr).ok());
  EXPECT_EQ(tokens[0].y, expected(weights, tokens[0], 2));
  EXPECT_EQ(tokens[1].y, expected(weights, tokens[1], 2));
}

TEST(Executor, TimesAreThoseOfTheStages) {
  const LayerShape shape;
  const CpuWeights weights = make_weights(shape);
  const auto workspace = make_workspace(shape, 2, 20, 2);
  std::mt19937 random(9);
  std::vector<Tokens> tokens;
  std::vector<RankCall> calls;
  for (int rank = 0; rank < 4; ++rank) tokens.push_back(make_tokens(random, 20, 2, shape));
  for (Tokens& one : tokens) calls.push_back(one.call());
  StageTimes times;
  ASSERT_TRUE(run_all(weights, *workspace, calls, options_with(4), &times).ok());
  for (double stage : {times.wall, times.dispatch, times.routes, times.gemm1, times.gemm2, times.combine}) EXPECT_GT(stage, 0.0);
  EXPECT_GE(times.wait, 0.0);
}

}  // namespace
}  // namespace monomoe::cpu::fake
