// What the ABI's errors about checkpoints and tensor files name: directory, layer, tensor, and what a file holds instead.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "monomoe/checkpoint.h"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe::layer {
namespace {

using Json = nlohmann::json;
using test_support::Bytes;
using test_support::bytes_of;
using test_support::CheckpointBuilder;
using test_support::Packing;
using test_support::TempDir;

constexpr int64_t kHidden = 128;

// Two experts, a router by token id over ten tokens, and a shared expert too narrow for the kernel's rule.
CheckpointBuilder hash_layer() {
  CheckpointBuilder builder;
  builder.add_experts("layers.0.ffn.", Packing::kMxfp4, 2, kHidden, 32);
  builder.add_matrix("layers.0.ffn.shared_experts.w1", Packing::kFp8, 48, kHidden);
  builder.add_matrix("layers.0.ffn.shared_experts.w3", Packing::kFp8, 48, kHidden);
  builder.add_matrix("layers.0.ffn.shared_experts.w2", Packing::kFp8, kHidden, 48);
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {2, kHidden}, Bytes(2 * 2 * kHidden));
  builder.add("layers.0.ffn.gate.tid2eid", DType::I64, {10, 1}, bytes_of(std::vector<int64_t>(10, 1)));
  return builder;
}

class CheckpointMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    hash_layer().write(dir_);
    dir_.write("config.json", R"({"model_type":"deepseek_v4","num_experts_per_tok":1,"num_hash_layers":1})");
    ASSERT_EQ(monomoe_checkpoint_open(dir_.path().c_str(), &checkpoint_), MONOMOE_OK) << monomoe_last_error();
  }
  void TearDown() override { monomoe_checkpoint_close(checkpoint_); }

  static void expect_words(std::initializer_list<std::string> words) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(monomoe_last_error()).find(word), std::string::npos) << word << " in: " << monomoe_last_error();
    }
  }

  TempDir dir_;
  monomoe_checkpoint* checkpoint_ = nullptr;
};

TEST_F(CheckpointMessages, TokenIdsNameLayerPositionAndRange) {
  const std::vector<uint16_t> x(2 * kHidden, 0);
  int64_t ids[2] = {}, tokens[2] = {9, 10};
  float weights[2] = {};
  EXPECT_EQ(monomoe_checkpoint_route(checkpoint_, 0, x.data(), 2, tokens, ids, weights), MONOMOE_BAD_INPUT);
  expect_words({dir_.path() + ", layer 0", "token 1", "token id 10, wanted 0 to 9", "I64"});
  EXPECT_EQ(monomoe_checkpoint_route(checkpoint_, 0, x.data(), 2, nullptr, ids, weights), MONOMOE_USAGE);
  expect_words({dir_.path() + ", layer 0", "token_ids is NULL, wanted I64 [2]"});
  tokens[1] = 0;
  EXPECT_EQ(monomoe_checkpoint_route(checkpoint_, 0, x.data(), 2, tokens, ids, weights), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(ids[0], 1);
}

TEST_F(CheckpointMessages, ASharedExpertThatCannotRunIsToldBesideALayerThatCan) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.num_threads = 1;
  monomoe_context* context = nullptr;
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  monomoe_weights* weights = nullptr;
  EXPECT_EQ(monomoe_checkpoint_shared_weights(context, checkpoint_, 0, -1, &weights), MONOMOE_BAD_INPUT);
  expect_words({dir_.path() + ", layer 0", "shared_experts.w1.weight", "intermediate is 48; it must be a multiple of 32"});
  ASSERT_EQ(monomoe_checkpoint_weights(context, checkpoint_, 0, nullptr, -1, &weights), MONOMOE_OK) << monomoe_last_error();
  monomoe_weights_destroy(weights);
  monomoe_context_destroy(context);

  char* text = nullptr;
  ASSERT_EQ(monomoe_checkpoint_inspect(dir_.path().c_str(), 0, 1, &text), MONOMOE_OK);
  const Json layer = Json::parse(text)["layers"][0];
  monomoe_free_text(text);
  EXPECT_EQ(layer["usable"], true);
  EXPECT_EQ(layer["router"]["usable"], true);
  EXPECT_EQ(layer["shared_expert"]["usable"], false);
  ASSERT_EQ(monomoe_checkpoint_verify(dir_.path().c_str(), 0, 1, &text), MONOMOE_OK);
  const Json report = Json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(report["ok"], true);
  EXPECT_NE(report["notes"].dump().find("the shared expert cannot be added"), std::string::npos) << report.dump();
}

TEST_F(CheckpointMessages, AnAbsentTensorIsToldWithWhatIsThere) {
  monomoe_tensor_file* file = nullptr;
  monomoe_tensor tensor{};
  ASSERT_EQ(monomoe_tensor_file_open(dir_.file("model.safetensors").c_str(), &file), MONOMOE_OK);
  EXPECT_EQ(monomoe_tensor_file_find(file, "x", &tensor), MONOMOE_BAD_INPUT);
  expect_words({dir_.file("model.safetensors"), "no tensor 'x'", "'layers.0.ffn.experts.0.w1.scale'", "more"});
  monomoe_tensor_file_close(file);
}

}  // namespace
}  // namespace monomoe::layer
