// Routing against values worked out by hand.
#include "weights/router.hpp"

#include <cmath>

#include "numerics/bf16.h"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::bytes_of;
using test_support::expect_error;

// A router whose logit of expert e is x[0] * column[e] (hidden size 2, the second column zero).
struct Held {
  Bytes weight, bias, table;
  RouterTensors tensors;
};

Held router(const std::vector<float>& column, const std::vector<float>& bias = {}) {
  Held h;
  std::vector<float> values;
  for (const float v : column) values.insert(values.end(), {v, 0.0f});
  h.weight = bytes_of(values);
  h.bias = bytes_of(bias);
  h.tensors.experts = static_cast<int64_t>(column.size());
  h.tensors.hidden = 2;
  h.tensors.weight_type = DType::F32;
  h.tensors.weight = h.weight.data();
  h.tensors.bias = bias.empty() ? nullptr : h.bias.data();
  return h;
}

std::vector<uint16_t> rows(const std::vector<float>& first_values) {
  std::vector<uint16_t> x;
  for (const float v : first_values) x.insert(x.end(), {bf16_encode(v), bf16_encode(0.0f)});
  return x;
}

RouterConfig settings(Scoring scoring, int64_t topk, bool norm = false, double factor = 1.0) {
  RouterConfig config;
  config.scoring = scoring;
  config.topk = topk;
  config.norm_topk_prob = norm;
  config.routed_scaling_factor = factor;
  return config;
}

Routing routed(const Held& h, const RouterConfig& config, const std::vector<float>& x) {
  const std::vector<uint16_t> codes = rows(x);
  Result<Routing> result = route(h.tensors, config, codes, static_cast<int64_t>(x.size()));
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? result.take() : Routing{};
}

TEST(Router, SoftmaxScores) {
  const Routing r = routed(router({0, 1, 2}), settings(Scoring::kSoftmax, 2), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{2, 1}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.66524096f);
  EXPECT_FLOAT_EQ(r.weights[1], 0.24472848f);
}

TEST(Router, SoftmaxRenormalised) {
  const Routing r = routed(router({0, 1, 2}), settings(Scoring::kSoftmax, 2, true), {1});
  EXPECT_FLOAT_EQ(r.weights[0], 0.73105858f);
  EXPECT_FLOAT_EQ(r.weights[1], 0.26894142f);
}

TEST(Router, SoftmaxOfLargeLogitsStaysFinite) {
  const Routing r = routed(router({0, 1000, 1000}), settings(Scoring::kSoftmax, 3), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{1, 2, 0}));
  EXPECT_EQ(r.weights, (std::vector<float>{0.5f, 0.5f, 0.0f}));
}

TEST(Router, SigmoidScores) {
  const Routing r = routed(router({-1, 0, 1}), settings(Scoring::kSigmoid, 3), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{2, 1, 0}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.73105858f);
  EXPECT_EQ(r.weights[1], 0.5f);
  EXPECT_FLOAT_EQ(r.weights[2], 0.26894142f);
}

TEST(Router, SqrtSoftplusScores) {
  const Routing r = routed(router({0, 100, -20}), settings(Scoring::kSqrtSoftplus, 3), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{1, 0, 2}));
  EXPECT_FLOAT_EQ(r.weights[0], 10.0f);          // softplus(100) = 100
  EXPECT_FLOAT_EQ(r.weights[1], 0.83255461f);    // sqrt(ln 2)
  EXPECT_FLOAT_EQ(r.weights[2], 4.5399930e-5f);  // sqrt(e^-20)
}

TEST(Router, TheBiasSelectsButDoesNotWeigh) {
  const Routing r = routed(router({1, 0, -1}, {0, 0, 5}), settings(Scoring::kSigmoid, 2), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{2, 0}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.26894142f);
  EXPECT_FLOAT_EQ(r.weights[1], 0.73105858f);
}

TEST(Router, TheScalingFactorCountsOnce) {
  const Routing one = routed(router({1}), settings(Scoring::kSigmoid, 1, false, 2.5), {1});
  EXPECT_FLOAT_EQ(one.weights[0], 2.5f * 0.73105858f);  // 1.827646, not 4.569116
  const Routing normalised = routed(router({1, 1, 0}), settings(Scoring::kSigmoid, 2, true, 2.5), {1});
  EXPECT_EQ(normalised.weights, (std::vector<float>{1.25f, 1.25f}));
}

