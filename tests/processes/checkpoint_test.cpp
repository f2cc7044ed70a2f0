// A rank of a world packs its own experts from a checkpoint and does not read the values of the others'.
#include <gtest/gtest.h>

#include <string>

#include "monomoe/checkpoint.h"
#include "processes/world.hpp"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe::processes {
namespace {

using test_support::CheckpointBuilder;
using test_support::Packing;
using test_support::TempDir;

class WorldCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointBuilder builder;
    builder.add_experts("layers.0.ffn.", Packing::kFp8, 4, 128, 64);
    builder.add_matrix("layers.0.ffn.experts.1.w3", Packing::kFp8, 64, 128, 0x7F);  // NaN, on rank 0 of two
    builder.add_matrix("layers.0.ffn.shared_experts.w1", Packing::kFp8, 64, 128);
    builder.add_matrix("layers.0.ffn.shared_experts.w3", Packing::kFp8, 64, 128);
    builder.add_matrix("layers.0.ffn.shared_experts.w2", Packing::kFp8, 128, 64);
    builder.write(dir_);
    dir_.write("config.json", R"({"model_type":"deepseek_v4","num_experts_per_tok":1})");
    ASSERT_EQ(monomoe_checkpoint_open(dir_.path().c_str(), &checkpoint_), MONOMOE_OK) << monomoe_last_error();
  }
  void TearDown() override { monomoe_checkpoint_close(checkpoint_); }

  // world_ranks 0: both ranks in one context.
  ContextHandle context(int32_t world_ranks, int32_t rank) const {
    monomoe_context_options options{};
    options.struct_size = sizeof(options);
    options.backend = MONOMOE_BACKEND_CPU;
    options.num_threads = 1;
    options.num_ranks = world_ranks == 0 ? 2 : 0;
    options.world_ranks = world_ranks;
    options.rank = rank;
    monomoe_context* made = nullptr;
    EXPECT_EQ(monomoe_context_create(&options, &made), MONOMOE_OK) << monomoe_last_error();
    return ContextHandle(made);
  }
  monomoe_status pack(const ContextHandle& context, WeightsHandle& weights) const {
    monomoe_weights* made = nullptr;
    const monomoe_status status = monomoe_checkpoint_weights(context.get(), checkpoint_, 0, nullptr, -1.0f, &made);
    weights.reset(made);
    return status;
  }

  TempDir dir_;
  monomoe_checkpoint* checkpoint_ = nullptr;
};

TEST_F(WorldCheckpoint, OnlyTheOwnExpertsAreRead) {
  const ContextHandle one = context(2, 1), zero = context(2, 0), both = context(0, 0);
  WeightsHandle weights;
  EXPECT_EQ(pack(one, weights), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(monomoe_weights_max_local_experts(weights.get()), 2);
  for (const ContextHandle* context : {&zero, &both}) {
    EXPECT_EQ(pack(*context, weights), MONOMOE_BAD_INPUT);
    EXPECT_NE(std::string(monomoe_last_error()).find("layers.0.ffn.experts.1.w3"), std::string::npos) << monomoe_last_error();
  }
}

TEST_F(WorldCheckpoint, TheSharedExpertLivesOnRankZeroOnly) {
  for (const int32_t rank : {0, 1}) {
    const ContextHandle one = context(2, rank);
    monomoe_weights* made = nullptr;
    const monomoe_status status = monomoe_checkpoint_shared_weights(one.get(), checkpoint_, 0, -1.0f, &made);
    const WeightsHandle weights(made);
    EXPECT_EQ(status, MONOMOE_OK) << monomoe_last_error();
  }
}

TEST_F(WorldCheckpoint, VerifyWantsAllRanks) {
  const ContextHandle one = context(2, 1);
  monomoe_tokens tokens{};
  tokens.struct_size = sizeof(tokens);
  char* json = nullptr;
  EXPECT_EQ(monomoe_checkpoint_verify_run(one.get(), checkpoint_, 0, nullptr, -1.0f, 1, &tokens, &json), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("this context is rank 1 of 2"), std::string::npos) << monomoe_last_error();
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.world_ranks = 2;
  EXPECT_EQ(monomoe_verify_case(&options, "ranks=1 experts=1 topk=1 tokens=1 hidden=128 inter=32 w=fp8 seed=1", &json), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("world_ranks is set"), std::string::npos) << monomoe_last_error();
}

}  // namespace
}  // namespace monomoe::processes
