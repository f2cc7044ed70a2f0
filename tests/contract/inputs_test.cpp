// Forms the same input may come in, and handles that are shared or changed between calls.
#include <algorithm>
#include <cstring>

#include "contract/abi_layer.hpp"
#include "reference/layer_input.hpp"

namespace monomoe::contract {
namespace {

constexpr const char* kLine = "ranks=2 experts=5 topk=2 tokens=21 hidden=256 inter=96 w=nvfp4 seed=201 limit=3 dist=masked";

// Context, weights and workspace for a layer on two ranks.
struct Session {
  explicit Session(const AbiLayer& layer, int64_t capacity = 64)
      : context(make_context(2)), weights(layer.weights(context)), workspace(layer.workspace(context, weights, capacity)) {}
  monomoe_status forward(const std::vector<monomoe_tokens>& tokens) {
    return monomoe_forward(weights.get(), workspace.get(), tokens.data(), nullptr);
  }
  ContextHandle context;
  WeightsHandle weights;
  WorkspaceHandle workspace;
};

TEST(Ids, I32AndI64AreTheSame) {
  const AbiLayer layer(kLine);
  Session session(layer);
  std::vector<uint16_t> y;
  std::vector<monomoe_tokens> tokens = layer.tokens({10, 11}, y);
  const std::vector<int32_t> narrow(layer.random.ids.begin(), layer.random.ids.end());
  for (int rank = 0; rank < 2; ++rank) {
    tokens[rank].ids_dtype = MONOMOE_DTYPE_I32;
    tokens[rank].topk_ids = narrow.data() + rank * 10 * 2;
  }
  ASSERT_EQ(session.forward(tokens), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));
}

TEST(Rows, AlreadyQuantisedOnesGiveTheSame) {
  const AbiLayer layer(kLine);
  Session session(layer);
  const StagedTokens staged = stage_tokens(layer.random.input(layer.c));
  std::vector<uint16_t> y;
  std::vector<monomoe_tokens> tokens = layer.tokens({21, 0}, y);
  tokens[0].x_dtype = MONOMOE_DTYPE_E4M3;
  tokens[0].x = staged.codes.data();
  tokens[0].x_scales = staged.scales.data();
  ASSERT_EQ(session.forward(tokens), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));
}

TEST(Tokens, NoneOnAnyRankWithNullPointers) {
  const AbiLayer layer(kLine);
  Session session(layer);
  std::vector<uint16_t> y;
  ASSERT_EQ(session.forward(layer.tokens({0, 0}, y)), MONOMOE_OK) << monomoe_last_error();
  ASSERT_EQ(session.forward(layer.tokens({0, 21}, y)), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));
  Session empty(layer, 0);  // a capacity of zero is legal
  EXPECT_EQ(empty.forward(layer.tokens({0, 0}, y)), MONOMOE_OK) << monomoe_last_error();
}

TEST(ReplaceExpert, IsTheLayerWithThatExpert) {
  AbiLayer layer(kLine);
  const AbiLayer other("ranks=2 experts=5 topk=2 tokens=21 hidden=256 inter=96 w=nvfp4 seed=202");
  Session session(layer);
  ASSERT_EQ(monomoe_weights_replace_expert(session.weights.get(), 2, &other.experts[2]), MONOMOE_OK) << monomoe_last_error();
  layer.sources[2] = other.sources[2];
  std::vector<uint16_t> y;
  ASSERT_EQ(session.forward(layer.tokens({10, 11}, y)), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));

  // A refused one leaves everything as it was.
  std::vector<uint8_t> scales(layer.random.experts[0].down.scales);
  scales[7] = 0x7F;  // NaN
  monomoe_expert broken = layer.experts[0];
  broken.down.scales = scales.data();
  EXPECT_EQ(monomoe_weights_replace_expert(session.weights.get(), 1, &broken), MONOMOE_BAD_INPUT);
  EXPECT_NE(std::string(monomoe_last_error()).find("expert 1 down"), std::string::npos) << monomoe_last_error();
  EXPECT_EQ(monomoe_weights_replace_expert(session.weights.get(), 5, &other.experts[2]), MONOMOE_USAGE);
  ASSERT_EQ(session.forward(layer.tokens({10, 11}, y)), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));
}

