// Every wrong argument is refused with its status and a sentence that names it, writes nothing, and leaves the next call working.
#include <cmath>
#include <cstring>
#include <thread>
#include <tuple>

#include "contract/abi_layer.hpp"

namespace monomoe::contract {
namespace {

::testing::AssertionResult refused(monomoe_status got, monomoe_status want, const std::string& naming) {
  const std::string sentence = monomoe_last_error();
  if (got != want)
    return ::testing::AssertionFailure() << monomoe_status_name(got) << ", wanted " << monomoe_status_name(want) << ": " << sentence;
  if (sentence.find(naming) == std::string::npos)
    return ::testing::AssertionFailure() << "\"" << sentence << "\" does not name \"" << naming << "\"";
  return ::testing::AssertionSuccess();
}

class Refusals : public ::testing::Test {
 protected:
  AbiLayer layer{"ranks=2 experts=4 topk=2 tokens=9 hidden=128 inter=64 w=fp8 seed=301"};
  ContextHandle context = make_context(2, {suite_backend(), 2, 0, 300});
  WeightsHandle weights = layer.weights(context);
  WorkspaceHandle workspace = layer.workspace(context, weights, 8);
  std::vector<uint16_t> y;
  std::vector<monomoe_tokens> tokens = layer.tokens({4, 5}, y);

  monomoe_status forward() { return monomoe_forward(weights.get(), workspace.get(), tokens.data(), nullptr); }
  // The refused call wrote nothing, and the same tokens as given work.
  void expect_recovery() {
    for (const uint16_t bits : y) ASSERT_EQ(bits, 0xAAAA);
    tokens = layer.tokens({4, 5}, y);
    ASSERT_EQ(forward(), MONOMOE_OK) << monomoe_last_error();
    EXPECT_TRUE(same_bits(y, layer.expected(), 128));
    tokens = layer.tokens({4, 5}, y);
  }
};

TEST_F(Refusals, MisalignedPointersByName) {
  struct Pointer {
    const char* name;
    void (*shift)(monomoe_tokens&);
  };
  const Pointer pointers[] = {
      {"x", [](monomoe_tokens& t) { t.x = static_cast<const char*>(t.x) + 1; }},
      {"topk_ids", [](monomoe_tokens& t) { t.topk_ids = static_cast<const char*>(t.topk_ids) + 4; }},
      {"topk_weights",
       [](monomoe_tokens& t) { t.topk_weights = reinterpret_cast<const float*>(reinterpret_cast<const char*>(t.topk_weights) + 2); }},
      {"y", [](monomoe_tokens& t) { t.y = static_cast<char*>(t.y) + 1; }}};
  for (const Pointer& pointer : pointers) {
    pointer.shift(tokens[1]);
    EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, std::string("rank 1: ") + pointer.name));
    expect_recovery();
  }
}

TEST_F(Refusals, NullPointersByName) {
  struct Pointer {
    const char* name;
    void (*clear)(monomoe_tokens&);
  };
  const Pointer pointers[] = {{"x", [](monomoe_tokens& t) { t.x = nullptr; }},
                              {"x_scales", [](monomoe_tokens& t) { t.x_dtype = MONOMOE_DTYPE_E4M3; }},
                              {"topk_ids", [](monomoe_tokens& t) { t.topk_ids = nullptr; }},
                              {"topk_weights", [](monomoe_tokens& t) { t.topk_weights = nullptr; }},
                              {"y", [](monomoe_tokens& t) { t.y = nullptr; }}};
  for (const Pointer& pointer : pointers) {
    pointer.clear(tokens[0]);
    EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, pointer.name));
    expect_recovery();
  }
}

TEST_F(Refusals, TokensThatDoNotFit) {
  tokens[0].num_tokens = 9;
  EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "9 tokens exceed the capacity of 8"));
  expect_recovery();
  tokens[1].num_tokens = -1;
  EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "num_tokens is -1"));
  expect_recovery();
}

TEST_F(Refusals, IdsBeyondTheExperts) {
  for (const int64_t id : {int64_t{4}, int64_t{2147483647}, int64_t{1} << 40}) {
    const std::vector<int64_t> ids = {0, 1, 2, 3, 0, id, 1, 2};
    tokens[0].topk_ids = ids.data();
    EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "expert id " + std::to_string(id) + " of token 2, slot 1"));
    expect_recovery();
  }
}

