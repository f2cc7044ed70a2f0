// Placement tables: what is legal, which error a fault gives, and which copy serves whom.
#include <gtest/gtest.h>

#include "plan/placement_table.hpp"

namespace monomoe {
namespace {

using Entries = std::vector<PlacementEntry>;

std::string error_of(int64_t experts, int64_t ranks, const Entries& entries) {
  const auto table = PlacementTable::from_entries(experts, ranks, entries);
  return table.ok() ? "" : table.error().message;
}

TEST(Placement, EvenGivesTheFirstRanksOneMore) {
  const auto table = PlacementTable::even(128, 6);
  ASSERT_TRUE(table.ok());
  const PlacementView view = table.value().view();
  int32_t expert = 0;
  for (int32_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(view.num_slots(rank), rank < 2 ? 22 : 21);
    for (int32_t slot = 0; slot < view.num_slots(rank); ++slot, ++expert) {
      EXPECT_EQ(view.slot_expert[view.slot_begin[rank] + slot], expert);
      EXPECT_EQ(view.serving_copy(expert, 3).rank, rank);
      EXPECT_EQ(view.serving_copy(expert, 3).slot, slot);
    }
  }
  EXPECT_EQ(expert, 128);
  EXPECT_EQ(table.value().max_slots(), 22);
}

TEST(Placement, RanksMayHoldNothing) {
  const auto table = PlacementTable::even(2, 5);
  ASSERT_TRUE(table.ok());
  for (int32_t rank = 0; rank < 5; ++rank) EXPECT_EQ(table.value().view().num_slots(rank), rank < 2 ? 1 : 0);
  EXPECT_EQ(error_of(1, 3, {{0, 2, 0}}), "");
}

TEST(Placement, EntriesInAnyOrderGiveOneTable) {
  // Expert 1 twice on rank 0 and once on rank 2; expert 0 on rank 2.
  const auto table = PlacementTable::from_entries(2, 3, Entries{{1, 2, 1}, {1, 0, 1}, {0, 2, 0}, {1, 0, 0}});
  ASSERT_TRUE(table.ok()) << table.error().message;
  const PlacementTable moved = table.value();
  const PlacementView view = moved.view();
  EXPECT_EQ(view.experts, 2);
  EXPECT_EQ(view.ranks, 3);
  EXPECT_EQ(view.copy_begin[1], 1);
  EXPECT_EQ(view.copy_begin[2], 4);
  const ExpertCopy wanted[] = {{0, 0}, {0, 1}, {2, 1}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(view.copies[1 + i].rank, wanted[i].rank);
    EXPECT_EQ(view.copies[1 + i].slot, wanted[i].slot);
  }
  EXPECT_EQ(view.num_slots(1), 0);
  EXPECT_EQ(view.slot_expert[view.slot_begin[2] + 0], 0);
  EXPECT_EQ(view.slot_expert[view.slot_begin[2] + 1], 1);
  EXPECT_EQ(moved.max_slots(), 2);
}

TEST(Placement, ACopyOnTheSourceServesItElseCopiesTakeTurns) {
  const auto table = PlacementTable::from_entries(2, 6, Entries{{0, 0, 0}, {1, 1, 0}, {1, 3, 0}, {1, 4, 0}});
  ASSERT_TRUE(table.ok());
  const PlacementView view = table.value().view();
  for (int32_t src = 0; src < 6; ++src) EXPECT_EQ(view.serving_copy(0, src).rank, 0);
  const int32_t wanted[] = {1, 1, 4, 3, 4, 4};  // 1, 3 and 4 serve themselves; 0, 2 and 5 take copy src % 3
  for (int32_t src = 0; src < 6; ++src) EXPECT_EQ(view.serving_copy(1, src).rank, wanted[src]) << src;
}

TEST(Placement, ErrorsNameExpertRankAndSlot) {
  EXPECT_NE(error_of(2, 2, {{0, 0, 0}}).find("expert 1 of 2 is on none of the 2 ranks"), std::string::npos);
  EXPECT_NE(error_of(2, 2, {{0, 0, 0}, {2, 1, 0}}).find("expert 2 (rank 1, slot 0) is not among the layer's 2 experts"), std::string::npos);
  EXPECT_NE(error_of(2, 2, {{-1, 0, 0}}).find("expert -1"), std::string::npos);
  EXPECT_NE(error_of(1, 2, {{0, 2, 0}}).find("rank 2 of expert 0 (slot 0)"), std::string::npos);
  EXPECT_NE(error_of(1, 2, {{0, 0, -1}}).find("slot -1 of expert 0 on rank 0"), std::string::npos);
  EXPECT_NE(error_of(2, 2, {{0, 1, 0}, {1, 1, 0}}).find("slot 0 of rank 1 is given to expert 0 and to expert 1"), std::string::npos);
  EXPECT_NE(error_of(2, 2, {{0, 1, 0}, {1, 0, 1}}).find("rank 0 has no expert in slot 0 but expert 1 in slot 1"), std::string::npos);
  EXPECT_NE(error_of(1, 1, {{0, 0, INT32_MAX}}).find("slot 2147483647"), std::string::npos);
  EXPECT_NE(error_of(0, 1, {}).find("0 experts"), std::string::npos);
  EXPECT_NE(error_of(1025, 1, {}).find("1025 experts"), std::string::npos);
  EXPECT_NE(error_of(1, 65, {}).find("65 ranks"), std::string::npos);
  EXPECT_FALSE(PlacementTable::even(1, 0).ok());
}

TEST(PlacementText, SlotsFollowTheLinesOrAreGiven) {
  const auto counted = parse_placement("# experts\n0 1\n1 1 # second of rank 1\n\n2 0\r\n0 0", "p.txt");
  ASSERT_TRUE(counted.ok()) << counted.error().message;
  const Entries wanted{{0, 1, 0}, {1, 1, 1}, {2, 0, 0}, {0, 0, 1}};
  ASSERT_EQ(counted.value().size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(counted.value()[i].expert, wanted[i].expert);
    EXPECT_EQ(counted.value()[i].rank, wanted[i].rank);
    EXPECT_EQ(counted.value()[i].slot, wanted[i].slot);
  }
  const auto given = parse_placement("0 0 1\n1 0 0\n", "p.txt");
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given.value()[0].slot, 1);
}

TEST(PlacementText, ErrorsNameFileAndLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"0 0\n1\n", "p.txt, line 2: 1 words"},
      {"0 0\n\n1 0 0\n", "p.txt, line 3: 3 numbers where the lines before have 2"},
      {"0 x\n", "p.txt, line 1: rank \"x\""},
      {"-1 0\n", "p.txt, line 1: expert \"-1\""},
      {"0 0 99999999999\n", "p.txt, line 1: slot \"99999999999\""},
      {"# nothing\n", "p.txt: no placement in it"},
  };
  for (const auto& [text, message] : wrong) {
    const auto parsed = parse_placement(text, "p.txt");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().message.rfind(message, 0), 0u) << parsed.error().message;
  }
  EXPECT_NE(read_placement_file("/nonexistent/p.txt").error().message.find("/nonexistent/p.txt"), std::string::npos);
}

TEST(Placement, CopiesOfAnExpertHaveALimit) {
  const auto copies = [](int64_t count) {
    std::vector<PlacementEntry> entries;
    for (int32_t i = 0; i < count; ++i) entries.push_back({0, i % 2, i / 2});
    return PlacementTable::from_entries(1, 2, entries);
  };
  EXPECT_TRUE(copies(2 * kMaxCopiesPerRank).ok());
  const auto refused = copies(2 * kMaxCopiesPerRank + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("expert 0 has 9 copies; on 2 ranks an expert may have 8"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(PlacementTable::check_count(3, 2, 3).ok());
  EXPECT_TRUE(PlacementTable::check_count(3, 2, 24).ok());
  for (const int64_t count : {int64_t{-1}, int64_t{0}, int64_t{25}, INT64_MAX}) {
    const auto wrong = PlacementTable::check_count(3, 2, count);
    ASSERT_FALSE(wrong.ok()) << count;
    EXPECT_NE(wrong.error().message.find("there must be 1 to 24"), std::string::npos) << wrong.error().message;
  }
}

}  // namespace
}  // namespace monomoe
