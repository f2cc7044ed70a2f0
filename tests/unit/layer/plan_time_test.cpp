// The least time of a layer: worked examples, and what must hold for any numbers.
#include "layer/plan_time.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "monomoe/monomoe.h"

namespace monomoe::layer {
namespace {

Problem flash(int64_t ranks) {
  Problem p;
  p.hidden = 4096;
  p.intermediate = 2048;
  p.experts = 256;
  p.topk = 6;
  p.ranks = ranks;
  p.capacity = 8192;
  p.weights = WeightFormat::kNvfp4;
  return p;
}

const GpuRates& h200() {
  for (const GpuRates& gpu : gpu_rates()) {
    if (std::string(gpu.name) == "H200") return gpu;
  }
  ADD_FAILURE();
  return gpu_rates()[0];
}

TEST(PlanTime, ManyTokensTouchEveryExpertAndAreBoundByProducts) {
  const LayerTime time = layer_time(flash(8), 4096, h200());
  EXPECT_DOUBLE_EQ(time.routes_per_rank, 4096 * 6);
  EXPECT_NEAR(time.touched_experts, 32, 1e-6);
  EXPECT_DOUBLE_EQ(time.flops, 2.0 * 3 * 4096 * 2048 * 4096 * 6);
  // 4096 * 6 * 7/8 rows of bf16 come back; out go codes and scales once to each other rank that serves a token.
  EXPECT_NEAR(time.link_bytes, 176.2e6 + 66.7e6, 0.2e6);
  EXPECT_DOUBLE_EQ(time.bound_seconds, time.product_seconds);
  EXPECT_STREQ(time.bound_by, "products");
}

TEST(PlanTime, FewTokensAreBoundByReading) {
  const LayerTime one = layer_time(flash(1), 1, h200());
  EXPECT_NEAR(one.touched_experts, 6, 0.1);  // six draws from 256
  EXPECT_EQ(one.link_bytes, 0);
  EXPECT_STREQ(one.bound_by, "read");
  const LayerTime all = layer_time(flash(8), 64, h200());
  EXPECT_NEAR(all.weight_bytes, 32 * 14.2e6, 6e6);
  EXPECT_NEAR(all.bound_seconds, 101e-6, 4e-6);
}

// A few of the figures that the constants were fitted to: one rank's work on an H200, in us.
TEST(PlanTime, ExpectedTimesAreNearWhatWasMeasured) {
  const struct {
    WeightFormat format;
    int64_t tokens;
    double us;
  } measured[] = {{WeightFormat::kNvfp4, 1, 61},      {WeightFormat::kNvfp4, 8, 128}, {WeightFormat::kNvfp4, 64, 152}, {WeightFormat::kNvfp4, 512, 338},
                  {WeightFormat::kNvfp4, 4096, 1601}, {WeightFormat::kFp8, 1, 74},    {WeightFormat::kFp8, 8, 189},    {WeightFormat::kFp8, 64, 212},
                  {WeightFormat::kFp8, 512, 312},     {WeightFormat::kFp8, 4096, 1541}};
  for (const auto& row : measured) {
    Problem rank = flash(1);
    rank.experts = 32;
    rank.weights = row.format;
    const LayerTime time = layer_time(rank, row.tokens, h200());
    EXPECT_NEAR(time.expected_seconds, row.us * 1e-6, 0.18 * row.us * 1e-6) << row.tokens;
    EXPECT_GT(time.expected_seconds, time.bound_seconds);
    EXPECT_LT(time.bound_seconds, row.us * 1e-6) << row.tokens;
  }
  // The figures nearest to the bound: 7168/3072 in FP8, 48 experts.
  Problem pro = flash(1);
  pro.hidden = 7168;
  pro.intermediate = 3072;
  pro.experts = 48;
  pro.weights = WeightFormat::kFp8;
  EXPECT_LT(layer_time(pro, 16, h200()).bound_seconds, 645e-6);
  EXPECT_LT(layer_time(pro, 64, h200()).bound_seconds, 723e-6);
  Problem mxfp4 = flash(8);
  mxfp4.weights = WeightFormat::kMxfp4;
  EXPECT_EQ(layer_time(mxfp4, 64, h200()).expected_seconds, layer_time(flash(8), 64, h200()).expected_seconds);  // the same bytes, the same code
}

TEST(PlanTime, NoTokensTakeNothing) {
  const LayerTime none = layer_time(flash(8), 0, h200());
  EXPECT_EQ(none.bound_seconds, 0);
  EXPECT_EQ(none.expected_seconds, 0);
}

TEST(PlanTime, TheReportNamesEveryGpuAndRefusesTooManyTokens) {
  monomoe_problem problem{};
  problem.struct_size = sizeof(problem);
  problem.format = MONOMOE_FP8;
  problem.hidden = problem.intermediate = 256;
  problem.experts = 4;
  problem.topk = 2;
  problem.ranks = 2;
  problem.capacity = 16;
  char* text = nullptr;
  ASSERT_EQ(monomoe_plan_time(&problem, 16, &text), MONOMOE_OK) << monomoe_last_error();
  const auto report = nlohmann::json::parse(text);
  monomoe_free_text(text);
  ASSERT_EQ(report["gpus"].size(), 3u);
  EXPECT_EQ(report["gpus"][2]["gpu"], "H20");
  EXPECT_FALSE(report["gpus"][0]["measured_rates"]);
  EXPECT_TRUE(report["gpus"][1]["measured_rates"]);
  EXPECT_EQ(monomoe_plan_time(&problem, 17, &text), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("17"), std::string::npos);
  problem.hidden = 100;
  EXPECT_EQ(monomoe_plan_time(&problem, 1, &text), MONOMOE_USAGE);
}

}  // namespace
}  // namespace monomoe::layer
