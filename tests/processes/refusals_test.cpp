// What a context of one rank of a world refuses, and what only such a context takes.
#include <barrier>
#include <cstring>

#include "processes/world.hpp"

namespace monomoe::processes {
namespace {

void expect_refused(monomoe_status status, const std::string& naming) {
  EXPECT_EQ(status, MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find(naming), std::string::npos) << monomoe_last_error();
}

monomoe_context_options context_options(int32_t world_ranks, int32_t rank) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.backend = MONOMOE_BACKEND_CPU;
  options.num_threads = 1;
  options.world_ranks = world_ranks;
  options.rank = rank;
  options.timeout_ms = 200;
  return options;
}

ContextHandle context_of(const monomoe_context_options& options) {
  monomoe_context* context = nullptr;
  EXPECT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK) << monomoe_last_error();
  return ContextHandle(context);
}

TEST(WorldRefusals, ContextOptionsByName) {
  const auto create = [](auto change) {
    monomoe_context_options options = context_options(4, 1);
    change(options);
    monomoe_context* context = nullptr;
    const monomoe_status status = monomoe_context_create(&options, &context);
    EXPECT_EQ(context, nullptr);
    return status;
  };
  using O = monomoe_context_options;
  expect_refused(create([](O& o) { o.world_ranks = 65; }), "world_ranks is 65");
  expect_refused(create([](O& o) { o.world_ranks = -1; }), "world_ranks is -1");
  expect_refused(create([](O& o) { o.rank = 4; }), "rank is 4, wanted 0..3");
  expect_refused(create([](O& o) { o.rank = -1; }), "rank is -1");
  expect_refused(create([](O& o) { o.num_ranks = 4; }), "num_ranks is 4 and world_ranks is 4");
  expect_refused(create([](O& o) { o.ranks_per_gpu = -1; }), "ranks_per_gpu is -1");
  expect_refused(create([](O& o) { o.world_ranks = 0; }), "rank is 1, but world_ranks is 0");
  expect_refused(create([](O& o) { o.world_ranks = o.rank = 0, o.gpu = 2; }), "gpu is 2, but world_ranks is 0");
}

// A caller with the first header: its structs end where the new fields begin, and what lies behind is not read.
TEST(WorldRefusals, CallersOfTheFirstHeaderWorkAsBefore) {
  const AbiLayer layer("ranks=1 experts=4 topk=2 tokens=9 hidden=128 inter=64 w=fp8 seed=521");
  monomoe_context_options options = context_options(77, 99);
  options.struct_size = offsetof(monomoe_context_options, world_ranks);
  options.num_ranks = 2;
  const ContextHandle context = context_of(options);
  monomoe_layer description = layer.layer();
  description.struct_size = offsetof(monomoe_layer, tag);
  monomoe_weights* raw_weights = nullptr;
  ASSERT_EQ(monomoe_weights_create(context.get(), &description, &raw_weights), MONOMOE_OK) << monomoe_last_error();
  const WeightsHandle weights(raw_weights);
  void* const nowhere[2] = {};
  monomoe_workspace_options sizes{};
  sizes.struct_size = offsetof(monomoe_workspace_options, peers);
  sizes.topk = 2;
  sizes.hidden = 128;
  sizes.max_intermediate = 64;
  sizes.max_experts = monomoe_weights_max_local_experts(weights.get());
  sizes.capacity = 9;
  sizes.peers = nowhere;
  monomoe_workspace* raw_workspace = nullptr;
  ASSERT_EQ(monomoe_workspace_create(context.get(), &sizes, &raw_workspace), MONOMOE_OK) << monomoe_last_error();
  const WorkspaceHandle workspace(raw_workspace);
  std::vector<uint16_t> y;
  const auto tokens = layer.tokens({4, 5}, y);
  constexpr size_t kFirst = offsetof(monomoe_tokens, num_tokens_device);
  alignas(monomoe_tokens) unsigned char packed[2 * kFirst];
  for (int rank = 0; rank < 2; ++rank) {
    std::memcpy(packed + rank * kFirst, &tokens[rank], kFirst);
    const uint32_t size = kFirst;
    std::memcpy(packed + rank * kFirst, &size, sizeof(size));
  }
  ASSERT_EQ(monomoe_forward(weights.get(), workspace.get(), reinterpret_cast<const monomoe_tokens*>(packed), nullptr), MONOMOE_OK)
      << monomoe_last_error();
  EXPECT_TRUE(contract::same_bits(y, layer.expected(), 128));
}

class OneOfTwo : public ::testing::Test {
 protected:
  AbiLayer layer{"ranks=1 experts=4 topk=2 tokens=8 hidden=128 inter=64 w=fp8 seed=522"};
  SharedPages pages{symmetric_bytes(layer, 2, 8)};
  Options options{.capacity = 8, .timeout_ms = 200};
  Member one{layer, 1, 2, {nullptr, nullptr}, nullptr, nullptr};
};