TEST_F(Refusals, TypesAndStructSizes) {
  tokens[1].x_dtype = MONOMOE_DTYPE_F32;
  EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "x_dtype"));
  expect_recovery();
  tokens[1].ids_dtype = MONOMOE_DTYPE_BF16;
  EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "ids_dtype"));
  expect_recovery();
  tokens[0].struct_size = 8;
  EXPECT_TRUE(refused(forward(), MONOMOE_USAGE, "struct_size is 8"));
  expect_recovery();
}

TEST_F(Refusals, HandlesThatDoNotBelongTogether) {
  const ContextHandle other = make_context(2);
  const WeightsHandle foreign = layer.weights(other);
  EXPECT_TRUE(refused(monomoe_forward(foreign.get(), workspace.get(), tokens.data(), nullptr), MONOMOE_USAGE, "different contexts"));
  EXPECT_TRUE(refused(monomoe_forward(nullptr, workspace.get(), tokens.data(), nullptr), MONOMOE_USAGE, "weights is NULL"));
  EXPECT_TRUE(refused(monomoe_forward(weights.get(), nullptr, tokens.data(), nullptr), MONOMOE_USAGE, "workspace is NULL"));
  EXPECT_TRUE(refused(monomoe_forward(weights.get(), workspace.get(), nullptr, nullptr), MONOMOE_USAGE, "tokens is NULL"));
  const AbiLayer wide("ranks=2 experts=4 topk=2 tokens=9 hidden=256 inter=64 w=fp8 seed=302");
  const WeightsHandle wide_weights = wide.weights(context);
  EXPECT_TRUE(refused(monomoe_forward(wide_weights.get(), workspace.get(), tokens.data(), nullptr), MONOMOE_USAGE, "hidden"));
  expect_recovery();
}

TEST_F(Refusals, Contexts) {
  const auto create = [](auto change) {
    monomoe_context_options options{};
    options.struct_size = sizeof(options);
    change(options);
    monomoe_context* untouched = reinterpret_cast<monomoe_context*>(0x8);
    monomoe_context* made = untouched;
    const monomoe_status status = monomoe_context_create(&options, &made);
    EXPECT_EQ(made, untouched);
    return status;
  };
  using Options = monomoe_context_options;
  EXPECT_TRUE(refused(create([](Options& o) { o.struct_size = 4; }), MONOMOE_USAGE, "struct_size is 4"));
  EXPECT_TRUE(refused(create([](Options& o) { o.num_ranks = 65; }), MONOMOE_USAGE, "num_ranks is 65"));
  EXPECT_TRUE(refused(create([](Options& o) { o.num_ranks = -1; }), MONOMOE_USAGE, "num_ranks is -1"));
  EXPECT_TRUE(refused(create([](Options& o) { o.num_threads = -2; }), MONOMOE_USAGE, "num_threads is -2"));
  EXPECT_TRUE(refused(create([](Options& o) { o.vector_bits = 192; }), MONOMOE_USAGE, "vector_bits is 192"));
  const int unknown = 7;
  EXPECT_TRUE(refused(create([&](Options& o) { std::memcpy(&o.backend, &unknown, sizeof(unknown)); }), MONOMOE_USAGE, "backend is 7"));
  EXPECT_TRUE(refused(create([&](Options& o) { std::memcpy(&o.launch, &unknown, sizeof(unknown)); }), MONOMOE_USAGE, "launch is 7"));
  EXPECT_TRUE(refused(monomoe_context_create(nullptr, nullptr), MONOMOE_USAGE, "options is NULL"));
}

// On the CPU backend whatever the suite's: its calls are no launches, and that is said by name where the choice is made.
TEST(Launches, AreRefusedByTheCpuBackendByName) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.backend = MONOMOE_BACKEND_CPU;
  for (const auto& [launch, word] : {std::pair{MONOMOE_LAUNCH_SPLIT, "split"}, std::pair{MONOMOE_LAUNCH_UNFUSED, "unfused"}}) {
    options.launch = launch;
    monomoe_context* none = nullptr;
    EXPECT_TRUE(refused(monomoe_context_create(&options, &none), MONOMOE_USAGE, std::string("launch is ") + word + ", which backend cuda alone has"));
    EXPECT_EQ(none, nullptr);
    monomoe_workspace_options sizes{};
    sizes.struct_size = sizeof(sizes);
    sizes.topk = 1;
    sizes.hidden = 128;
    sizes.max_intermediate = 32;
    sizes.max_experts = 1;
    sizes.launch = launch;
    monomoe_workspace* workspace = nullptr;
    const ContextHandle context = make_context(1, {"cpu"});
    EXPECT_TRUE(refused(monomoe_workspace_create(context.get(), &sizes, &workspace), MONOMOE_USAGE, std::string("launch is ") + word));
    EXPECT_EQ(workspace, nullptr);
    sizes.launch = MONOMOE_LAUNCH_ONE;
    ASSERT_EQ(monomoe_workspace_create(context.get(), &sizes, &workspace), MONOMOE_OK) << monomoe_last_error();
    const WorkspaceHandle owner(workspace);
  }
}

