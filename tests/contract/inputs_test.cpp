// Forms the same input may come in, and handles that are shared or changed between calls.
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
