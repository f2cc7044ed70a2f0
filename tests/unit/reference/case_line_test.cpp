// Case lines: what is read, what is refused and which key the refusal names; the shared list covers what it must.
#include "reference/case_line.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace monomoe {
namespace {

constexpr const char* kLine = "ranks=4 experts=16 topk=4 tokens=37 hidden=512 inter=256 w=nvfp4 seed=3";

TEST(CaseLine, ReadsEveryKey) {
  const auto parsed = parse_case(
      "ranks=3 experts=5 topk=2 tokens=9 hidden=384 inter=96 w=mxfp4 seed=18446744073709551615 capacity=12 limit=7.5 dist=masked rows=4+0+5 "
      "placement=redundant");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const Case& c = parsed.value();
  EXPECT_EQ(c.problem.ranks, 3);
  EXPECT_EQ(c.problem.experts, 5);
  EXPECT_EQ(c.problem.topk, 2);
  EXPECT_EQ(c.problem.hidden, 384);
  EXPECT_EQ(c.problem.intermediate, 96);
  EXPECT_EQ(c.problem.capacity, 12);
  EXPECT_EQ(c.problem.weights, WeightFormat::kMxfp4);
  EXPECT_EQ(c.tokens, 9);
  EXPECT_EQ(c.rows, (std::vector<int64_t>{4, 0, 5}));
  EXPECT_EQ(c.seed, UINT64_MAX);
  EXPECT_EQ(c.limit, 7.5f);
  EXPECT_EQ(c.distribution, RouteDistribution::kMasked);
  EXPECT_EQ(c.placement, PlacementKind::kRedundant);
}

TEST(CaseLine, DefaultsAreEvenRowsAndTheLargestRank) {
  const auto parsed = parse_case(kLine);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value().rows, (std::vector<int64_t>{10, 9, 9, 9}));
  EXPECT_EQ(parsed.value().problem.capacity, 10);
  EXPECT_TRUE(std::isinf(parsed.value().limit));
  const auto from_rows = parse_case("ranks=2 experts=1 topk=1 hidden=128 inter=32 w=fp8 rows=1+3");
  ASSERT_TRUE(from_rows.ok()) << from_rows.error().message;
  EXPECT_EQ(from_rows.value().tokens, 4);
  EXPECT_EQ(from_rows.value().problem.capacity, 3);
}

TEST(CaseLine, TextParsesToTheSameCase) {
  for (const char* extra : {"", " dist=zipf placement=random limit=0.1", " rows=37+0+0+0 capacity=40"}) {
    const auto first = parse_case(std::string(kLine) + extra);
    ASSERT_TRUE(first.ok()) << first.error().message;
    const auto second = parse_case(case_text(first.value()));
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_EQ(case_text(first.value()), case_text(second.value()));
    EXPECT_EQ(first.value().limit, second.value().limit);
    EXPECT_EQ(first.value().rows, second.value().rows);
  }
}

TEST(CaseLine, ErrorsNameTheKey) {
  const std::pair<std::string, const char*> wrong[] = {
      {std::string(kLine) + " colour=red", "unknown key \"colour\""},
      {std::string(kLine) + " seed=4", "key \"seed\" is given twice"},
      {std::string(kLine) + " quick", "\"quick\" is not key=value"},
      {std::string(kLine) + " capacity=9", "capacity=9: rank 0 has 10 tokens"},
      {std::string(kLine) + " capacity=many", "capacity=many: wanted a whole number"},
      {std::string(kLine) + " limit=-1", "limit=-1: wanted \"none\" or a number above 0"},
      {std::string(kLine) + " limit=nan", "limit=nan"},
      {std::string(kLine) + " dist=flat", "dist=flat: wanted uniform, zipf, one, masked"},
      {std::string(kLine) + " placement=odd", "placement=odd: wanted even, random, redundant"},
      {std::string(kLine) + " rows=1+2+3", "rows=1+2+3: 3 numbers for ranks=4"},
      {std::string(kLine) + " rows=1+2+3+4", "rows=1+2+3+4: they sum to 10, but tokens=37"},
      {std::string(kLine) + " rows=1+2++4", "rows=1+2++4: \"\" is not a number of tokens"},
      {"experts=1 topk=1 tokens=1 hidden=100 inter=32 w=fp8", "hidden is 100; it must be a multiple of 128"},
      {"experts=1 topk=1 tokens=1 hidden=128 inter=32 w=fp16", "w=fp16: wanted fp8, nvfp4 or mxfp4"},
      {"experts=1 topk=1 tokens=1 hidden=128 inter=32", "key \"w\" is missing"},
      {"experts=1 topk=1 hidden=128 inter=32 w=fp8", "key \"tokens\" (or \"rows\") is missing"},
      {"experts=1 topk=33 tokens=1 hidden=128 inter=32 w=fp8", "topk is 33"},
      {"experts=1 topk=1 tokens=-1 hidden=128 inter=32 w=fp8", "tokens=-1"},
      {"experts=1 topk=1 tokens=1048577 hidden=128 inter=32 w=fp8", "capacity (tokens of one rank) is 1048577"},
  };
  for (const auto& [line, message] : wrong) {
    const auto parsed = parse_case(line);
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_NE(parsed.error().message.find(message), std::string::npos) << line << "\n" << parsed.error().message;
  }
}