TEST(Router, TiesGoToTheLowerExpert) {
  const Routing r = routed(router({1, 2, 2, 2, 1}), settings(Scoring::kSigmoid, 4), {1});
  EXPECT_EQ(r.ids, (std::vector<int64_t>{1, 2, 3, 0}));
}

TEST(Router, OnlyTheBestGroupsCompete) {
  // Groups {0,1}, {2,3}, {4,5}; the sums of two: 0.9, 1.4, 1.1 (biases on scores of 0.5).
  const Held h = router({0, 0, 0, 0, 0, 0}, {0.4f, -0.5f, 0.2f, 0.2f, 0.3f, -0.2f});
  RouterConfig config = settings(Scoring::kSigmoid, 2);
  config.groups = 3;
  config.topk_groups = 1;
  EXPECT_EQ(routed(h, config, {1}).ids, (std::vector<int64_t>{2, 3}));
  config.topk_groups = 2;
  EXPECT_EQ(routed(h, config, {1}).ids, (std::vector<int64_t>{4, 2}));  // expert 0, the best of all, is in the lost group
  config.topk_groups = 1;
  config.best_per_group = 1;
  EXPECT_EQ(routed(h, config, {1}).ids, (std::vector<int64_t>{0, 1}));  // 0.9 is the best single score
  config.topk_groups = 3;
  EXPECT_EQ(routed(h, config, {1}).ids, (std::vector<int64_t>{0, 4}));
}

TEST(Router, ARowOfNansTouchesNoOther) {
  const Held h = router({1, 2, 3});
  const Routing clean = routed(h, settings(Scoring::kSigmoid, 2, true), {1, 2, -1, 0.5f, 3});
  const Routing dirty = routed(h, settings(Scoring::kSigmoid, 2, true), {1, NAN, -1, INFINITY, 3});
  for (const size_t row : {0u, 2u, 4u}) {
    for (size_t slot = 0; slot < 2; ++slot) {
      EXPECT_EQ(dirty.ids[row * 2 + slot], clean.ids[row * 2 + slot]);
      EXPECT_EQ(dirty.weights[row * 2 + slot], clean.weights[row * 2 + slot]);
    }
  }
  for (const size_t row : {1u, 3u}) {
    EXPECT_EQ(dirty.ids[row * 2], 0);
    EXPECT_EQ(dirty.ids[row * 2 + 1], 1);
    EXPECT_TRUE(std::isnan(dirty.weights[row * 2]) && std::isnan(dirty.weights[row * 2 + 1]));
  }
}

TEST(Router, ATokensRoutingDoesNotDependOnItsBatch) {
  constexpr int64_t kExperts = 37, kHidden = 96, kTokens = 9;
  uint32_t state = 1;
  auto next = [&state] { return static_cast<float>(static_cast<int32_t>(state = state * 1664525u + 1013904223u)) * 0x1p-31f; };
  std::vector<uint16_t> weight(kExperts * kHidden), x(kTokens * kHidden);
  for (uint16_t& w : weight) w = bf16_encode(next());
  for (uint16_t& v : x) v = bf16_encode(next());
  const Bytes bytes = bytes_of(weight);
  RouterTensors tensors;
  tensors.experts = kExperts;
  tensors.hidden = kHidden;
  tensors.weight = bytes.data();
  const RouterConfig config = settings(Scoring::kSqrtSoftplus, 5, true, 1.5);
  const Routing all = route(tensors, config, x, kTokens).take();
  for (int64_t t = 0; t < kTokens; ++t) {
    const Routing one = route(tensors, config, std::span(x).subspan(static_cast<size_t>(t * kHidden), kHidden), 1).take();
    for (int64_t slot = 0; slot < 5; ++slot) {
      EXPECT_EQ(one.ids[static_cast<size_t>(slot)], all.ids[static_cast<size_t>(t * 5 + slot)]);
      EXPECT_EQ(one.weights[static_cast<size_t>(slot)], all.weights[static_cast<size_t>(t * 5 + slot)]);
    }
  }
}