monomoe_packed_experts packed_experts(const WeightsHandle& weights, int32_t rank) {
  monomoe_packed_experts packed{};
  packed.struct_size = sizeof(packed);
  EXPECT_EQ(monomoe_weights_packed_experts(weights.get(), rank, &packed), MONOMOE_OK) << monomoe_last_error();
  return packed;
}

TEST(PackedExperts, AreRowsThatMayBeMoved) {
  // Rank 0 holds experts 0..2, rank 1 holds 3 and 4. Expert 4's bytes go to the place of expert 0, and 0's to the place of 4.
  AbiLayer layer(kLine);
  Session session(layer);
  const monomoe_packed_experts first = packed_experts(session.weights, 0), second = packed_experts(session.weights, 1);
  EXPECT_EQ(first.num_experts, 3);
  EXPECT_EQ(second.num_experts, 2);
  ASSERT_EQ(first.expert_bytes, second.expert_bytes);
  EXPECT_EQ(first.expert_bytes % 1024, 0);
  EXPECT_EQ(first.gpu >= 0, suite_backend() == "cuda");
  if (suite_backend() == "cuda") GTEST_SKIP() << "the bytes are on the GPU: tests/python/gpu_check.py moves them";
  auto* source = static_cast<uint8_t*>(first.data);
  std::swap_ranges(source, source + first.expert_bytes, static_cast<uint8_t*>(second.data) + second.expert_bytes);
  std::swap(layer.sources[0], layer.sources[4]);
  std::vector<uint16_t> y;
  ASSERT_EQ(session.forward(layer.tokens({10, 11}, y)), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 256));
}

TEST(PackedExperts, LieInTheOrderOfTheSlots) {
  AbiLayer layer(kLine);
  auto table = PlacementTable::from_entries(5, 2, std::vector<PlacementEntry>{{0, 1, 1}, {1, 0, 0}, {2, 1, 0}, {3, 1, 3}, {4, 1, 2}});
  ASSERT_TRUE(table);
  const AbiPlacement entries(table.value());
  const monomoe_placement placement = entries.placement();
  const ContextHandle context = make_context(2);
  const WeightsHandle placed = layer.weights(context, &placement), even = layer.weights(context);
  const monomoe_packed_experts rank0 = packed_experts(placed, 0), rank1 = packed_experts(placed, 1), want = packed_experts(even, 0);
  EXPECT_EQ(rank0.num_experts, 1);
  EXPECT_EQ(rank1.num_experts, 4);
  if (suite_backend() == "cuda") GTEST_SKIP() << "the bytes are on the GPU: tests/python/gpu_check.py compares them";
  const auto row = [](const monomoe_packed_experts& packed, int64_t slot) {
    return static_cast<uint8_t*>(packed.data) + slot * packed.expert_bytes;
  };
  EXPECT_EQ(std::memcmp(row(rank1, 1), row(want, 0), want.expert_bytes), 0);
  EXPECT_EQ(std::memcmp(row(rank0, 0), row(want, 1), want.expert_bytes), 0);
  EXPECT_EQ(std::memcmp(row(rank1, 0), row(want, 2), want.expert_bytes), 0);
  EXPECT_NE(std::memcmp(row(rank1, 3), row(rank1, 2), want.expert_bytes), 0);
}

