// Task order and ring: every task once and after those it waits for; producer and consumer meet in every stage.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/ring.h"
#include "plan/task_order.h"

namespace monomoe {
namespace {

using Key = std::tuple<TaskKind, int64_t, int64_t, int64_t>;

class TaskOrder : public ::testing::TestWithParam<TaskCounts> {};

TEST_P(TaskOrder, VisitsEachTaskOnceAfterThoseItWaitsFor) {
  const TaskCounts counts = GetParam();
  std::set<Key> done;
  const auto all_of = [&](TaskKind kind) {
    int64_t number = 0;
    for (const Key& key : done) number += std::get<0>(key) == kind ? 1 : 0;
    return number;
  };
  for (int64_t ticket = 0; ticket < counts.total(); ++ticket) {
    const Task task = task_at(counts, ticket);
    switch (task.kind) {
      case TaskKind::kDispatch:
        EXPECT_EQ(all_of(TaskKind::kRoutes), counts.routes_first ? counts.route_tasks : 0);
        EXPECT_LT(task.index, counts.dispatch_chunks);
        break;
      case TaskKind::kRoutes:
        EXPECT_EQ(all_of(TaskKind::kDispatch), counts.routes_first ? 0 : counts.dispatch_chunks);
        EXPECT_LT(task.index, counts.route_tasks);
        break;
      case TaskKind::kArrange:
        EXPECT_EQ(all_of(TaskKind::kRoutes), counts.route_tasks);
        EXPECT_EQ(all_of(TaskKind::kDispatch), counts.dispatch_chunks);
        EXPECT_LT(task.index, counts.arrange_tasks);
        EXPECT_LT(task.block, min_of(counts.arrange_ahead, counts.blocks));
        break;
      case TaskKind::kGemm1:
        EXPECT_EQ(all_of(TaskKind::kRoutes), counts.route_tasks);
        EXPECT_EQ(all_of(TaskKind::kDispatch), counts.dispatch_chunks);
        for (int64_t part = 0; part < counts.arrange_tasks && task.block < counts.arrange_ahead; ++part) {
          EXPECT_TRUE(done.contains({TaskKind::kArrange, part, task.block, 0}));
        }
        EXPECT_LT(task.block, counts.blocks);
        EXPECT_LT(task.tile, counts.gemm1_tiles);
        break;
      case TaskKind::kGemm2:
        // Its token block's whole intermediate.
        for (int64_t tile = 0; tile < counts.gemm1_tiles; ++tile) EXPECT_TRUE(done.contains({TaskKind::kGemm1, 0, task.block, tile}));
        EXPECT_LT(task.tile, counts.gemm2_tiles);
        break;
      case TaskKind::kCombine: EXPECT_EQ(all_of(TaskKind::kGemm2), counts.blocks * counts.gemm2_tiles); break;
      case TaskKind::kNone: FAIL() << ticket;
    }
    EXPECT_TRUE(done.insert({task.kind, task.index, task.block, task.tile}).second) << ticket;
  }
  EXPECT_EQ(all_of(TaskKind::kDispatch), counts.dispatch_chunks);
  EXPECT_EQ(all_of(TaskKind::kRoutes), counts.route_tasks);
  // The pieces without a ticket are those of the other blocks, in order.
  EXPECT_EQ(all_of(TaskKind::kArrange), min_of(counts.arrange_ahead, counts.blocks) * counts.arrange_tasks);
  EXPECT_EQ(counts.arranged_later(), max_of(0, counts.blocks - counts.arrange_ahead) * counts.arrange_pieces);
  for (int64_t number = 0; number < counts.arranged_later(); ++number) {
    const Task piece = later_piece(counts, number);
    EXPECT_EQ(piece.kind, TaskKind::kArrange);
    EXPECT_EQ((piece.block - counts.arrange_ahead) * counts.arrange_pieces + piece.index, number);
    EXPECT_LT(piece.block, counts.blocks);
    EXPECT_LT(piece.index, counts.arrange_pieces);
    EXPECT_TRUE(done.insert({piece.kind, piece.index, piece.block, piece.tile}).second);
  }
  EXPECT_EQ(all_of(TaskKind::kGemm1), counts.blocks * counts.gemm1_tiles);
  EXPECT_EQ(all_of(TaskKind::kGemm2), counts.blocks * counts.gemm2_tiles);
  EXPECT_EQ(all_of(TaskKind::kCombine), counts.combine_chunks);
  for (int64_t beyond = 0; beyond < 3; ++beyond) EXPECT_EQ(task_at(counts, counts.total() + beyond).kind, TaskKind::kNone);
}

TaskCounts counts_of(int64_t chunks, int64_t blocks, int64_t gemm1_tiles, int64_t gemm2_tiles) {
  return {.dispatch_chunks = chunks, .blocks = blocks, .gemm1_tiles = gemm1_tiles, .gemm2_tiles = gemm2_tiles, .combine_chunks = chunks};
}
TaskCounts gpu_counts(int64_t blocks, int64_t tasks, int64_t pieces, int64_t ahead, bool routes_first = false) {
  return {.dispatch_chunks = 2, .route_tasks = 6, .blocks = blocks, .gemm1_tiles = 3, .gemm2_tiles = 2, .combine_chunks = 5, .arrange_tasks = tasks,
          .arrange_pieces = pieces, .arrange_ahead = ahead, .routes_first = routes_first};
}

INSTANTIATE_TEST_SUITE_P(Counts, TaskOrder,
                         ::testing::Values(counts_of(0, 0, 1, 1), counts_of(3, 0, 2, 4), counts_of(0, 2, 3, 1), counts_of(4, 5, 3, 2),
                                           counts_of(1, 1, 1, 1), counts_of(2, 7, 16, 16), gpu_counts(9, 0, 0, 2), gpu_counts(9, 1, 4, 2), gpu_counts(1, 2, 4, 3),
                                           gpu_counts(0, 1, 4, 3), gpu_counts(7, 2, 2, 1), gpu_counts(9, 1, 4, 2, true), gpu_counts(0, 0, 0, 2, true)),
                         [](const auto& info) { return "Counts" + std::to_string(info.index); });

TEST(TaskOrder, TicketsPassTwoToThe31) {
  const TaskCounts counts = counts_of(int64_t{1} << 16, int64_t{1} << 27, 256, 256);
  EXPECT_EQ(counts.total(), 2 * (int64_t{1} << 16) + 1 + (int64_t{1} << 36));
  const Task last_gemm1 = task_at(counts, counts.before_gemms() + (int64_t{1} << 35) - 1);
  EXPECT_EQ(last_gemm1.kind, TaskKind::kGemm1);
  EXPECT_EQ(last_gemm1.block, (int64_t{1} << 27) - 1);
  EXPECT_EQ(last_gemm1.tile, 255);
  EXPECT_EQ(task_at(counts, counts.total() - 1).index, (int64_t{1} << 16) - 1);
}

TEST(TaskOrder, Gemm2BeginsWhereGemm1Ends) {
  const TaskCounts counts = counts_of(3, 5, 4, 7);
  EXPECT_EQ(counts.before_gemm2(), 3 + 1 + 5 * 4);
  EXPECT_EQ(task_at(counts, counts.before_gemm2() - 1).kind, TaskKind::kGemm1);
  EXPECT_EQ(task_at(counts, counts.before_gemm2()).kind, TaskKind::kGemm2);
  const TaskCounts no_blocks = counts_of(3, 0, 4, 7);
  EXPECT_EQ(task_at(no_blocks, no_blocks.before_gemm2() - 1).kind, TaskKind::kRoutes);
  EXPECT_EQ(task_at(no_blocks, no_blocks.before_gemm2()).kind, TaskKind::kCombine);
  const TaskCounts arranged = gpu_counts(5, 2, 4, 2);
  EXPECT_EQ(arranged.before_gemm2(), 2 + 6 + 2 * 2 + 5 * 3);
  EXPECT_EQ(arranged.arranged_later(), 3 * 4);
  EXPECT_EQ(task_at(arranged, arranged.before_gemm2()).kind, TaskKind::kGemm2);
}

TEST(TaskOrder, Gemm2TilesCoverHidden) {
  static_assert(gemm2_tiles(128) == 1 && gemm2_tiles(256) == 1 && gemm2_tiles(384) == 2 && gemm2_tiles(7168) == 28);
}

// mbarriers as the hardware has them: waiting for parity p returns once the phase with that parity has completed.
template <uint32_t kStages>
void walk_ring(uint32_t lead) {
  struct Barrier {
    uint64_t completed = 0;
    bool is_done(uint32_t parity) const { return (completed & 1) != parity; }
  };
  std::vector<Barrier> full(kStages), empty(kStages);
  std::vector<uint64_t> content(kStages, 0);
  auto producer = RingCursor<kStages>::producer();
  auto consumer = RingCursor<kStages>::consumer();
  uint64_t filled = 0, drained = 0;
  const uint64_t rounds = 5 * kStages;
  while (drained < rounds) {
    // The producer runs ahead by `lead` stages at most, as far as the barriers let it.
    while (filled < rounds && filled - drained < lead && empty[producer.slot].is_done(producer.phase)) {
      ASSERT_LT(filled - drained, kStages) << "a full stage would be overwritten";
      content[producer.slot] = filled++;
      ++full[producer.slot].completed;
      producer.advance();
    }
    ASSERT_TRUE(full[consumer.slot].is_done(consumer.phase)) << "the consumer would wait for ever";
    EXPECT_EQ(content[consumer.slot], drained++);
    ++empty[consumer.slot].completed;
    consumer.advance();
    const bool would_read = full[consumer.slot].is_done(consumer.phase);
    EXPECT_EQ(would_read, filled > drained) << "the consumer would read an empty stage, or miss a full one";
  }
}

TEST(Ring, ProducerAndConsumerMeetInEveryStage) {
  for (uint32_t lead : {1u, 2u, 100u}) {
    walk_ring<1>(lead);
    walk_ring<2>(lead);
    walk_ring<3>(lead);
    walk_ring<8>(lead);
  }
}

TEST(Ring, SkippingIsAdvancingManyTimes) {
  for (uint32_t start = 0; start < 20; ++start) {
    for (uint32_t count = 0; count < 40; ++count) {
      auto one = RingCursor<10>::consumer(), many = RingCursor<10>::consumer();
      for (uint32_t i = 0; i < start; ++i) one.advance(), many.advance();
      for (uint32_t i = 0; i < count; ++i) one.advance();
      many.skip(count);
      ASSERT_EQ(one.slot, many.slot) << start << " " << count;
      ASSERT_EQ(one.phase, many.phase) << start << " " << count;
    }
  }
}

template <uint32_t kStages>
void walk_both_rings() {
  auto cursor = RingCursor<kStages>::consumer();
  auto count = RingCount<kStages>::consumer();
  auto cursor_ahead = RingCursor<kStages>::producer();
  auto count_ahead = RingCount<kStages>::producer();
  for (uint32_t use = 0; use < 5 * kStages; ++use) {
    ASSERT_EQ(count.slot(), cursor.slot) << use;
    ASSERT_EQ(count.phase(), cursor.phase) << use;
    ASSERT_EQ(count_ahead.slot(), cursor_ahead.slot) << use;
    ASSERT_EQ(count_ahead.phase(), cursor_ahead.phase) << use;
    cursor.advance(), count.advance(), cursor_ahead.advance(), count_ahead.advance();
  }
}

TEST(Ring, InOneRegisterIsTheSame) {
  walk_both_rings<1>();
  walk_both_rings<3>();
  walk_both_rings<4>();
  walk_both_rings<6>();
}

}  // namespace
}  // namespace monomoe
