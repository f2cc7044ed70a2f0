// The plan report: sums, regions and rules.
#include "layer/plan_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/weight_packing.h"

namespace monomoe::layer {
namespace {

nlohmann::json report(const Problem& problem) { return nlohmann::json::parse(plan_report(problem)); }

TEST(PlanReport, BytesAddUp) {
  const Problem problem{4096, 2048, 256, 6, 8, 64, WeightFormat::kNvfp4};
  const auto json = report(problem);
  ASSERT_EQ(json["legal"], true);
  const auto& bytes = json["bytes_per_rank"];
  for (const char* part : {"symmetric", "workspace"}) {
    int64_t sum = 0;
    for (const auto& [name, size] : json["regions"][part].items()) {
      EXPECT_GT(size.get<int64_t>(), 0) << part << " " << name;
      sum += size.get<int64_t>();
    }
    EXPECT_EQ(sum, bytes[part]) << part;
  }
  EXPECT_EQ(bytes["weights"], 32 * expert_layout(problem).bytes);
  EXPECT_EQ(bytes["total"], bytes["symmetric"].get<int64_t>() + bytes["workspace"].get<int64_t>() + bytes["weights"].get<int64_t>());
  // 64 tokens a rank to 6 experts: contributions are 64 * 6 * 4096 bf16.
  EXPECT_EQ(json["regions"]["symmetric"]["contributions"], 64 * 6 * 4096 * 2);
}

TEST(PlanReport, TheFullestRankCounts) {
  // 128 experts on 6 ranks: 22 on the first two.
  const Problem problem{1024, 512, 128, 4, 6, 16, WeightFormat::kFp8};
  const auto json = report(problem);
  EXPECT_EQ(json["regions"]["weights"]["experts_of_the_fullest_rank"], 22);
  EXPECT_EQ(json["bytes_per_rank"]["weights"], 22 * expert_layout(problem).bytes);
}

TEST(PlanReport, PaddingAndTiles) {
  const auto json = report({640, 352, 4, 2, 1, 8, WeightFormat::kMxfp4});
  EXPECT_EQ(json["padding"]["intermediate"], 384);
  EXPECT_EQ(json["padding"]["zero_channels"], 32);
  EXPECT_EQ(json["tiles"]["gemm1_tiles_per_block"], 3);
  EXPECT_EQ(json["tiles"]["gemm2_tiles_per_block"], 3);  // 640 = 2.5 tiles of 256 rows
}

TEST(PlanReport, ABrokenRuleIsAReport) {
  const auto json = report({4096, 2000, 256, 6, 8, 64, WeightFormat::kNvfp4});
  EXPECT_EQ(json["legal"], false);
  EXPECT_NE(json["rule"].get<std::string>().find("intermediate is 2000"), std::string::npos) << json["rule"];
  EXPECT_FALSE(json.contains("bytes_per_rank"));
}

}  // namespace
}  // namespace monomoe::layer