TEST(Router, LogitsAreRoundedOnceFromDouble) {
  // 1 + 2^-25 rounds to 1 only at the end: subtracting 1 afterwards must leave 2^-25, which a sum in fp32 would lose.
  Held h = router({0});
  h.tensors.hidden = 3;
  h.weight = bytes_of(std::vector<float>{1.0f, 0x1p-25f, -1.0f});
  h.tensors.weight = h.weight.data();
  const std::vector<uint16_t> x(3, 0x3F80);
  const Routing r = route(h.tensors, settings(Scoring::kSqrtSoftplus, 1), x, 1).take();
  EXPECT_EQ(r.weights[0], static_cast<float>(std::sqrt(std::log1p(std::exp(-0x1p-25)) + 0x1p-25)));
  h.weight = bytes_of(std::vector<float>{0x1p24f, 1.0f, -0x1p24f});
  h.tensors.weight = h.weight.data();
  EXPECT_FLOAT_EQ(route(h.tensors, settings(Scoring::kSigmoid, 1), x, 1).value().weights[0], 0.73105858f);
}

TEST(Router, HashLayersTakeTheirTablesExpertsAndTheGatesWeights) {
  for (const bool wide : {true, false}) {
    Held h = router({1, 2, 3});
    h.table = wide ? bytes_of(std::vector<int64_t>{2, 0, 1, 1}) : bytes_of(std::vector<int32_t>{2, 0, 1, 1});
    h.tensors.table_type = wide ? DType::I64 : DType::I32;
    h.tensors.table = h.table.data();
    h.tensors.vocabulary = 2;
    h.tensors.table_topk = 2;
    const std::vector<int64_t> ids{1, 0};
    Result<Routing> r = route(h.tensors, settings(Scoring::kSigmoid, 2, true, 3.0), rows({0, 0}), 2, ids);
    ASSERT_TRUE(r.ok()) << r.error().message;
    EXPECT_EQ(r.value().ids, (std::vector<int64_t>{1, 1, 2, 0}));
    EXPECT_EQ(r.value().weights, (std::vector<float>{1.5f, 1.5f, 1.5f, 1.5f}));
    expect_error(route(h.tensors, settings(Scoring::kSigmoid, 2), rows({0, 0}), 2, std::vector<int64_t>{0, 2}),
                 {"token 1", "token id 2", "0 to 1"});
    expect_error(route(h.tensors, settings(Scoring::kSigmoid, 2), rows({0}), 1, std::vector<int64_t>{-1}), {"token 0", "token id -1"});
    expect_error(route(h.tensors, settings(Scoring::kSigmoid, 2), rows({0}), 1), {"token_ids", "tid2eid"});
    expect_error(route(h.tensors, settings(Scoring::kSigmoid, 1), rows({0}), 1, std::vector<int64_t>{0}),
                 {"2 experts a token", "wanted top-k 1"});
    h.table[0] = 3;
    expect_error(route(h.tensors, settings(Scoring::kSigmoid, 2), rows({0}), 1, std::vector<int64_t>{0}),
                 {"tid2eid[0][0]", "expert 3", "0 to 2"});
  }
}

TEST(Router, NoTokensIsLegalAndWrongSizesAreNot) {
  const Held h = router({1, 2, 3});
  EXPECT_EQ(route(h.tensors, settings(Scoring::kSigmoid, 2), {}, 0).value().ids.size(), 0u);
  expect_error(route(h.tensors, settings(Scoring::kSigmoid, 4), rows({0}), 1), {"top-k is 4", "1 to 3"});
  expect_error(route(h.tensors, settings(Scoring::kSigmoid, 0), rows({0}), 1), {"top-k is 0"});
  expect_error(route(h.tensors, settings(Scoring::kSigmoid, 1), rows({0}), 2), {"x has 2 values", "2 tokens of 2"});
  RouterConfig groups = settings(Scoring::kSigmoid, 1);
  groups.groups = 2;
  expect_error(route(h.tensors, groups, rows({0}), 1), {"n_group 2", "3 experts"});
}

TEST(Router, ABf16BiasIsRead) {
  Held h = router({0, 0, 0});
  h.bias = bytes_of(std::vector<uint16_t>{bf16_encode(0), bf16_encode(1), bf16_encode(2)});
  h.tensors.bias = h.bias.data();
  h.tensors.bias_type = DType::BF16;
  EXPECT_EQ(routed(h, settings(Scoring::kSigmoid, 3), {1}).ids, (std::vector<int64_t>{2, 1, 0}));
}

}  // namespace
}  // namespace monomoe