TEST_F(Refusals, Layers) {
  const auto create = [&](auto change) {
    monomoe_layer description = layer.layer();
    std::vector<monomoe_expert> experts = layer.experts;
    description.experts = experts.data();
    change(description, experts);
    monomoe_weights* made = nullptr;
    const monomoe_status status = monomoe_weights_create(context.get(), &description, &made);
    EXPECT_EQ(made, nullptr);
    monomoe_weights_destroy(made);
    return status;
  };
  using Layer = monomoe_layer;
  using Experts = std::vector<monomoe_expert>;
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.num_experts = 0; }), MONOMOE_USAGE, "num_experts is 0"));
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.hidden = 100; }), MONOMOE_USAGE, "hidden is 100"));
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.intermediate = 48; }), MONOMOE_USAGE, "intermediate is 48"));
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.experts = nullptr; }), MONOMOE_USAGE, "experts is NULL"));
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.swiglu_limit = -1; }), MONOMOE_USAGE, "swiglu_limit is -1"));
  EXPECT_TRUE(refused(create([](Layer& l, Experts&) { l.swiglu_limit = std::nanf(""); }), MONOMOE_USAGE, "swiglu_limit is nan"));
  EXPECT_EQ(create([](Layer&, Experts& e) { e[3].up.codes = nullptr; }), MONOMOE_USAGE);
  EXPECT_TRUE(std::string(monomoe_last_error()).find("expert 3 up") != std::string::npos) << monomoe_last_error();
  EXPECT_EQ(create([](Layer&, Experts& e) { e[1].down.rows = 64; }), MONOMOE_USAGE);
  EXPECT_TRUE(std::string(monomoe_last_error()).find("expert 1 down") != std::string::npos) << monomoe_last_error();
  const int unknown = 9;
  EXPECT_TRUE(refused(create([&](Layer&, Experts& e) { std::memcpy(&e[2].gate.format, &unknown, sizeof(unknown)); }), MONOMOE_USAGE,
                      "expert 2 gate.format is 9"));

  std::vector<uint8_t> codes(layer.random.experts[2].gate.codes);
  codes[130] = 0xFF;
  EXPECT_TRUE(refused(create([&](Layer&, Experts& e) { e[2].gate.codes = codes.data(); }), MONOMOE_BAD_INPUT, "expert 2 gate"));
  EXPECT_NE(std::string(monomoe_last_error()).find("row 1, column 2"), std::string::npos) << monomoe_last_error();

  const std::vector<int32_t> expert = {0, 1, 2}, rank = {0, 0, 1}, slot = {0, 1, 0};
  const monomoe_placement incomplete = {3, expert.data(), rank.data(), slot.data()};
  EXPECT_TRUE(refused(create([&](Layer& l, Experts&) { l.placement = &incomplete; }), MONOMOE_USAGE, "expert 3"));
  const monomoe_placement empty = {2, nullptr, nullptr, nullptr};
  EXPECT_TRUE(refused(create([&](Layer& l, Experts&) { l.placement = &empty; }), MONOMOE_USAGE, "placement"));
}

