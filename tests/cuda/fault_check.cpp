// Faults on the CUDA backend: silent ranks, bad ids, refusals. No launch may hang or take the CUDA context with it.
#include <algorithm>

#include "cuda/device_call.hpp"

namespace monomoe::cuda_test {
namespace {

constexpr const char* kLine = "ranks=1 experts=4 topk=2 tokens=12 hidden=256 inter=96 w=mxfp4 seed=411";

class Faults : public GpuTest {
 protected:
  void expect_poisoned(DeviceSession& session, const std::string& naming) {
    EXPECT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_POISONED);
    EXPECT_NE(std::string(monomoe_last_error()).find(naming), std::string::npos) << monomoe_last_error();
    EXPECT_EQ(session.enqueue(0, 1), MONOMOE_POISONED);
    EXPECT_NE(std::string(monomoe_last_error()).find(naming), std::string::npos) << monomoe_last_error();
  }
  // The same process makes a workspace anew and goes on.
  void expect_recovery(DeviceSession& session, const AbiLayer& layer) {
    const int32_t ranks = static_cast<int32_t>(session.streams.size());
    session.workspace = layer.workspace(session.context, session.weights, 12);
    std::vector<uint16_t> y;
    const auto tokens = layer.tokens(contract::even_rows(12, ranks), y);
    ASSERT_EQ(monomoe_forward(session.weights.get(), session.workspace.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
    EXPECT_TRUE(contract::same_bits(y, layer.expected(), 256));
  }
};

TEST_P(Faults, ASilentRankIsNamedAndTheOthersEnd) {
  const AbiLayer layer(kLine);
  for (const int silent : {0, 1, 2}) {
    DeviceSession session(layer, 3, 12, GetParam(), 150);
    for (int rank = 0; rank < 3; ++rank) session.tokens[rank].write(layer, 4 * rank, 4);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == silent) continue;
      ASSERT_EQ(session.enqueue(rank, 4), MONOMOE_OK) << monomoe_last_error();
    }
    session.synchronise();
    expect_poisoned(session, "rank " + std::to_string(silent) + " did not arrive within 150 ms");
    expect_recovery(session, layer);
  }
}

TEST_P(Faults, ABadIdInGpuMemoryIsNamed) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 1, 12, GetParam(), 150);
  session.tokens[0].write(layer, 0, 12);
  session.tokens[0].set_id(7, 9);
  ASSERT_EQ(session.enqueue(0, 12), MONOMOE_OK) << monomoe_last_error();
  session.synchronise();
  expect_poisoned(session, "expert id 9 of token 3, slot 1 is not below 4");
  expect_recovery(session, layer);
}

TEST_P(Faults, RanksWithDifferentWeightsAreToldApart) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 2, 12, GetParam(), 150);
  const WeightsHandle other = layer.weights(session.context);
  for (int rank = 0; rank < 2; ++rank) session.tokens[rank].write(layer, 6 * rank, 6);
  for (int rank = 0; rank < 2; ++rank) {
    const monomoe_tokens tokens = session.tokens[rank].tokens(6);
    const monomoe_weights* weights = rank == 0 ? session.weights.get() : other.get();
    ASSERT_EQ(monomoe_forward_rank(weights, session.workspace.get(), rank, &tokens, session.streams[rank].get(), nullptr), MONOMOE_OK);
  }
  session.synchronise();
  expect_poisoned(session, "uses other weights in this call");
  expect_recovery(session, layer);
}

TEST_P(Faults, TooManyTokensOnOneRankAreRefusedAndNothingIsLost) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 2, 6, GetParam());
  std::vector<uint16_t> y;
  auto tokens = layer.tokens({5, 7}, y);
  EXPECT_EQ(monomoe_forward(session.weights.get(), session.workspace.get(), tokens.data(), nullptr), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("rank 1: 7 tokens exceed the capacity of 6"), std::string::npos) << monomoe_last_error();
  EXPECT_TRUE(std::ranges::all_of(y, [](uint16_t bits) { return bits == 0xAAAA; }));
  // On streams the others' launches are under way: the refused rank takes part without tokens, theirs are whole.
  session.tokens[0].write(layer, 0, 5);
  session.tokens[1].write(layer, 5, 7);
  EXPECT_EQ(session.enqueue(0, 5), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(session.enqueue(1, 7), MONOMOE_USAGE);
  session.synchronise();
  ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
  const std::vector<uint16_t> want = layer.expected();
  EXPECT_TRUE(contract::same_bits(session.tokens[0].output(5), rows(want, 0, 5, 256), 256));
  EXPECT_EQ(session.tokens[1].output(7), std::vector<uint16_t>(7 * 256, 0xEEEE));
  tokens = layer.tokens({6, 6}, y);
  ASSERT_EQ(monomoe_forward(session.weights.get(), session.workspace.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(contract::same_bits(y, want, 256));
}

TEST_P(Faults, PointersTheGpuCannotUseAreRefusedByName) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 1, 12, GetParam());
  session.tokens[0].write(layer, 0, 12);
  const auto refused = [&](auto change, void* stream, const std::string& naming) {
    monomoe_tokens tokens = session.tokens[0].tokens(11);
    change(tokens);
    EXPECT_EQ(monomoe_forward_rank(session.weights.get(), session.workspace.get(), 0, &tokens, stream, nullptr), MONOMOE_USAGE);
    EXPECT_NE(std::string(monomoe_last_error()).find(naming), std::string::npos) << monomoe_last_error();
    session.synchronise();
    EXPECT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
  };
  void* const stream = session.streams[0].get();
  const auto shift = [](const void* pointer, int bytes) { return static_cast<const char*>(pointer) + bytes; };
  for (void* way : {stream, static_cast<void*>(nullptr)}) {
    refused([&](monomoe_tokens& t) { t.x = shift(t.x, 2); }, way, "rank 0: x is GPU memory");
    refused([&](monomoe_tokens& t) { t.y = static_cast<char*>(t.y) + 8; }, way, "rank 0: y is GPU memory");
    refused([&](monomoe_tokens& t) { t.x = nullptr; }, way, "x is null");
  }
  refused([&](monomoe_tokens& t) { t.x = layer.random.x.data(); }, stream, "x is host memory");
  refused([&](monomoe_tokens& t) { t.topk_ids = layer.random.ids.data(); }, stream, "topk_ids is host memory");
  // GPU and host memory may be mixed in a call that blocks.
  monomoe_tokens tokens = session.tokens[0].tokens(12);
  tokens.topk_ids = layer.random.ids.data();
  ASSERT_EQ(monomoe_forward(session.weights.get(), session.workspace.get(), &tokens, nullptr), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(contract::same_bits(session.tokens[0].output(12), layer.expected(), 256));
}

INSTANTIATE_TEST_SUITE_P(Launches, Faults, kEveryLaunch, launch_name);

}  // namespace
}  // namespace monomoe::cuda_test