TEST(CaseList, SkipsCommentsAndNamesTheLine) {
  const auto list = parse_cases(std::string("# first\n\n  ") + kLine + "  # why\r\n", "list.txt");
  ASSERT_TRUE(list.ok()) << list.error().message;
  ASSERT_EQ(list.value().size(), 1u);
  EXPECT_EQ(list.value()[0].line, kLine);
  EXPECT_EQ(list.value()[0].line_number, 3);
  const auto wrong = parse_cases("\nranks=2 topk\n", "list.txt");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message.rfind("list.txt, line 2: ", 0), 0u) << wrong.error().message;
  EXPECT_FALSE(parse_cases("# nothing\n", "list.txt").ok());
  EXPECT_FALSE(read_case_file("/nonexistent/cases.txt").ok());
}

TEST(CaseList, ContractListCoversWhatItMust) {
  const auto list = read_case_file(std::string(MONOMOE_SOURCE_DIR) + "/tests/cases/contract.txt");
  ASSERT_TRUE(list.ok()) << list.error().message;
  std::set<int64_t> tokens, ranks, topk, hidden, inter;
  std::set<RouteDistribution> distributions;
  std::set<PlacementKind> placements;
  std::set<WeightFormat> formats;
  for (const ListedCase& listed : list.value()) {
    const Case& c = listed.parsed;
    tokens.insert(c.tokens);
    ranks.insert(c.problem.ranks);
    topk.insert(c.problem.topk);
    hidden.insert(c.problem.hidden);
    inter.insert(c.problem.intermediate);
    distributions.insert(c.distribution);
    placements.insert(c.placement);
    formats.insert(c.problem.weights);
    EXPECT_LE(c.tokens * c.problem.topk * 3 * c.problem.hidden * c.problem.intermediate, 20'000'000) << listed.line;
  }
  for (int64_t wanted : {0, 1, 7, 9, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129, 255, 257}) EXPECT_TRUE(tokens.contains(wanted)) << wanted;
  for (int64_t wanted : {1, 2, 3, 4, 8}) EXPECT_TRUE(ranks.contains(wanted)) << wanted;
  for (int64_t wanted : {1, 2, 3, 4, 5, 6, 7, 8, 32}) EXPECT_TRUE(topk.contains(wanted)) << wanted;
  for (int64_t wanted : {128, 384, 640}) EXPECT_TRUE(hidden.contains(wanted)) << wanted;
  for (int64_t wanted : {32, 96, 192, 352}) EXPECT_TRUE(inter.contains(wanted)) << wanted;
  EXPECT_EQ(distributions.size(), 4u);
  EXPECT_EQ(placements.size(), 3u);
  EXPECT_EQ(formats.size(), 3u);
}

TEST(CasePlacement, IsWholeAndAsNamed) {
  for (const char* kind : {"even", "random", "redundant"}) {
    const auto parsed = parse_case(std::string("ranks=5 experts=23 topk=1 tokens=1 hidden=128 inter=32 w=fp8 seed=9 placement=") + kind);
    ASSERT_TRUE(parsed.ok());
    const auto table = placement_of(parsed.value());
    ASSERT_TRUE(table.ok()) << table.error().message;
    const PlacementView view = table.value().view();
    const int32_t copies = view.copy_begin[23];
    EXPECT_EQ(copies > 23, parsed.value().placement == PlacementKind::kRedundant) << kind << copies;
    EXPECT_EQ(view.slot_begin[5], copies);
  }
}

}  // namespace
}  // namespace monomoe