TEST_F(OneOfTwo, PeersByName) {
  ASSERT_EQ(one.make_context(options), MONOMOE_OK) << monomoe_last_error();
  ASSERT_EQ(one.make_weights(options), MONOMOE_OK) << monomoe_last_error();
  expect_refused(one.make_workspace(options), "options->peers[0] is NULL");
  one.peers = {pages.data(), static_cast<char*>(pages.data()) + 8};
  expect_refused(one.make_workspace(options), "wanted a multiple of 256");
  one.peers = {pages.data(), pages.data()};
  expect_refused(one.make_workspace(options), "options->peers[0] and [1] are the same address");
  const ContextHandle all = contract::make_context(2, {.backend = "cpu"});
  monomoe_workspace_options sizes{};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = sizes.max_experts = 2;
  sizes.hidden = 128;
  sizes.max_intermediate = 64;
  sizes.peers = one.peers.data();
  monomoe_workspace* made = nullptr;
  expect_refused(monomoe_workspace_create(all.get(), &sizes, &made), "options->peers is set, but all ranks");
  sizes.peers = nullptr;
  expect_refused(monomoe_workspace_create(one.context.get(), &sizes, &made), "options->peers is NULL");
  int64_t bytes = 0;
  expect_refused(monomoe_symmetric_bytes(one.context.get(), nullptr, &bytes), "options is NULL");
  expect_refused(monomoe_symmetric_bytes(one.context.get(), &sizes, nullptr), "bytes is NULL");
  sizes.topk = 0;
  expect_refused(monomoe_symmetric_bytes(one.context.get(), &sizes, &bytes), "topk is 0");
}

TEST_F(OneOfTwo, OwnExpertsAreCheckedAndTheOthersNotRead) {
  ASSERT_EQ(one.make_context(options), MONOMOE_OK) << monomoe_last_error();
  monomoe_layer description = layer.layer();
  std::vector<monomoe_expert> experts = layer.experts;
  description.experts = experts.data();
  monomoe_weights* made = nullptr;
  experts[0].gate.codes = reinterpret_cast<const void*>(8);  // rank 0's: an address that nobody can read
  experts[1].down.rows = -5;
  ASSERT_EQ(monomoe_weights_create(one.context.get(), &description, &made), MONOMOE_OK) << monomoe_last_error();
  const WeightsHandle weights(made);
  EXPECT_EQ(monomoe_weights_max_local_experts(weights.get()), 2);
  EXPECT_EQ(monomoe_weights_replace_expert(weights.get(), 3, &layer.experts[2]), MONOMOE_OK) << monomoe_last_error();
  expect_refused(monomoe_weights_replace_expert(weights.get(), 1, &layer.experts[1]), "expert 1 is not placed on rank 1");
  monomoe_packed_experts packed{};
  packed.struct_size = sizeof(packed);
  expect_refused(monomoe_weights_packed_experts(weights.get(), 0, &packed), "rank is 0, but this context is rank 1 of 2");
  ASSERT_EQ(monomoe_weights_packed_experts(weights.get(), 1, &packed), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(packed.num_experts, 2);
  experts[2].up.scales = nullptr;
  expect_refused(monomoe_weights_create(one.context.get(), &description, &made), "expert 2 up");
  description.experts = nullptr;
  expect_refused(monomoe_weights_create(one.context.get(), &description, &made), "layer->experts is NULL");
}

TEST(WorldRefusals, ForwardOfAllRanksAndOfAnotherRank) {
  const AbiLayer layer("ranks=1 experts=4 topk=2 tokens=8 hidden=128 inter=64 w=fp8 seed=523");
  World world(layer, 2, 8);
  std::barrier both_filled(2);
  world.run(Home::kThreads, [&](Member& member) {
    if (member.join({.capacity = 8}) != MONOMOE_OK) return;
    const monomoe_tokens tokens = member.tokens(4 * member.rank, 4);
    member.report(1, monomoe_forward(member.weights.get(), member.workspace.get(), &tokens, nullptr));
    member.report(2, monomoe_forward_rank(member.weights.get(), member.workspace.get(), 1 - member.rank, &tokens, nullptr, nullptr));
    member.report(3, monomoe_workspace_poison(member.workspace.get(), 0x5A));
    both_filled.arrive_and_wait();
    member.report(4, member.forward(4 * member.rank, 4));
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    const std::string self = std::to_string(rank);
    EXPECT_EQ(world.report(rank, 1).status, MONOMOE_USAGE);
    EXPECT_TRUE(world.report(rank, 1).names("this context is rank " + self + " of 2; call monomoe_forward_rank"))
        << world.report(rank, 1).sentence;
    EXPECT_EQ(world.report(rank, 2).status, MONOMOE_USAGE);
    EXPECT_TRUE(world.report(rank, 2).names("but this context is rank " + self + " of 2")) << world.report(rank, 2).sentence;
    EXPECT_EQ(world.report(rank, 4).status, MONOMOE_OK) << world.report(rank, 4).sentence;
  }
  EXPECT_TRUE(contract::same_bits(world.y(8), layer.expected(), 128));
}

}  // namespace
}  // namespace monomoe::processes
