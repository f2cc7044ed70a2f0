// Every rule of a problem, at its edges, and the sentence it gives.
#include <gtest/gtest.h>

#include "plan/problem_text.hpp"

namespace monomoe {
namespace {

constexpr Problem legal() {
  Problem p;
  p.hidden = 4096;
  p.intermediate = 2048;
  p.experts = 256;
  p.topk = 6;
  p.ranks = 8;
  p.capacity = 8192;
  return p;
}
template <class Change>
constexpr ProblemRule rule_after(Change change) {
  Problem p = legal();
  change(p);
  return broken_rule(p);
}

static_assert(broken_rule(legal()) == ProblemRule::kLegal);
static_assert(broken_rule(Problem{}) == ProblemRule::kHidden);
static_assert(rule_after([](Problem& p) { p.hidden = 0; }) == ProblemRule::kHidden);
static_assert(rule_after([](Problem& p) { p.hidden = -128; }) == ProblemRule::kHidden);
static_assert(rule_after([](Problem& p) { p.hidden = 2880; }) == ProblemRule::kHidden);
static_assert(rule_after([](Problem& p) { p.hidden = kMaxHidden; }) == ProblemRule::kLegal);
static_assert(rule_after([](Problem& p) { p.hidden = kMaxHidden + 128; }) == ProblemRule::kHidden);
static_assert(rule_after([](Problem& p) { p.intermediate = 0; }) == ProblemRule::kIntermediate);
static_assert(rule_after([](Problem& p) { p.intermediate = 80; }) == ProblemRule::kIntermediate);
static_assert(rule_after([](Problem& p) { p.intermediate = 96; }) == ProblemRule::kLegal);
static_assert(rule_after([](Problem& p) { p.intermediate = kMaxIntermediate + 32; }) == ProblemRule::kIntermediate);
static_assert(rule_after([](Problem& p) { p.experts = 0; }) == ProblemRule::kExperts);
static_assert(rule_after([](Problem& p) { p.experts = 1024; }) == ProblemRule::kLegal);
static_assert(rule_after([](Problem& p) { p.experts = 1025; }) == ProblemRule::kExperts);
static_assert(rule_after([](Problem& p) { p.topk = 0; }) == ProblemRule::kTopk);
static_assert(rule_after([](Problem& p) { p.topk = 32; }) == ProblemRule::kLegal);
static_assert(rule_after([](Problem& p) { p.topk = 33; }) == ProblemRule::kTopk);
static_assert(rule_after([](Problem& p) { p.ranks = 0; }) == ProblemRule::kRanks);
static_assert(rule_after([](Problem& p) { p.ranks = 65; }) == ProblemRule::kRanks);
static_assert(rule_after([](Problem& p) { p.capacity = -1; }) == ProblemRule::kCapacity);
static_assert(rule_after([](Problem& p) { p.capacity = 0; }) == ProblemRule::kLegal);
static_assert(rule_after([](Problem& p) { p.capacity = kMaxCapacity + 1; }) == ProblemRule::kCapacity);
static_assert(rule_after([](Problem& p) { p.weights = WeightFormat::kBf16; }) == ProblemRule::kFormat);

template <class Change>
std::string sentence_after(Change change) {
  Problem p = legal();
  change(p);
  const auto checked = check(p);
  return checked.ok() ? "" : checked.error().message;
}

TEST(ProblemText, SaysValueRuleAndNearest) {
  EXPECT_EQ(sentence_after([](Problem&) {}), "");
  EXPECT_EQ(sentence_after([](Problem& p) { p.hidden = 2880; }), "hidden is 2880; it must be a multiple of 128 (nearest: 2816, 2944)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.hidden = 100; }), "hidden is 100; it must be a multiple of 128 (nearest: 128)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.hidden = 0; }),
            "hidden is 0; it must be a multiple of 128 from 128 to 65536 (nearest: 128)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.hidden = 65664; }),
            "hidden is 65664; it must be a multiple of 128 from 128 to 65536 (nearest: 65536)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.intermediate = 80; }),
            "intermediate is 80; it must be a multiple of 32 (nearest: 64, 96)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.experts = 1025; }), "experts is 1025; it must be 1 to 1024 (nearest: 1024)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.topk = 0; }), "topk is 0; it must be 1 to 32 (nearest: 1)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.ranks = 100; }), "ranks is 100; it must be 1 to 64 (nearest: 64)");
  EXPECT_EQ(sentence_after([](Problem& p) { p.capacity = -5; }),
            "capacity (tokens of one rank) is -5; it must be 0 to 1048576 (nearest: 0)");
  EXPECT_NE(sentence_after([](Problem& p) { p.weights = WeightFormat::kBf16; }).find("weights are bf16"), std::string::npos);
  EXPECT_NE(sentence_after([](Problem& p) { p.weights = WeightFormat::kBf16; }).find("`monomoe pack --to "), std::string::npos);
}

// Padding is what the GEMMs see; every size that is legal pads up, never down.
TEST(Problem, PadsTheIntermediate) {
  for (int64_t i = 32; i <= 512; i += 32) {
    Problem p = legal();
    p.intermediate = i;
    EXPECT_EQ(p.padded_intermediate() % 128, 0);
    EXPECT_GE(p.padded_intermediate(), i);
    EXPECT_LT(p.padded_intermediate(), i + 128);
    EXPECT_EQ(p.intermediate_blocks() * 128, p.padded_intermediate());
  }
}

TEST(ProblemText, FormatNamesGoBothWays) {
  for (const char* name : {"fp8", "nvfp4", "mxfp4", "bf16"}) {
    const auto format = weight_format_from_text(name);
    ASSERT_TRUE(format.has_value());
    EXPECT_EQ(weight_format_text(*format), name);
  }
  EXPECT_FALSE(weight_format_from_text("FP8").has_value());
  EXPECT_FALSE(weight_format_from_text("").has_value());
}

}  // namespace
}  // namespace monomoe
