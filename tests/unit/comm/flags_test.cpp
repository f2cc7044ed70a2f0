// Symmetric memory, the verbs, the error record and await by themselves.
#include "comm/flags.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "comm/rank_comm.hpp"
#include "comm/symmetric_memory.hpp"

namespace monomoe {
namespace {

TEST(SymmetricMemory, RanksAreSeparateZeroedAndOfEqualSize) {
  auto memory = InProcessMemory::create(3, 4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory.value()->num_ranks(), 3);
  EXPECT_EQ(memory.value()->bytes(), 4096);
  memory.value()->base(1)[4095] = std::byte{7};
  for (int rank : {0, 2}) EXPECT_EQ(memory.value()->base(rank)[4095], std::byte{0});
  EXPECT_EQ(memory.value()->base(1)[4095], std::byte{7});
}

TEST(SymmetricMemory, LargeRegionsCostNothingUntilTouched) {
  auto region = PageRegion::create(int64_t{1} << 40);
  ASSERT_TRUE(region.ok()) << region.error().message;
  region.value().data()[(int64_t{1} << 40) - 1] = std::byte{1};
  EXPECT_EQ(region.value().data()[int64_t{1} << 39], std::byte{0});
}

TEST(SymmetricMemory, ImpossibleSizesAreErrors) {
  const auto region = PageRegion::create(int64_t{1} << 62);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.error().status, Status::kUnavailable);
  EXPECT_NE(region.error().message.find("4611686018427387904 bytes"), std::string::npos) << region.error().message;
  EXPECT_EQ(InProcessMemory::create(2, int64_t{1} << 62).error().status, Status::kUnavailable);
}

TEST(Flags, OnlyOneWins) {
  for (int round = 0; round < 50; ++round) {
    uint64_t word = 0;
    std::vector<int> won(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { won[i] = win<uint64_t>(word, i + 1) ? 1 : 0; });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won[0] + won[1] + won[2] + won[3], 1);
    EXPECT_EQ(won[word - 1], 1);
  }
}

// Plain payload between a publish and an await: right values, and clean under ThreadSanitizer.
TEST(Flags, PublishCarriesThePayload) {
  auto memory = InProcessMemory::create(2, sizeof(SymmetricFlags)).take();
  constexpr uint64_t kEpochs = 300;
  int64_t payload = 0;
  std::thread writer([&] {
    for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      const RankComm comm(*memory, 0, 0, epoch, 60000);
      double waited = 0;
      ASSERT_EQ(comm.await(comm.own_flags().drained[1], epoch - 1, {TaskKind::kDispatch, FlagName::kDrained, 2}, waited), Outcome::kDone);
      payload = static_cast<int64_t>(epoch * 3);
      comm.publish_arrived(epoch, 5);
    }
  });
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    const RankComm comm(*memory, 0, 1, epoch, 60000);
    double waited = 0;
    ASSERT_EQ(comm.await(comm.own_flags().arrived[0], epoch, {TaskKind::kRoutes, FlagName::kArrived, 1}, waited), Outcome::kDone);
    EXPECT_EQ(payload, static_cast<int64_t>(epoch * 3));
    EXPECT_EQ(look(comm.own_flags().num_tokens[0]), epoch);
    comm.publish_drained();
  }
  writer.join();
}

TEST(ErrorRecord, SentenceNamesRankRoleFlagAndNumbers) {
  ErrorRecord record;
  record.rank = 2;
  record.role = TaskKind::kRoutes;
  record.flag = FlagName::kArrived;
  record.peer = 1;
  record.expected = 7;
  record.seen = 6;
  record.timeout_ms = 30000;
  EXPECT_EQ(to_sentence(record), "rank 2, route lists: rank 1 did not arrive within 30000 ms (flag arrived, expected epoch 7, seen 6)");
  record = {Status::kTimeout, 0, TaskKind::kCombine, FlagName::kArrivals, -1, 5, 12, 4, 100};
  EXPECT_EQ(to_sentence(record), "rank 0, combine: one of the ranks that serve it did not send its contributions to token 5 within 100 ms "
                                 "(flag arrivals, expected pieces 12, seen 4)");
}

