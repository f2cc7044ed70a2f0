// What goes wrong between ranks that share only memory: processes that die, stay away or differ. Every call ends with a sentence that names
// the rank, and y is whole or untouched.
#include "comm/flags.hpp"
#include "processes/world.hpp"

namespace monomoe::processes {
namespace {

constexpr const char* kLine = "ranks=1 experts=6 topk=3 tokens=30 hidden=128 inter=64 w=mxfp4 seed=511";

class WorldFaults : public ::testing::TestWithParam<Home> {
 protected:
  AbiLayer layer{kLine};
};
INSTANTIATE_TEST_SUITE_P(Homes, WorldFaults, ::testing::Values(Home::kThreads, Home::kProcesses),
                         [](const auto& info) { return info.param == Home::kThreads ? "Threads" : "Processes"; });

void await_flag(uint64_t& flag, uint64_t value) {
  while (look(flag) < value) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// Rank 1 is killed inside its second call: it has sent its rows and waits for rank 2, which comes when rank 1 is gone.
TEST(WorldKills, AProcessKilledInMidCallIsNamedByTheOthers) {
  const AbiLayer layer(kLine);
  World world(layer, 3, 10);
  world.start(Home::kProcesses, [](Member& member) {
    if (member.join({.capacity = 10, .timeout_ms = 700}) != MONOMOE_OK) return;
    if (member.report(1, member.forward(10 * member.rank, 10)) != MONOMOE_OK) return;
    member.step(1);
    member.await_go(1);
    member.report(2, member.forward(10 * member.rank, 10));
    member.report(3, member.forward(10 * member.rank, 10));
    member.report(4, monomoe_workspace_status(member.workspace.get()));
  });
  for (int32_t rank = 0; rank < 3; ++rank) world.await_step(rank, 1);
  EXPECT_TRUE(contract::same_bits(world.y(30), layer.expected(), 128));
  world.clear_y();
  world.go(1, 1);
  await_flag(world.flags(0).arrived[1], 2);
  world.kill(1);
  world.go(0, 1);
  world.go(2, 1);
  world.finish();
  for (const int32_t rank : {0, 2}) {
    EXPECT_EQ(world.report(rank, 2).status, MONOMOE_TIMEOUT) << world.report(rank, 2).sentence;
    EXPECT_TRUE(world.report(rank, 2).names("rank 1 did not")) << world.report(rank, 2).sentence;
    EXPECT_EQ(world.report(rank, 3).status, MONOMOE_POISONED);
    EXPECT_TRUE(world.report(rank, 3).names("rank 1 did not")) << world.report(rank, 3).sentence;
    EXPECT_EQ(world.report(rank, 4).status, MONOMOE_POISONED);
  }
  EXPECT_TRUE(world.untouched(0, 30));
  EXPECT_EQ(world.report(1, 2).status, -1);
}

// The survivors and a new process for the lost rank go on with the same memory, zeroed.
TEST(WorldKills, TheRanksRebuildAndGoOn) {
  const AbiLayer layer(kLine);
  World world(layer, 3, 10);
  const auto rebuilt = [](Member& member) {
    if (member.join({.capacity = 10}) == MONOMOE_OK) member.report(5, member.forward(10 * member.rank, 10));
  };
  world.start(Home::kProcesses, [&](Member& member) {
    if (member.join({.capacity = 10, .timeout_ms = 300}) != MONOMOE_OK) return;
    member.step(1);
    if (member.rank == 1) member.await_go(1);  // killed here
    member.report(1, member.forward(10 * member.rank, 10));
    member.workspace.reset();
    member.step(2);
    member.await_go(2);
    rebuilt(member);
  });
  world.await_step(1, 1);
  world.kill(1);
  for (const int32_t rank : {0, 2}) {
    world.await_step(rank, 2);
    EXPECT_EQ(world.report(rank, 1).status, MONOMOE_TIMEOUT);
  }
  world.zero_memory();
  world.clear_y();
  world.go(0, 2);
  world.go(2, 2);
  world.start_process(1, rebuilt);
  world.finish();
  for (int32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(world.report(rank, 5).status, MONOMOE_OK) << world.report(rank, 5).sentence;
  EXPECT_TRUE(contract::same_bits(world.y(30), layer.expected(), 128));
}

TEST(WorldKills, AProcessKilledBetweenCallsIsNamedByTheOthers) {
  const AbiLayer layer(kLine);
  World world(layer, 2, 15);
  world.start(Home::kProcesses, [](Member& member) {
    if (member.join({.capacity = 15, .timeout_ms = 500}) != MONOMOE_OK) return;
    member.report(1, member.forward(15 * member.rank, 15));
    member.step(1);
    member.await_go(1);
    member.report(2, member.forward(15 * member.rank, 15));
  });
  for (int32_t rank = 0; rank < 2; ++rank) world.await_step(rank, 1);
  world.kill(0);
  world.go(1, 1);
  world.finish();
  EXPECT_EQ(world.report(1, 2).status, MONOMOE_TIMEOUT);
  EXPECT_TRUE(world.report(1, 2).names("rank 0 did not arrive within 500 ms")) << world.report(1, 2).sentence;
}

// A rank that ends while it writes the record of why it gave up leaves the others a record without a cause, not a wait without an end.
TEST_P(WorldFaults, ARecordThatIsNeverFinishedEndsTheCall) {
  World world(layer, 2, 15);
  world.start(GetParam(), [](Member& member) {
    if (member.join({.capacity = 15, .timeout_ms = 500}) != MONOMOE_OK) return;
    member.step(1);
    if (member.rank == 0) member.report(1, member.forward(0, 15));
  });
  world.await_step(1, 1);
  publish<uint64_t>(world.flags(0).abort_record[0], 1);
  world.finish();
  EXPECT_NE(world.report(0, 1).status, MONOMOE_OK);
  EXPECT_TRUE(world.report(0, 1).names("a rank gave up and its process ended before it had said why")) << world.report(0, 1).sentence;
}

TEST_P(WorldFaults, ARankThatRefusesEndsTheOthersCallAndTheNextOneWorks) {
  World world(layer, 3, 10);
  world.run(GetParam(), [](Member& member) {
    if (member.join({.capacity = 10}) != MONOMOE_OK) return;
    member.report(1, member.forward(10 * member.rank, member.rank == 2 ? 11 : 10));
    monomoe_tokens bad = member.tokens(10 * member.rank, 10);
    if (member.rank == 0) bad.topk_weights = nullptr;
    member.report(2, monomoe_forward_rank(member.weights.get(), member.workspace.get(), member.rank, &bad, nullptr, nullptr));
    bad = member.tokens(10 * member.rank, 10);
    int64_t count = 10;
    if (member.rank == 1) bad.num_tokens_device = &count;
    member.report(3, monomoe_forward_rank(member.weights.get(), member.workspace.get(), member.rank, &bad, nullptr, nullptr));
    member.report(4, member.forward(10 * member.rank, 10));
  });
  const int refusing[] = {-1, 2, 0, 1};
  const char* why[] = {"", "11 tokens exceed the capacity of 10", "topk_weights is null", "num_tokens_device is set in a call that blocks"};
  for (int call = 1; call <= 3; ++call) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      const Report& report = world.report(rank, call);
      EXPECT_EQ(report.status, rank == refusing[call] ? MONOMOE_USAGE : MONOMOE_REJECTED) << report.sentence;
      EXPECT_TRUE(report.names(rank == refusing[call] ? why[call] : "rank " + std::to_string(refusing[call]) + " refused"))
          << report.sentence;
    }
  }
  for (int32_t rank = 0; rank < 3; ++rank) ASSERT_EQ(world.report(rank, 4).status, MONOMOE_OK) << world.report(rank, 4).sentence;
  EXPECT_TRUE(contract::same_bits(world.y(30), layer.expected(), 128));
}

TEST_P(WorldFaults, RanksThatDifferAreRejectedNamingBoth) {
  struct Difference {
    Options odd;
    const char* sentence_of_rank_0;
    const char* sentence_of_rank_1;  // which compares with whom it sees first
    const char* sentence_of_rank_2;
    const char* or_what_another_told_it;  // it looks at rank 0 first, which may have given up already
  };
  const Difference differences[] = {{{.capacity = 12},
                                     "capacity is 10 on rank 0 and 12 on rank 1",
                                     "capacity is 12 on rank 1 and 10 on rank",
                                     "capacity is 10 on rank 2 and 12 on rank 1", "capacity is another on rank"},
                                    {{.capacity = 10, .topk = 2},
                                     "topk is 3 on rank 0 and 2 on rank 1",
                                     "topk is 2 on rank 1 and 3 on rank",
                                     "topk is 3 on rank 2 and 2 on rank 1", "topk is another on rank"},
                                    // Rank 1 knows of no rank 2, so that one hears of it from rank 0 only.
                                    {{.capacity = 10, .world_ranks = 2},
                                     "world_ranks is 3 on rank 0 and 2 on rank 1",
                                     "world_ranks is 2 on rank 1 and 3 on rank",
                                     "rank 0 gave up making its workspace: world_ranks is another on rank 0 and on rank 1",
                                     "rank 0 gave up making its workspace: world_ranks is another on rank 0 and on rank 1"}};
  for (const Difference& difference : differences) {
    World world(layer, 3, 12);
    world.run(GetParam(), [&](Member& member) {
      Options options = member.rank == 1 ? difference.odd : Options{.capacity = 10};
      member.join(options);
    });
    for (int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world.report(rank, 0).status, MONOMOE_USAGE) << world.report(rank, 0).sentence;
    // Ranks 0 and 1 tell each other what they are; either may hear from rank 2 first that it has given up.
    for (const int32_t rank : {0, 1}) {
      const char* own = rank == 0 ? difference.sentence_of_rank_0 : difference.sentence_of_rank_1;
      EXPECT_TRUE(world.report(rank, 0).names(own) || world.report(rank, 0).names(difference.or_what_another_told_it)) << world.report(rank, 0).sentence;
    }
    const Report& last = world.report(2, 0);
    EXPECT_TRUE(last.names(difference.sentence_of_rank_2) || last.names(difference.or_what_another_told_it)) << last.sentence;
  }
}

TEST_P(WorldFaults, ARankThatNeverComesIsNamedAtCreation) {
  World world(layer, 3, 10);
  world.run(GetParam(), [](Member& member) {
    if (member.rank != 1) member.join({.capacity = 10, .timeout_ms = 200});
  });
  for (const int32_t rank : {0, 2}) {
    const Report& report = world.report(rank, 0);
    EXPECT_EQ(report.status, MONOMOE_TIMEOUT);
    const std::string other = "rank " + std::to_string(2 - rank) + " gave up making its workspace: rank 1 did not come in time";
    EXPECT_TRUE(report.names("rank 1 did not create its workspace within 200 ms") || report.names(other)) << report.sentence;
  }
}

// Ranks that come after the others have given up are told so; their own timeout would be longer than the test's.
TEST_P(WorldFaults, ALateRankIsToldThatCreationHasFailed) {
  World world(layer, 3, 10);
  world.start(GetParam(), [](Member& member) {
    if (member.rank == 2) member.await_go(1);
    member.join({.capacity = 10, .timeout_ms = member.rank == 2 ? 3600000u : 200u});
    member.step(1);
  });
  for (const int32_t rank : {0, 1}) {
    world.await_step(rank, 1);
    EXPECT_EQ(world.report(rank, 0).status, MONOMOE_TIMEOUT) << world.report(rank, 0).sentence;
  }
  world.go(2, 1);
  world.finish();
  EXPECT_EQ(world.report(2, 0).status, MONOMOE_TIMEOUT);
  EXPECT_TRUE(world.report(2, 0).names("gave up making its workspace: rank 2 did not come in time")) << world.report(2, 0).sentence;
}

TEST_P(WorldFaults, ARankThatRefusesItsMemoryTellsTheOthers) {
  World world(layer, 2, 10);
  world.flags(0).arrived[1] = 7;  // rank 0's memory was used before
  world.run(GetParam(), [](Member& member) { member.join({.capacity = 10, .timeout_ms = 3600000}); });
  EXPECT_TRUE(world.report(0, 0).names("is memory that is not zero")) << world.report(0, 0).sentence;
  EXPECT_EQ(world.report(1, 0).status, MONOMOE_USAGE);
  EXPECT_TRUE(world.report(1, 0).names("rank 0 gave up making its workspace: its memory was not zero")) << world.report(1, 0).sentence;
}

TEST_P(WorldFaults, OneMemoryForTwoRanksIsNoticed) {
  World world(layer, 2, 10);
  world.run(GetParam(), [](Member& member) {
    const std::vector<void*> own = member.peers;
    member.peers[1] = static_cast<char*>(own[0]) + 4096;
    member.report(1, member.join({.capacity = 10}));
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.report(rank, 1).status, MONOMOE_USAGE);
    EXPECT_TRUE(world.report(rank, 1).names("options->peers[0] and [1] overlap: they are 4096 bytes apart")) << world.report(rank, 1).sentence;
  }
  const SharedPages pages(symmetric_bytes(layer, 2, 10));
  world.run(GetParam(), [&](Member& member) {
    member.peers = {pages.map_again(), pages.map_again()};
    member.report(2, member.join({.capacity = 10}));
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.report(rank, 2).status, MONOMOE_USAGE);
    EXPECT_TRUE(world.report(rank, 2).names("options->peers[0] and [1] are mappings of the same pages")) << world.report(rank, 2).sentence;
  }
}

TEST_P(WorldFaults, MemoryThatIsNotZeroAndTablesInAnotherOrderAreNoticed) {
  World used(layer, 2, 10);
  const auto once = [](Member& member) { member.join({.capacity = 10, .timeout_ms = 300}); };
  used.run(GetParam(), once);
  ASSERT_EQ(used.report(0, 0).status, MONOMOE_OK) << used.report(0, 0).sentence;
  used.run(GetParam(), once);  // the same memory again
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(used.report(rank, 0).status, MONOMOE_USAGE);
    EXPECT_TRUE(used.report(rank, 0).names("is memory that is not zero")) << used.report(rank, 0).sentence;
  }
  World crossed(layer, 3, 10);
  crossed.run(GetParam(), [](Member& member) {
    if (member.rank == 0) std::swap(member.peers[1], member.peers[2]);
    member.join({.capacity = 10, .timeout_ms = 300});
  });
  EXPECT_TRUE(crossed.report(1, 0).names("peers[2] of rank 0 leads to the memory of rank 1")) << crossed.report(1, 0).sentence;
  EXPECT_TRUE(crossed.report(2, 0).names("peers[1] of rank 0 leads to the memory of rank 2")) << crossed.report(2, 0).sentence;
}

TEST_P(WorldFaults, RanksThatRunDifferentLayersAreToldApart) {
  World world(layer, 2, 15);
  world.run(GetParam(), [](Member& member) {
    if (member.join({.capacity = 15, .tag = member.rank == 0 ? 3u : 4u}) != MONOMOE_OK) return;
    member.report(1, member.forward(15 * member.rank, 15));
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.report(rank, 1).status, MONOMOE_USAGE) << world.report(rank, 1).sentence;
    EXPECT_TRUE(world.report(rank, 1).names("uses other weights in this call")) << world.report(rank, 1).sentence;
  }
}

}  // namespace
}  // namespace monomoe::processes
