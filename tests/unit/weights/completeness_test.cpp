// What a whole checkpoint lacks: numbered shards and counted layers; and the lists those messages are made of.
#include "weights/completeness.hpp"

#include "unit/weights/checkpoint_builder.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

using test_support::CheckpointBuilder;
using test_support::expect_error;
using test_support::Packing;
using test_support::TempDir;

Completeness completeness(const TempDir& dir) {
  Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
  return checkpoint.ok() ? check_completeness(checkpoint.value()) : Completeness{};
}

CheckpointBuilder layers(std::initializer_list<int> numbers) {
  CheckpointBuilder builder;
  for (const int layer : numbers) builder.add_experts("layers." + std::to_string(layer) + ".ffn.", Packing::kMxfp4, 1, 128, 32);
  return builder;
}

TEST(Completeness, NamesTheShardsThatAreMissing) {
  TempDir dir;
  layers({0}).write(dir, "model-00002-of-00005.safetensors");
  layers({1}).write(dir, "model-00004-of-00005.safetensors");
  layers({2}).write(dir, "other-1-of-1.safetensors");
  layers({3}).write(dir, "not-a-of-number.safetensors");
  const Completeness found = completeness(dir);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_NE(found.problems[0].find("number 1, 3, 5 is missing"), std::string::npos) << found.problems[0];
  EXPECT_TRUE(found.notes.empty());
}

TEST(Completeness, LayersThatConfigCountsAreNoted) {
  TempDir dir;
  layers({1, 4}).write(dir);
  dir.write("config.json", R"({"num_hidden_layers":7,"first_k_dense_replace":1})");
  Completeness found = completeness(dir);
  EXPECT_TRUE(found.problems.empty());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("layers 2..3, 5..6 are not here"), std::string::npos) << found.notes[0];
  dir.write("config.json", R"({"num_hidden_layers":1000000000,"first_k_dense_replace":2})");  // a wrong number costs no minutes
  found = completeness(dir);
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_NE(found.notes[0].find("layers 1 have experts"), std::string::npos) << found.notes[0];
}

TEST(Completeness, OddExpertNumbersAreNamedAsSuch) {
  TempDir dir;
  CheckpointBuilder builder = layers({0});
  builder.add("layers.0.ffn.experts.01.w1.weight", DType::U8, {1}, {0});
  builder.write(dir);
  expect_error(Checkpoint::open(dir.path()).value().load_layer(0),
               {"layers.0.ffn.experts.01.w1.weight", "(model.safetensors)", "expert number \"01\"", "rename"});
}

TEST(Text, ProblemListsPrefixTheirOwnSentencesOnly) {
  ProblemList inner(20, "a: ");
  inner.add("x");
  inner.add("y");
  ProblemList outer(2, "b: ");
  outer.add_lines(inner.text());
  outer.add("z");
  EXPECT_EQ(outer.count(), 3);
  EXPECT_EQ(outer.text(), "a: x\n  a: y\n  and 1 more");
  EXPECT_EQ(ranges_text(std::vector<int64_t>{0, 2, 3, 4, 9}), "0, 2..4, 9");
  EXPECT_EQ(ranges_text(std::vector<int64_t>{}), "");
}

}  // namespace
}  // namespace monomoe