TEST_F(Refusals, Workspaces) {
  const auto create = [&](auto change) {
    monomoe_workspace_options options{};
    options.struct_size = sizeof(options);
    options.topk = 2;
    options.hidden = 128;
    options.max_intermediate = 64;
    options.max_experts = 2;
    options.capacity = 8;
    change(options);
    monomoe_workspace* made = nullptr;
    const monomoe_status status = monomoe_workspace_create(context.get(), &options, &made);
    EXPECT_EQ(made, nullptr);
    monomoe_workspace_destroy(made);
    return status;
  };
  using Options = monomoe_workspace_options;
  EXPECT_TRUE(refused(create([](Options& o) { o.topk = 0; }), MONOMOE_USAGE, "topk is 0"));
  EXPECT_TRUE(refused(create([](Options& o) { o.topk = 33; }), MONOMOE_USAGE, "topk is 33"));
  EXPECT_TRUE(refused(create([](Options& o) { o.hidden = 0; }), MONOMOE_USAGE, "hidden is 0"));
  const int unknown = 4;
  EXPECT_TRUE(refused(create([&](Options& o) { std::memcpy(&o.launch, &unknown, sizeof(unknown)); }), MONOMOE_USAGE, "launch is 4"));
  EXPECT_TRUE(refused(create([](Options& o) { o.max_intermediate = 30; }), MONOMOE_USAGE, "intermediate is 30"));
  EXPECT_TRUE(refused(create([](Options& o) { o.max_experts = 0; }), MONOMOE_USAGE, "max_experts is 0"));
  EXPECT_TRUE(refused(create([](Options& o) { o.capacity = -1; }), MONOMOE_USAGE, "capacity"));
}

// One rank's call from a thread of its own, and how it ended.
struct RankResult {
  monomoe_status status = MONOMOE_OK;
  std::string sentence;
};
RankResult forward_rank(const WeightsHandle& weights, const WorkspaceHandle& workspace, int32_t rank, const monomoe_tokens& tokens,
                        void* stream = nullptr) {
  RankResult result;
  std::thread([&] {
    result.status = monomoe_forward_rank(weights.get(), workspace.get(), rank, &tokens, stream, nullptr);
    if (result.status != MONOMOE_OK) result.sentence = monomoe_last_error();
  }).join();
  return result;
}

TEST_F(Refusals, OneRanksRefusalEndsTheOthersCall) {
  const auto both = [&](const monomoe_tokens& first, void* stream) {
    RankResult zero;
    std::thread other([&] { zero = forward_rank(weights, workspace, 0, first, stream); });
    const RankResult one = forward_rank(weights, workspace, 1, tokens[1]);
    other.join();
    return std::pair(zero, one);
  };
  monomoe_tokens wrong_size = tokens[0], wrong_type = tokens[0], too_many = tokens[0];
  wrong_size.struct_size = 1;
  wrong_type.x_dtype = MONOMOE_DTYPE_I64;
  too_many.num_tokens = 9;
  int stream = 0;
  std::vector<std::tuple<monomoe_tokens, void*, const char*>> bad_calls = {
      {wrong_size, nullptr, "struct_size"}, {wrong_type, nullptr, "x_dtype"}, {too_many, nullptr, "capacity"}};
  if (suite_backend() == "cpu") bad_calls.push_back({tokens[0], &stream, "stream"});  // the CPU backend has none
  for (const auto& [bad, with_stream, naming] : bad_calls) {
    const auto [zero, one] = both(bad, with_stream);
    EXPECT_EQ(zero.status, MONOMOE_USAGE) << zero.sentence;
    EXPECT_NE(zero.sentence.find(naming), std::string::npos) << zero.sentence;
    EXPECT_EQ(one.status, MONOMOE_REJECTED) << one.sentence;
    EXPECT_NE(one.sentence.find("rank 0"), std::string::npos) << one.sentence;
    expect_recovery();
  }
  const auto [zero, one] = both(tokens[0], nullptr);
  EXPECT_EQ(zero.status, MONOMOE_OK) << zero.sentence;
  EXPECT_EQ(one.status, MONOMOE_OK) << one.sentence;
  EXPECT_TRUE(same_bits(y, layer.expected(), 128));
}

TEST_F(Refusals, ARankThatNeverComesIsNamed) {
  const RankResult alone = forward_rank(weights, workspace, 1, tokens[1]);
  EXPECT_EQ(alone.status, MONOMOE_TIMEOUT) << alone.sentence;
  EXPECT_NE(alone.sentence.find("rank 0 did not"), std::string::npos) << alone.sentence;
  EXPECT_EQ(forward(), MONOMOE_POISONED);
  const WorkspaceHandle anew = layer.workspace(context, weights, 8);
  ASSERT_EQ(monomoe_forward(weights.get(), anew.get(), tokens.data(), nullptr), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(same_bits(y, layer.expected(), 128));
  const RankResult beyond = forward_rank(weights, anew, 2, tokens[1]);
  EXPECT_EQ(beyond.status, MONOMOE_USAGE);
}

}  // namespace
}  // namespace monomoe::contract