TEST(PackedExperts, WhatIsRefused) {
  const AbiLayer layer(kLine);
  auto table =
      PlacementTable::from_entries(5, 2, std::vector<PlacementEntry>{{0, 0, 0}, {1, 0, 1}, {2, 0, 2}, {3, 1, 0}, {4, 1, 1}, {1, 1, 2}});
  ASSERT_TRUE(table);
  const AbiPlacement entries(table.value());
  const monomoe_placement placement = entries.placement();
  const ContextHandle context = make_context(2);
  const WeightsHandle copies = layer.weights(context, &placement), single = layer.weights(context);
  monomoe_packed_experts packed{};
  const auto refused = [&](const WeightsHandle& weights, int32_t rank, const std::string& words) {
    EXPECT_EQ(monomoe_weights_packed_experts(weights.get(), rank, &packed), MONOMOE_USAGE);
    EXPECT_NE(std::string(monomoe_last_error()).find(words), std::string::npos) << monomoe_last_error();
    EXPECT_EQ(packed.data, nullptr);
  };
  refused(single, 0, "packed->struct_size is 0");
  packed.struct_size = sizeof(packed);
  refused(copies, 0, "expert 1 of rank 0 has 2 copies");
  refused(copies, 1, "expert 1 of rank 1 has 2 copies");
  refused(single, 2, "rank is 2, the context has ranks 0..1");
  refused(single, -1, "rank is -1");
  EXPECT_EQ(monomoe_weights_packed_experts(single.get(), 0, nullptr), MONOMOE_USAGE);
  EXPECT_EQ(monomoe_weights_packed_experts(nullptr, 0, &packed), MONOMOE_USAGE);
}

TEST(Sharing, SeveralLayersOnOneWorkspaceAndSeveralWorkspacesForOneLayer) {
  const AbiLayer first(kLine);
  const AbiLayer second("ranks=2 experts=9 topk=2 tokens=30 hidden=256 inter=320 w=fp8 seed=203");
  const ContextHandle context = make_context(2);
  const WeightsHandle first_weights = first.weights(context), second_weights = second.weights(context);
  monomoe_workspace_options options{};
  options.struct_size = sizeof(options);
  options.topk = 2;
  options.hidden = 256;
  options.max_intermediate = 320;
  options.max_experts = 5;
  options.capacity = 20;
  monomoe_workspace* raw = nullptr;
  ASSERT_EQ(monomoe_workspace_create(context.get(), &options, &raw), MONOMOE_OK) << monomoe_last_error();
  const WorkspaceHandle shared(raw), own = first.workspace(context, first_weights, 64);
  const std::vector<uint16_t> want_first = first.expected(), want_second = second.expected();
  std::vector<uint16_t> y;
  for (int round = 0; round < 3; ++round) {
    auto tokens = first.tokens({10, 11}, y);
    ASSERT_EQ(monomoe_forward(first_weights.get(), shared.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
    EXPECT_TRUE(same_bits(y, want_first, 256));
    tokens = second.tokens({15, 15}, y);
    ASSERT_EQ(monomoe_forward(second_weights.get(), shared.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
    EXPECT_TRUE(same_bits(y, want_second, 256));
    tokens = first.tokens({0, 21}, y);
    ASSERT_EQ(monomoe_forward(first_weights.get(), own.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
    EXPECT_TRUE(same_bits(y, want_first, 256));
  }
}

TEST(Times, AreFilledAndPlausible) {
  const AbiLayer layer(kLine);
  Session session(layer);
  std::vector<uint16_t> y;
  const auto tokens = layer.tokens({10, 11}, y);
  monomoe_times times{};
  times.struct_size = sizeof(times);
  ASSERT_EQ(monomoe_forward(session.weights.get(), session.workspace.get(), tokens.data(), &times), MONOMOE_OK) << monomoe_last_error();
  EXPECT_GT(times.wall, 0.0);
  const double stages = times.dispatch + times.routes + times.gemm1 + times.gemm2 + times.combine;
  if (suite_backend() == "cpu") {
    EXPECT_GT(times.gemm1, 0.0);
    EXPECT_GT(times.gemm2, 0.0);
  } else {
    EXPECT_EQ(stages, 0.0);  // a launch has no stages a host can time
  }
  EXPECT_EQ(times.struct_size, sizeof(times));
}

}  // namespace
}  // namespace monomoe::contract
