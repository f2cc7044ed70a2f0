// The promises of the contract: what a token's output does not depend on.
#include <cmath>
#include <cstring>
#include <numeric>

#include "contract/abi_layer.hpp"
#include "numerics/bf16.h"

namespace monomoe::contract {
namespace {

// Padded intermediate, an odd last half tile, dropped slots, an expert count that no rank count divides.
constexpr const char* kPromiseLine = "ranks=1 experts=7 topk=3 tokens=37 hidden=384 inter=160 w=nvfp4 seed=101 limit=2 dist=masked";

class Promises : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    layer = new AbiLayer(kPromiseLine);
    want = new std::vector<uint16_t>(layer->expected());
  }
  static void TearDownTestSuite() {
    delete layer;
    delete want;
  }
  static ::testing::AssertionResult holds(const RunPlan& plan) { return same_bits(run_layer(*layer, plan), *want, layer->c.problem.hidden); }

  static AbiLayer* layer;
  static std::vector<uint16_t>* want;
};
AbiLayer* Promises::layer = nullptr;
std::vector<uint16_t>* Promises::want = nullptr;

TEST_F(Promises, AnyNumberOfRanks) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    RunPlan plan;
    plan.rows = even_rows(37, ranks);
    EXPECT_TRUE(holds(plan));
  }
}

TEST_F(Promises, AnySplitOfTheTokens) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{0, 0, 37}, {37, 0, 0}, {1, 0, 36}, {20, 17, 0}}) {
    RunPlan plan;
    plan.rows = rows;
    EXPECT_TRUE(holds(plan));
  }
}

TEST_F(Promises, AnyPlacement) {
  std::vector<PlacementEntry> last_rank, twice, reversed;
  for (int32_t e = 0; e < 7; ++e) {
    last_rank.push_back({e, 3, e});
    reversed.push_back({e, (6 - e) % 4, (6 - e) / 4});
    for (int32_t rank = 0; rank < 4; ++rank) twice.push_back({e, rank, e});
  }
  twice.push_back({5, 2, 7});  // a second copy on one rank
  for (const std::vector<PlacementEntry>* entries : {&last_rank, &twice, &reversed}) {
    auto table = PlacementTable::from_entries(7, 4, *entries);
    ASSERT_TRUE(table.ok()) << table.error().message;
    RunPlan plan;
    plan.rows = even_rows(37, 4);
    plan.placement = &table.value();
    EXPECT_TRUE(holds(plan));
  }
  Case c = layer->c;
  c.problem.ranks = 5;
  for (const PlacementKind kind : {PlacementKind::kRandom, PlacementKind::kRedundant}) {
    c.placement = kind;
    auto table = placement_of(c);
    ASSERT_TRUE(table.ok()) << table.error().message;
    RunPlan plan;
    plan.rows = even_rows(37, 5);
    plan.placement = &table.value();
    EXPECT_TRUE(holds(plan));
  }
}

TEST_F(Promises, AnyCapacity) {
  for (const int64_t capacity : {19, 20, 76}) {
    RunPlan plan;
    plan.rows = even_rows(37, 2);
    plan.capacity = capacity;
    EXPECT_TRUE(holds(plan)) << capacity;
  }
}

TEST_F(Promises, AnyThreadCount) {
  for (const int32_t threads : {1, 2, 5}) {
    RunPlan plan;
    plan.rows = even_rows(37, 2);
    plan.setting.threads = threads;
    EXPECT_TRUE(holds(plan)) << threads;
  }
}

TEST_F(Promises, AnyVectorWidth) {
  int tried = 0;
  for (const int32_t bits : {128, 256, 512}) {
    Setting setting;
    setting.vector_bits = bits;
    monomoe_status status = MONOMOE_OK;
    make_context(1, setting, &status);
    if (status == MONOMOE_UNAVAILABLE) continue;
    ++tried;
    RunPlan plan;
    plan.rows = {37};
    plan.setting = setting;
    EXPECT_TRUE(holds(plan)) << bits;
  }
  EXPECT_GE(tried, 1);
}

TEST_F(Promises, AnyEarlierContentsOfTheWorkspace) {
  for (const int byte : {0x00, 0xFF, 0x7F}) {
    RunPlan plan;
    plan.rows = even_rows(37, 3);
    plan.poison = byte;
    EXPECT_TRUE(holds(plan)) << byte;
  }
}

