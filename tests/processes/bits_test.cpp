// Ranks that share nothing but the memory handed to them give the bits of one process with all ranks.
#include <algorithm>

#include "processes/world.hpp"

namespace monomoe::processes {
namespace {

using contract::RunPlan;

std::vector<int64_t> firsts(const std::vector<int64_t>& rows) {
  std::vector<int64_t> out;
  int64_t first = 0;
  for (const int64_t count : rows) {
    out.push_back(first);
    first += count;
  }
  return out;
}

class Worlds : public ::testing::TestWithParam<Home> {};
INSTANTIATE_TEST_SUITE_P(Homes, Worlds, ::testing::Values(Home::kThreads, Home::kProcesses),
                         [](const auto& info) { return info.param == Home::kThreads ? "Threads" : "Processes"; });

// Five calls on one workspace; the output of each is compared by its rank with the one before, that of the last by the test.
void expect_bits(const AbiLayer& layer, const std::vector<int64_t>& rows, Home home) {
  const int32_t ranks = static_cast<int32_t>(rows.size());
  World world(layer, ranks, 40);
  const std::vector<int64_t> first = firsts(rows);
  world.run(home, [&](Member& member) {
    if (member.join({.capacity = 40}) != MONOMOE_OK) return;
    for (int call = 1; call <= 5; ++call) {
      // Odd calls bring other numbers of tokens: of a rank's own, so that ranks do not agree.
      const int64_t count = call == 5 ? rows[member.rank] : rows[member.rank] * (call + member.rank) % 7;
      if (member.report(call, member.forward(first[member.rank], std::min(count, rows[member.rank]))) != MONOMOE_OK) return;
    }
  });
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (int at = 0; at <= 5; ++at) ASSERT_EQ(world.report(rank, at).status, MONOMOE_OK) << rank << ": " << world.report(rank, at).sentence;
  }
  RunPlan plan;
  plan.rows = rows;
  plan.setting.backend = "cpu";
  EXPECT_TRUE(contract::same_bits(world.y(first.back() + rows.back()), contract::run_layer(layer, plan), layer.c.problem.hidden));
}

TEST_P(Worlds, GiveTheBitsOfOneProcess) {
  for (const char* format : {"fp8", "nvfp4", "mxfp4"}) {
    const AbiLayer layer(std::string("ranks=1 experts=7 topk=3 tokens=60 hidden=256 inter=96 seed=501 limit=4 dist=masked w=") + format);
    for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{40}, {40, 20}, {13, 0, 40}, {1, 30, 20, 9}}) {
      SCOPED_TRACE(format);
      SCOPED_TRACE(rows.size());
      expect_bits(layer, rows, GetParam());
    }
  }
}

// A rank may hold nothing, an expert may live twice; only the rank's own experts are given to it.
TEST_P(Worlds, WithAnyPlacement) {
  const AbiLayer layer("ranks=1 experts=4 topk=2 tokens=30 hidden=128 inter=64 w=nvfp4 seed=502");
  const std::vector<int32_t> expert = {0, 1, 2, 3, 0, 3}, rank = {2, 2, 0, 0, 0, 2}, slot = {0, 1, 0, 1, 2, 2};
  const monomoe_placement placement = {6, expert.data(), rank.data(), slot.data()};
  World world(layer, 3, 10);
  world.run(GetParam(), [&](Member& member) {
    const Options options{.capacity = 10};
    if (member.make_context(options) != MONOMOE_OK || member.report(0, member.make_weights(options, &placement)) != MONOMOE_OK) return;
    if (member.report(1, member.make_workspace(options)) != MONOMOE_OK) return;
    member.report(2, member.forward(10 * member.rank, 10));
  });
  for (int32_t one = 0; one < 3; ++one) {
    for (int at = 0; at < 3; ++at) ASSERT_EQ(world.report(one, at).status, MONOMOE_OK) << one << ": " << world.report(one, at).sentence;
  }
  EXPECT_TRUE(contract::same_bits(world.y(layer.c.tokens), layer.expected(), 128));
}

TEST_P(Worlds, WaitForARankThatIsLate) {
  const AbiLayer layer("ranks=1 experts=4 topk=2 tokens=20 hidden=128 inter=64 w=fp8 seed=503");
  World world(layer, 2, 10);
  world.start(GetParam(), [&](Member& member) {
    if (member.rank == 1) member.await_go(1);
    member.step(1);
    if (member.join({.capacity = 10}) == MONOMOE_OK) member.report(1, member.forward(10 * member.rank, 10));
  });
  world.await_step(0, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(world.report(0, 0).status, -1);  // creation is collective
  world.go(1, 1);
  world.finish();
  for (int32_t rank = 0; rank < 2; ++rank) ASSERT_EQ(world.report(rank, 1).status, MONOMOE_OK) << world.report(rank, 1).sentence;
  EXPECT_TRUE(contract::same_bits(world.y(layer.c.tokens), layer.expected(), 128));
}

}  // namespace
}  // namespace monomoe::processes