TEST(ErrorRecord, TheFirstStays) {
  SymmetricFlags flags{};
  EXPECT_FALSE(has_record(flags));
  write_record(flags, {Status::kTimeout, 63, TaskKind::kCombine, FlagName::kArrivals, -1, int64_t{1} << 40, 12, 4, 250});
  write_record(flags, {Status::kTimeout, 1, TaskKind::kRoutes, FlagName::kArrived, 2, -1, 9, 8, 1});
  ASSERT_TRUE(has_record(flags));
  const ErrorRecord read = read_record(flags);
  EXPECT_EQ(read.code, Status::kTimeout);
  EXPECT_EQ(read.rank, 63);
  EXPECT_EQ(read.role, TaskKind::kCombine);
  EXPECT_EQ(read.flag, FlagName::kArrivals);
  EXPECT_EQ(read.peer, -1);
  EXPECT_EQ(read.item, int64_t{1} << 40);
  EXPECT_EQ(read.expected, 12u);
  EXPECT_EQ(read.seen, 4u);
  EXPECT_EQ(read.timeout_ms, 250u);
}

TEST(RankComm, ATimeoutWritesOneRecordOnEveryRankAndEndsTheirWaits) {
  auto memory = InProcessMemory::create(3, sizeof(SymmetricFlags)).take();
  const RankComm comm(*memory, 0, 0, 4, 20);
  double waited = 0;
  const WaitPoint point{TaskKind::kRoutes, FlagName::kArrived, comm.bit(2)};
  EXPECT_EQ(comm.await(comm.own_flags().arrived[2], comm.epoch(), point, waited), Outcome::kAborted);
  EXPECT_GE(waited, 0.020);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(has_record(comm.flags(rank)));
    EXPECT_EQ(read_record(comm.flags(rank)).peer, 2);
  }
  // A wait without a clock ends too.
  const RankComm other(*memory, 0, 1, 4, 3600 * 1000);
  uint64_t never = 0;
  EXPECT_EQ(other.await<uint64_t>(never, 1, {TaskKind::kGemm2, FlagName::kBlockDone}, waited), Outcome::kAborted);
  EXPECT_EQ(read_record(other.own_flags()).rank, 0);
}

TEST(RankComm, ARefusalEndsTheWaitsOfItsEpochOnly) {
  auto memory = InProcessMemory::create(2, sizeof(SymmetricFlags)).take();
  const RankComm first(*memory, 0, 1, 1, 1000);
  first.publish_arrived(5, 5);
  const RankComm second(*memory, 0, 1, 2, 1000);
  second.publish_refused(RejectReason::kTooManyTokens, 129);
  // Epoch 1 is not refused: rank 1 arrived in it. Epoch 2 is.
  EXPECT_EQ(RankComm(*memory, 0, 0, 1, 1000).refusing_rank(), -1);
  const RankComm comm(*memory, 0, 0, 2, 3600 * 1000);
  EXPECT_EQ(comm.refusing_rank(), 1);
  double waited = 0;
  const WaitPoint point{TaskKind::kRoutes, FlagName::kArrived, comm.bit(1)};
  EXPECT_EQ(comm.await(comm.own_flags().arrived[1], comm.epoch(), point, waited), Outcome::kRejected);
  EXPECT_EQ(look(comm.own_flags().reject[1]), uint64_t{1} << 32 | 129);
  // Rank 1 refuses epoch 3 as well before rank 0 has looked at 2: still a refusal of 2. Then it goes on.
  const RankComm third(*memory, 0, 1, 3, 1000);
  third.publish_refused(RejectReason::kBadExpertId, 9);
  EXPECT_EQ(comm.refusing_rank(), 1);
  RankComm(*memory, 0, 1, 4, 1000).publish_arrived(1, 5);
  EXPECT_EQ(RankComm(*memory, 0, 0, 4, 1000).refusing_rank(), -1);
}

TEST(RankComm, RejectSentences) {
  EXPECT_EQ(reject_sentence(RejectReason::kTooManyTokens, 129, 128, 8), "129 tokens exceed the capacity of 128");
  EXPECT_EQ(reject_sentence(RejectReason::kBadExpertId, 8, 128, 8), "expert id 8 is not below 8");
}

}  // namespace
}  // namespace monomoe
