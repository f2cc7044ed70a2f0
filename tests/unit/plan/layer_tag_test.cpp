// The tag by which ranks of a world notice that they run different layers.
#include "plan/layer_tag.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace monomoe {
namespace {

constexpr Problem kProblem{.hidden = 256, .intermediate = 96, .experts = 4, .topk = 2, .ranks = 2};

PlacementTable table(std::vector<PlacementEntry> entries) { return PlacementTable::from_entries(4, 2, entries).take(); }

TEST(LayerTag, FollowsFromWhatRanksHaveInCommon) {
  const PlacementTable even = PlacementTable::even(4, 2).take();
  const PlacementTable same = table({{3, 1, 1}, {0, 0, 0}, {1, 0, 1}, {2, 1, 0}});
  const uint64_t tag = world_layer_tag(kProblem, even, 4.0f, 7);
  EXPECT_EQ(world_layer_tag(kProblem, same, 4.0f, 7), tag);
  // What a rank alone knows, or what the workspace decides, does not count.
  Problem other = kProblem;
  other.weights = WeightFormat::kNvfp4;
  other.topk = 5;
  other.capacity = 99;
  EXPECT_EQ(world_layer_tag(other, even, 4.0f, 7), tag);
}

TEST(LayerTag, DiffersWithShapePlacementClampAndNumber) {
  const PlacementTable even = PlacementTable::even(4, 2).take();
  std::set<uint64_t> tags = {world_layer_tag(kProblem, even, 4.0f, 7)};
  const auto is_new = [&](uint64_t tag) { return tags.insert(tag).second; };
  EXPECT_TRUE(is_new(world_layer_tag(kProblem, even, 4.5f, 7)));
  EXPECT_TRUE(is_new(world_layer_tag(kProblem, even, 4.0f, 8)));
  Problem wide = kProblem, deep = kProblem;
  wide.hidden = 384;
  deep.intermediate = 128;
  EXPECT_TRUE(is_new(world_layer_tag(wide, even, 4.0f, 7)));
  EXPECT_TRUE(is_new(world_layer_tag(deep, even, 4.0f, 7)));
  EXPECT_TRUE(is_new(world_layer_tag(kProblem, table({{0, 0, 1}, {1, 0, 0}, {2, 1, 0}, {3, 1, 1}}), 4.0f, 7)));
  EXPECT_TRUE(is_new(world_layer_tag(kProblem, table({{0, 1, 0}, {1, 0, 0}, {2, 0, 1}, {3, 1, 1}}), 4.0f, 7)));
  EXPECT_TRUE(is_new(world_layer_tag(kProblem, table({{0, 0, 0}, {1, 0, 1}, {2, 1, 0}, {3, 1, 1}, {0, 1, 2}}), 4.0f, 7)));
}

TEST(LayerTag, IsAnotherForEachLayerOfOneProcess) {
  const uint64_t first = unique_layer_tag();
  EXPECT_NE(unique_layer_tag(), first);
}

}  // namespace
}  // namespace monomoe
