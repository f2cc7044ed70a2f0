// Both dialects of names, their prefixes, and what is no MoE tensor.
#include "weights/names.hpp"

#include <gtest/gtest.h>

namespace monomoe {
namespace {

using Kind = MoeTensorName::Kind;

TEST(Names, DeepSeekExperts) {
  const auto name = parse_moe_name("layers.12.ffn.experts.255.w3.scale");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->kind, Kind::kExpert);
  EXPECT_EQ(name->layer, (LayerId{false, 12}));
  EXPECT_EQ(name->expert, 255);
  EXPECT_EQ(name->role, MatrixRole::kUp);
  EXPECT_EQ(name->part, TensorPart::kScale);
  EXPECT_EQ(name->layer_prefix, "layers.12.ffn.");
}

TEST(Names, W1IsGateW3IsUpW2IsDown) {
  EXPECT_EQ(parse_moe_name("layers.0.ffn.experts.0.w1.weight")->role, MatrixRole::kGate);
  EXPECT_EQ(parse_moe_name("layers.0.ffn.experts.0.w2.weight")->role, MatrixRole::kDown);
  EXPECT_EQ(parse_moe_name("model.layers.0.mlp.experts.0.gate_proj.weight")->role, MatrixRole::kGate);
  EXPECT_EQ(parse_moe_name("model.layers.0.mlp.experts.0.up_proj.weight")->role, MatrixRole::kUp);
  EXPECT_EQ(parse_moe_name("model.layers.0.mlp.experts.0.down_proj.weight")->role, MatrixRole::kDown);
}

TEST(Names, PrefixesAndParts) {
  for (const std::string prefix : {"", "model.", "language_model.model.", "model.language_model."}) {
    const std::string full = prefix + "layers.3.mlp.experts.7.down_proj.weight_scale_inv";
    const auto name = parse_moe_name(full);
    ASSERT_TRUE(name.has_value()) << full;
    EXPECT_EQ(name->layer.index, 3);
    EXPECT_EQ(name->part, TensorPart::kWeightScaleInv);
  }
  EXPECT_EQ(parse_moe_name("layers.0.ffn.experts.0.w1.weight_scale_2")->part, TensorPart::kWeightScale2);
  EXPECT_EQ(parse_moe_name("layers.0.ffn.experts.0.w1.weight_global_scale")->part, TensorPart::kWeightGlobalScale);
}

TEST(Names, RouterSharedAndMtp) {
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.gate.weight")->kind, Kind::kRouterWeight);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.gate.e_score_correction_bias")->kind, Kind::kRouterBias);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.gate.bias")->kind, Kind::kRouterBias);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.gate.tid2eid")->kind, Kind::kHashTable);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.shared_experts.w1.weight")->kind, Kind::kSharedExpert);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.shared_expert.up_proj.weight")->kind, Kind::kSharedExpert);
  const auto mtp = parse_moe_name("mtp.0.ffn.experts.1.w1.weight");
  ASSERT_TRUE(mtp.has_value());
  EXPECT_EQ(mtp->layer, (LayerId{true, 0}));
  EXPECT_EQ(mtp->layer.label(), "mtp.0");
}

TEST(Names, FusedAndUnknownTensorsAreKnownAsSuch) {
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.experts.gate_up_proj")->kind, Kind::kFused);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.experts.down_proj")->kind, Kind::kFused);
  const auto one = parse_moe_name("model.layers.1.mlp.experts.4.gate_up_proj.weight"), all = parse_moe_name("model.layers.1.mlp.experts.down_proj_scale_inv");
  EXPECT_EQ(one->kind, Kind::kFused);
  EXPECT_EQ(one->expert, 4);
  EXPECT_EQ(one->role, MatrixRole::kGate);
  EXPECT_EQ(all->kind, Kind::kFused);
  EXPECT_EQ(all->expert, -1);
  EXPECT_EQ(all->role, MatrixRole::kDown);
  EXPECT_EQ(all->part, TensorPart::kWeightScaleInv);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.experts.gate_up_proj_bias")->kind, Kind::kUnknownFused);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.experts.gate_up_proj_blocks")->kind, Kind::kUnknownFused);
  EXPECT_EQ(parse_moe_name("model.layers.1.mlp.experts.4.w13.weight")->kind, Kind::kUnknownFused);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.experts.4.packed")->kind, Kind::kPackedExpert);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.shared_experts.packed")->kind, Kind::kPackedShared);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.experts.4.w1.extra")->kind, Kind::kUnknownExpert);
  EXPECT_EQ(parse_moe_name("layers.1.ffn.experts.4.w9.weight")->kind, Kind::kUnknownExpert);
}

TEST(Names, OddNumbersAreKnownAsSuch) {
  for (const char* number : {"03", "-1", "+1", "100000", "99999999999999999999", "00"}) {
    const std::string expert = std::string("layers.1.ffn.experts.") + number + ".w1.weight";
    ASSERT_TRUE(parse_moe_name(expert).has_value()) << number;
    EXPECT_EQ(parse_moe_name(expert)->kind, Kind::kOddExpert) << number;
    EXPECT_EQ(parse_moe_name(expert)->number, number);
    const std::string layer = std::string("model.layers.") + number + ".mlp.experts.0.gate_proj.weight";
    ASSERT_TRUE(parse_moe_name(layer).has_value()) << number;
    EXPECT_EQ(parse_moe_name(layer)->kind, Kind::kOddLayer) << number;
    EXPECT_EQ(parse_moe_name(layer)->number, number);
  }
  EXPECT_EQ(parse_moe_name("layers.1.ffn.experts.gate.weight")->kind, Kind::kUnknownFused);
}

TEST(Names, OtherTensorsAreNoMoeTensors) {
  for (const char* name :
       {"", "layers", "layers.", "layers.0", "layers.0.ffn", "model.layers.0.mlp.gate_proj.weight", "layers.0.attn.wq.weight",
        "layers.-1.attn.wq.weight", "layers.00.mlp.gate_proj.weight", "layers.", "layers.7", "layers.x.ffn.gate.weight",
        "head.weight", "encoder.layers.0.mlp.gate.weight"}) {
    EXPECT_FALSE(parse_moe_name(name).has_value()) << name;
  }
}

TEST(Names, Labels) {
  EXPECT_EQ(layer_from_label("3"), (LayerId{false, 3}));
  EXPECT_EQ(layer_from_label("mtp.1"), (LayerId{true, 1}));
  for (const char* wrong : {"", "x", "-1", "1.2", "mtp.", "03", "1 "}) EXPECT_FALSE(layer_from_label(wrong).has_value()) << wrong;
}

}  // namespace
}  // namespace monomoe