// Rows [from, from + count) of the case's output.
std::vector<uint16_t> rows_of(const std::vector<uint16_t>& y, int64_t from, int64_t count, int64_t hidden) {
  return {y.begin() + from * hidden, y.begin() + (from + count) * hidden};
}

TEST(BatchPosition, ATokenAloneFirstOrLast) {
  for (const char* format : {"fp8", "mxfp4"}) {
    const AbiLayer layer(std::string("ranks=1 experts=3 topk=2 tokens=257 hidden=256 inter=128 seed=102 w=") + format);
    RunPlan all;
    all.rows = {257};
    const std::vector<uint16_t> batch = run_layer(layer, all);
    // The first token of every batch is the case's first: its bits may not change with what follows.
    for (const int64_t tokens : {1, 16, 256}) {
      RunPlan plan;
      plan.rows = {tokens};
      EXPECT_TRUE(same_bits(run_layer(layer, plan), rows_of(batch, 0, tokens, 256), 256)) << format << ", " << tokens << " tokens";
    }
    // The last token of a batch, alone: the same layer with that token in front.
    for (const int64_t last : {15, 255, 256}) {
      AbiLayer alone(layer.c);
      std::copy_n(layer.random.x.begin() + last * 256, 256, alone.random.x.begin());
      std::copy_n(layer.random.ids.begin() + last * 2, 2, alone.random.ids.begin());
      std::copy_n(layer.random.weights.begin() + last * 2, 2, alone.random.weights.begin());
      RunPlan plan;
      plan.rows = {1};
      EXPECT_TRUE(same_bits(run_layer(alone, plan), rows_of(batch, last, 1, 256), 256)) << format << ", token " << last;
    }
  }
}

TEST(NonFinite, ARowStaysAlone) {
  constexpr int64_t kHidden = 256;
  const std::string line = "ranks=1 experts=4 topk=2 tokens=19 hidden=256 inter=128 w=fp8 seed=103";
  const std::vector<uint16_t> clean = AbiLayer(line).expected();
  struct Fault {
    const char* what;
    void (*apply)(AbiLayer&);
  };
  const Fault faults[] = {{"NaN in x", [](AbiLayer& l) { l.random.x[5 * kHidden + 200] = kBf16NaN; }},
                          {"infinity in x", [](AbiLayer& l) { l.random.x[5 * kHidden] = 0xFF80; }},
                          {"NaN weight", [](AbiLayer& l) { l.random.weights[5 * 2 + 1] = std::nanf(""); }},
                          {"infinite weight", [](AbiLayer& l) { l.random.weights[5 * 2] = INFINITY; }}};
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.what);
    AbiLayer layer(line);
    fault.apply(layer);
    std::vector<uint16_t> want = clean;
    std::fill_n(want.begin() + 5 * kHidden, kHidden, kBf16NaN);
    for (const int64_t ranks : {1, 3}) {
      RunPlan plan;
      plan.rows = even_rows(19, ranks);
      EXPECT_TRUE(same_bits(run_layer(layer, plan), want, kHidden));
    }
  }
}

TEST(DroppedSlots, AreSkippedAndTheirWeightsNeverRead) {
  AbiLayer layer("ranks=1 experts=4 topk=2 tokens=3 hidden=128 inter=64 w=nvfp4 seed=104");
  layer.random.ids = {-1, 3, -1, -1, -2147483648LL, 2};
  layer.random.weights = {std::nanf(""), 0.5f, std::nanf(""), INFINITY, std::nanf(""), -0.25f};
  RunPlan plan;
  plan.rows = {2, 1};
  plan.poison = 0xFF;
  const std::vector<uint16_t> y = run_layer(layer, plan);
  EXPECT_TRUE(same_bits(y, layer.expected(), 128));
  EXPECT_EQ(rows_of(y, 1, 1, 128), std::vector<uint16_t>(128, 0));  // written, +0
}

TEST(EqualIds, EachSlotCounts) {
  AbiLayer layer("ranks=1 experts=3 topk=4 tokens=9 hidden=128 inter=96 w=mxfp4 seed=105");
  std::fill(layer.random.ids.begin(), layer.random.ids.end(), 2);
  RunPlan plan;
  plan.rows = even_rows(9, 2);
  EXPECT_TRUE(same_bits(run_layer(layer, plan), layer.expected(), 128));
}

}  // namespace
}  // namespace monomoe::contract
