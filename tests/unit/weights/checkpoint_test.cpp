// Layers out of checkpoint directories: names, formats, shapes, what is missing, what is contradictory.
#include "weights/checkpoint.hpp"

#include <cmath>

#include "numerics/e2m1.h"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::bytes_of;
using test_support::CheckpointBuilder;
using test_support::expect_error;
using test_support::Packing;
using test_support::TempDir;

constexpr int64_t kHidden = 128, kIntermediate = 64;

// Writes, opens and loads layer 0 (or `layer`).
Result<LayerWeights> load(const CheckpointBuilder& builder, const std::string& config = "", int layer = 0) {
  TempDir dir;
  builder.write(dir);
  if (!config.empty()) dir.write("config.json", config);
  Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  if (!checkpoint) return checkpoint.error();
  return checkpoint.value().load_layer(layer);
}

CheckpointBuilder layer_of(Packing packing, int experts = 2) {
  CheckpointBuilder builder;
  builder.add_experts("layers.0.ffn.", packing, experts, kHidden, kIntermediate);
  return builder;
}

TEST(Checkpoint, FormatsFollowFromTheTensors) {
  const struct {
    Packing packing;
    WeightFormat format;
    ScaleType scale;
  } rows[] = {{Packing::kFp8, WeightFormat::kFp8, ScaleType::kF32},
              {Packing::kNvfp4, WeightFormat::kNvfp4, ScaleType::kE4m3},
              {Packing::kMxfp4, WeightFormat::kMxfp4, ScaleType::kE8m0},
              {Packing::kBf16, WeightFormat::kBf16, ScaleType::kNone}};
  for (const auto& row : rows) {
    Result<LayerWeights> layer = load(layer_of(row.packing));
    ASSERT_TRUE(layer.ok()) << layer.error().message;
    EXPECT_EQ(layer.value().format, row.format);
    EXPECT_EQ(layer.value().hidden, kHidden);
    EXPECT_EQ(layer.value().intermediate, kIntermediate);
    ASSERT_EQ(layer.value().experts.size(), 2u);
    const SourceMatrix& down = layer.value().experts[1].down;
    EXPECT_EQ(down.format, row.format);
    EXPECT_EQ(down.scale_type, row.scale);
    EXPECT_EQ(down.rows, kHidden);
    EXPECT_EQ(down.cols, kIntermediate);
    EXPECT_EQ(down.global_scale, row.packing == Packing::kNvfp4 ? 0.25f : 1.0f);
    EXPECT_EQ(layer.value().expert_sources[1].down.weight.entry->name, "layers.0.ffn.experts.1.w2.weight");
    EXPECT_FALSE(layer.value().router.has_value());
  }
}

TEST(Checkpoint, GateUpAndDownAreToldApartInBothDialects) {
  for (const bool hugging_face : {false, true}) {
    CheckpointBuilder builder;
    const std::string base = hugging_face ? "model.layers.5.mlp.experts.0." : "layers.5.ffn.experts.0.";
    builder.add_matrix(base + (hugging_face ? "gate_proj" : "w1"), Packing::kFp8, kIntermediate, kHidden, 0x40);
    builder.add_matrix(base + (hugging_face ? "up_proj" : "w3"), Packing::kFp8, kIntermediate, kHidden, 0x30);
    builder.add_matrix(base + (hugging_face ? "down_proj" : "w2"), Packing::kFp8, kHidden, kIntermediate, 0x38);
    Result<LayerWeights> layer = load(builder, "", 5);
    ASSERT_TRUE(layer.ok()) << layer.error().message;
    EXPECT_EQ(layer.value().experts[0].gate.codes[0], 0x40);  // 2
    EXPECT_EQ(layer.value().experts[0].up.codes[0], 0x30);    // 0.5
    EXPECT_EQ(layer.value().experts[0].down.codes[0], 0x38);
  }
}

TEST(Checkpoint, FusedTensorsOfNoKnownModelTypeAreRefused) {
  CheckpointBuilder builder;
  builder.add("model.layers.0.mlp.experts.gate_up_proj", DType::BF16, {2, 4, 8}, Bytes(128));
  builder.add("model.layers.0.mlp.experts.down_proj", DType::BF16, {2, 8, 2}, Bytes(64));
  expect_error(load(builder),
               {"layer 0", "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj", "config.json states none"});
}

TEST(Checkpoint, EqualBitsInEveryDtypeGiveEqualMatrices) {
  CheckpointBuilder as_i8 = layer_of(Packing::kMxfp4, 1), as_u8 = as_i8, as_f4 = as_i8, u8_scales = as_i8;
  for (auto& [name, tensor] : as_u8.tensors)
    if (name.ends_with(".weight")) tensor.dtype = DType::U8;
  for (auto& [name, tensor] : as_f4.tensors) {
    if (!name.ends_with(".weight")) continue;
    tensor.dtype = DType::F4;
    tensor.shape[1] *= 2;  // F4 shapes count elements
  }
  for (auto& [name, tensor] : u8_scales.tensors)
    if (name.ends_with(".scale")) tensor.dtype = DType::U8;
  for (const CheckpointBuilder* builder : {&as_i8, &as_u8, &as_f4, &u8_scales}) {
    Result<LayerWeights> layer = load(*builder, R"({"expert_dtype":"fp4"})");
    ASSERT_TRUE(layer.ok()) << layer.error().message;
    const SourceMatrix& gate = layer.value().experts[0].gate;
    EXPECT_EQ(gate.format, WeightFormat::kMxfp4);
    EXPECT_EQ(gate.rows, kIntermediate);
    EXPECT_EQ(gate.cols, kHidden);
    EXPECT_EQ(gate.codes[0], 0x22);
    EXPECT_EQ(gate.scales[0], 127);
  }
  expect_error(load(u8_scales), {"w1.scale", "U8", "only where config.json states"});
  EXPECT_TRUE(load(u8_scales, R"({"quantization_config":{"quant_method":"mxfp4"}})").ok());
}

TEST(Checkpoint, Fp8ScalesInEveryTypeAndName) {
  const std::vector<float> halves{0.5f};
  const struct {
    DType dtype;
    Bytes data;
    ScaleType type;
  } kinds[] = {{DType::F32, bytes_of(halves), ScaleType::kF32},
               {DType::BF16, bytes_of(std::vector<uint16_t>{0x3F00}), ScaleType::kBf16},
               {DType::F8_E8M0, Bytes{126}, ScaleType::kE8m0},
               {DType::U8, Bytes{126}, ScaleType::kE8m0}};
  for (const auto& kind : kinds) {
    for (const char* part : {"scale", "weight_scale_inv", "weight_scale"}) {
      CheckpointBuilder builder;
      for (const char* matrix : {"w1", "w2", "w3"}) {
        const std::string base = std::string("layers.0.ffn.experts.0.") + matrix;
        const bool down = base.ends_with("w2");
        builder.add(base + ".weight", DType::F8_E4M3, {down ? kHidden : kIntermediate, down ? kIntermediate : kHidden},
                    Bytes(kHidden * kIntermediate, 0x38));
        builder.add(base + "." + part, kind.dtype, {1, 1}, kind.data);
      }
      Result<LayerWeights> layer = load(builder, R"({"quantization_config":{"scale_fmt":"ue8m0"}})");
      ASSERT_TRUE(layer.ok()) << layer.error().message;
      EXPECT_EQ(layer.value().experts[0].gate.scale_type, kind.type);
      if (kind.dtype == DType::U8) expect_error(load(builder), {"w1.", part, "U8", "scale_fmt ue8m0"});
    }
  }
}

TEST(Checkpoint, AScaleGridOfAnotherBlockSizeNamesBothShapes) {
  CheckpointBuilder builder = layer_of(Packing::kFp8);
  builder.add("layers.0.ffn.experts.1.w3.scale", DType::F32, {1, 2}, bytes_of(std::vector<float>(2, 1.0f)));  // blocks of 64
  expect_error(load(builder), {"layers.0.ffn.experts.1.w3.scale", "[1, 2]", "wanted [1, 1]", "[64, 128]"});
  expect_error(load(layer_of(Packing::kFp8), R"({"quantization_config":{"weight_block_size":[64,64]}})"),
               {"weight_block_size [64, 64]", "wanted [128, 128] or [32, 32]"});
}

TEST(Checkpoint, ShortLastBlocksOfFp8AreBlocksOf128) {
  CheckpointBuilder builder;
  builder.add_experts("layers.0.ffn.", Packing::kFp8, 1, 1000, 192);
  Result<LayerWeights> layer = load(builder);
  ASSERT_TRUE(layer.ok()) << layer.error().message;
  EXPECT_EQ(layer.value().expert_sources[0].gate.scale.entry->shape, (std::vector<int64_t>{2, 8}));
  builder.add("layers.0.ffn.experts.0.w1.scale", DType::F32, {1, 8}, bytes_of(std::vector<float>(8, 1.0f)));  // 192 rows in one block
  expect_error(load(builder), {"w1.scale", "[1, 8]", "wanted [2, 8]"});
}

TEST(Checkpoint, InputScalesNeverMatter) {
  const auto with = [](std::vector<float> values) {
    CheckpointBuilder builder = layer_of(Packing::kNvfp4);
    for (size_t i = 0; i < values.size(); ++i) {
      builder.add("layers.0.ffn.experts." + std::to_string(i) + ".w1.input_scale", DType::F32, {}, bytes_of(std::vector<float>{values[i]}));
    }
    return builder;
  };
  for (const auto& builder : {with({}), with({1.0f}), with({0.0f, 0.0f}), with({std::nanf(""), 1.0f}), with({1e-40f, 1.0f})}) {
    Result<LayerWeights> layer = load(builder);
    ASSERT_TRUE(layer.ok()) << layer.error().message;
    EXPECT_EQ(layer.value().experts[0].gate.global_scale, 0.25f);
    EXPECT_EQ(layer.value().experts[0].gate.codes[0], 0x22);
  }
}

TEST(Checkpoint, MissingAndWrongGlobalScalesAreAllListed) {
  CheckpointBuilder builder = layer_of(Packing::kNvfp4, 6);
  builder.tensors.erase("layers.0.ffn.experts.5.w3.weight_scale_2");
  builder.tensors.erase("layers.0.ffn.experts.2.w1.weight_scale_2");
  expect_error(load(builder), {"2 problems", "missing: \"layers.0.ffn.experts.5.w3.weight_scale_2\"",
                               "missing: \"layers.0.ffn.experts.2.w1.weight_scale_2\""});
  for (const float wrong : {0.0f, std::nanf(""), INFINITY, -1.0f}) {
    CheckpointBuilder bad = layer_of(Packing::kNvfp4);
    bad.add("layers.0.ffn.experts.1.w2.weight_scale_2", DType::F32, {1}, bytes_of(std::vector<float>{wrong}));
    expect_error(load(bad), {"layers.0.ffn.experts.1.w2.weight_scale_2", "weight_scale_2"});
  }
}

TEST(Checkpoint, AMultiplierOfOneOrMoreIsNoted) {
  CheckpointBuilder builder = layer_of(Packing::kNvfp4);
  EXPECT_TRUE(load(builder).value().notes.empty());
  builder.add("layers.0.ffn.experts.1.w2.weight_scale_2", DType::F32, {}, bytes_of(std::vector<float>{3584.0f}));
  Result<LayerWeights> layer = load(builder);
  ASSERT_TRUE(layer.ok());
  ASSERT_EQ(layer.value().notes.size(), 1u);
  EXPECT_NE(layer.value().notes[0].find("experts.1.w2.weight_scale_2"), std::string::npos);
}

TEST(Checkpoint, ForeignLayoutsAreRefusedByName) {
  CheckpointBuilder reciprocal = layer_of(Packing::kNvfp4);
  reciprocal.add("layers.0.ffn.experts.0.w1.weight_global_scale", DType::F32, {1}, bytes_of(std::vector<float>{4.0f}));
  expect_error(load(reciprocal), {"experts.0.w1.weight_global_scale", "reciprocal"});
  CheckpointBuilder packed = layer_of(Packing::kMxfp4);
  packed.add("layers.0.ffn.experts.0.w1.weight_packed", DType::U8, {1}, {0});
  expect_error(load(packed), {"experts.0.w1.weight_packed", "a matrix has one of them"});
  CheckpointBuilder awq = layer_of(Packing::kNvfp4);
  awq.add("layers.0.ffn.experts.0.w1.pre_quant_scale", DType::BF16, {1}, {0, 0});
  expect_error(load(awq), {"pre_quant_scale", "would change the result"});
}

TEST(Checkpoint, ContradictoryCompanionsAreRefused) {
  CheckpointBuilder two = layer_of(Packing::kNvfp4);
  two.add("layers.0.ffn.experts.0.w1.scale", DType::F8_E8M0, {64, 4}, Bytes(256, 127));
  expect_error(load(two), {"experts.0.w1.scale", "experts.0.w1.weight_scale", "one scale tensor"});
  CheckpointBuilder bf16 = layer_of(Packing::kBf16);
  bf16.add("layers.0.ffn.experts.0.w1.scale", DType::F32, {1, 1}, bytes_of(std::vector<float>{1.0f}));
  expect_error(load(bf16), {"experts.0.w1.scale", "BF16", "takes no scale"});
  CheckpointBuilder fp8 = layer_of(Packing::kFp8);
  fp8.add("layers.0.ffn.experts.0.w1.weight_scale_2", DType::F32, {}, bytes_of(std::vector<float>{1.0f}));
  expect_error(load(fp8), {"experts.0.w1.weight_scale_2", "belongs to NVFP4"});
  CheckpointBuilder other = layer_of(Packing::kBf16);
  other.tensors["layers.0.ffn.experts.0.w1.weight"].dtype = DType::F16;
  expect_error(load(other), {"experts.0.w1.weight", "F16", "convert"});
}

TEST(Checkpoint, MissingTensorsAndGapsAreAllListed) {
  CheckpointBuilder builder = layer_of(Packing::kFp8, 5);
  for (const char* name : {"w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale"}) {
    builder.tensors.erase(std::string("layers.0.ffn.experts.1.") + name);
  }
  builder.tensors.erase("layers.0.ffn.experts.3.w2.weight");
  builder.tensors.erase("layers.0.ffn.experts.4.w1.scale");
  expect_error(load(builder), {"3 problems", "missing: expert 1 as a whole", "missing: \"layers.0.ffn.experts.3.w2.weight\"",
                               "\"layers.0.ffn.experts.4.w1.scale\""});
  expect_error(load(layer_of(Packing::kFp8, 2), R"({"n_routed_experts":40})"),
               {"38 problems", "missing: expert 2 as a whole", "and 18 more"});
  expect_error(load(layer_of(Packing::kFp8, 3), R"({"n_routed_experts":2})"), {"found expert 2", "wanted experts 0 to 1"});
}

TEST(Checkpoint, WrongShapesNameTensorFoundAndWanted) {
  CheckpointBuilder builder = layer_of(Packing::kFp8);
  builder.add_matrix("layers.0.ffn.experts.1.w3", Packing::kFp8, kHidden, kIntermediate);
  expect_error(load(builder), {"layers.0.ffn.experts.1.w3.weight", "128 x 64 (transposed)", "wanted 64 x 128"});
  CheckpointBuilder down = layer_of(Packing::kNvfp4);
  down.add_matrix("layers.0.ffn.experts.0.w2", Packing::kNvfp4, kHidden, 96);
  expect_error(load(down), {"layers.0.ffn.experts.0.w2.weight", "128 x 96", "wanted 128 x 64"});
  expect_error(load(layer_of(Packing::kFp8), R"({"hidden_size":256,"moe_intermediate_size":64})"),
               {"6 problems", "hidden 256 from hidden_size of config.json"});
  CheckpointBuilder cube = layer_of(Packing::kBf16);
  cube.tensors["layers.0.ffn.experts.0.w1.weight"].shape = {2, 32, 128};
  expect_error(load(cube), {"experts.0.w1.weight", "[2, 32, 128]", "wanted a matrix"});
}

TEST(Checkpoint, LayersMayDifferExpertsOfOneMayNot) {
  CheckpointBuilder builder;
  builder.add_experts("model.layers.0.ffn.", Packing::kNvfp4, 2, kHidden, kIntermediate);
  builder.add_experts("model.layers.1.ffn.", Packing::kFp8, 2, kHidden, kIntermediate);
  builder.add_experts("model.layers.2.ffn.", Packing::kBf16, 2, kHidden, kIntermediate);
  const std::string config = R"({"quantization_config":{"quant_method":"fp8","moe_quant_algo":"NVFP4"}})";
  EXPECT_EQ(load(builder, config, 0).value().format, WeightFormat::kNvfp4);
  EXPECT_TRUE(load(builder, config, 0).value().notes.empty());
  EXPECT_EQ(load(builder, config, 1).value().format, WeightFormat::kFp8);
  EXPECT_NE(load(builder, config, 1).value().notes.at(0).find("moe_quant_algo"), std::string::npos);
  EXPECT_EQ(load(builder, config, 2).value().format, WeightFormat::kBf16);
  for (const char* matrix : {"w1", "w2", "w3"}) {
    for (const char* part : {".weight", ".weight_scale", ".weight_scale_2"})
      builder.tensors.erase(std::string("model.layers.0.ffn.experts.1.") + matrix + part);
    const bool down = std::string_view(matrix) == "w2";
    builder.add_matrix(std::string("model.layers.0.ffn.experts.1.") + matrix, Packing::kMxfp4, down ? kHidden : kIntermediate,
                       down ? kIntermediate : kHidden);
  }
  expect_error(load(builder, config, 0), {"experts.1.w1.weight", "is MXFP4", "experts.0.w1.weight", "is NVFP4", "one format"});
}

TEST(Checkpoint, AStatedAlgorithmOfThisLayerMustAgree) {
  const std::string config = R"({"quantization_config":{"quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4"}}}})";
  EXPECT_TRUE(load(layer_of(Packing::kNvfp4), config).ok());
  expect_error(load(layer_of(Packing::kFp8), config), {"experts.0.w1.weight", "FP8", "quantized_layers states nvfp4"});
}

TEST(Checkpoint, SharedExpertRouterAndUnusedTensors) {
  CheckpointBuilder builder = layer_of(Packing::kMxfp4);
  builder.add_matrix("layers.0.ffn.shared_experts.w1", Packing::kFp8, 96, kHidden);
  builder.add_matrix("layers.0.ffn.shared_experts.w3", Packing::kFp8, 96, kHidden);
  builder.add_matrix("layers.0.ffn.shared_experts.w2", Packing::kFp8, kHidden, 96);
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {2, kHidden}, Bytes(2 * 2 * kHidden));
  builder.add("layers.0.ffn.gate.bias", DType::F32, {2}, Bytes(8));
  builder.add("layers.0.ffn.experts.1.w1.comment", DType::U8, {1}, {0});
  TempDir dir;
  builder.write(dir);
  dir.write("config.json", R"({"model_type":"deepseek_v4","num_experts_per_tok":1,"routed_scaling_factor":2.5})");
  Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  ASSERT_EQ(checkpoint.value().layers().size(), 1u);
  EXPECT_EQ(checkpoint.value().layers()[0].experts, 2);
  EXPECT_TRUE(checkpoint.value().layers()[0].shared);
  ASSERT_EQ(checkpoint.value().unused().size(), 1u);
  EXPECT_EQ(checkpoint.value().unused()[0].tensor, "layers.0.ffn.experts.1.w1.comment");
  Result<LayerWeights> layer = checkpoint.value().load_layer(0);
  ASSERT_TRUE(layer.ok()) << layer.error().message;
  EXPECT_EQ(layer.value().format, WeightFormat::kMxfp4);
  EXPECT_EQ(layer.value().shared_format, WeightFormat::kFp8);
  EXPECT_EQ(layer.value().shared->gate.rows, 96);
  ASSERT_TRUE(layer.value().router.has_value());
  EXPECT_NE(layer.value().router->bias, nullptr);
  Result<RouterConfig> router = checkpoint.value().router_config(layer.value());
  ASSERT_TRUE(router.ok()) << router.error().message;
  EXPECT_EQ(router.value().scoring, Scoring::kSqrtSoftplus);
  EXPECT_EQ(router.value().routed_scaling_factor, 2.5);
  expect_error(checkpoint.value().load_layer(3), {"layer 3 has no experts", "layers with experts: 0"});
}

TEST(Checkpoint, RouterTensorsAreChecked) {
  CheckpointBuilder builder = layer_of(Packing::kMxfp4);
  builder.add("layers.0.ffn.gate.bias", DType::F32, {2}, Bytes(8));
  expect_error(load(builder), {"missing: \"layers.0.ffn.gate.weight\"", "gate.bias"});
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {kHidden, 2}, Bytes(2 * 2 * kHidden));
  expect_error(load(builder), {"layers.0.ffn.gate.weight", "[128, 2]", "[2, 128]"});
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {2, kHidden}, Bytes(2 * 2 * kHidden, 0xFF));
  expect_error(load(builder), {"layers.0.ffn.gate.weight", "a NaN value", "row 0, column 0"});
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {2, kHidden}, Bytes(2 * 2 * kHidden));
  builder.add("layers.0.ffn.gate.tid2eid", DType::I64, {10, 2}, Bytes(160));
  EXPECT_EQ(load(builder, R"({"num_experts_per_tok":2,"num_hash_layers":1})").value().router->vocabulary, 10);
  expect_error(load(builder, R"({"num_experts_per_tok":1})"), {"tid2eid", "[10, 2]", "[vocabulary, 1]"});
  expect_error(load(builder, R"({"num_hash_layers":0})"), {"tid2eid", "num_hash_layers"});
}

TEST(Checkpoint, MtpBlocksAreLayersOfTheirOwn) {
  CheckpointBuilder builder = layer_of(Packing::kNvfp4);
  builder.add_experts("mtp.0.ffn.", Packing::kMxfp4, 2, kHidden, kIntermediate);
  TempDir dir;
  builder.write(dir);
  dir.write("config.json", R"({"quantization_config":{"moe_quant_algo":"NVFP4","ignore":["mtp.*"]}})");
  Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  ASSERT_EQ(checkpoint.value().layers().size(), 2u);
  EXPECT_EQ(checkpoint.value().layers()[1].layer.label(), "mtp.0");
  Result<LayerWeights> mtp = checkpoint.value().load_layer(LayerId{true, 0});
  ASSERT_TRUE(mtp.ok()) << mtp.error().message;
  EXPECT_EQ(mtp.value().format, WeightFormat::kMxfp4);
  EXPECT_TRUE(mtp.value().notes.empty());
}

TEST(Checkpoint, ALayerUnderTwoPrefixesIsRefused) {
  CheckpointBuilder builder = layer_of(Packing::kFp8);
  builder.add_experts("model.layers.0.mlp.", Packing::kFp8, 2, kHidden, kIntermediate);
  expect_error(load(builder), {"begin with both \"layers.0.ffn.\" and \"model.layers.0.mlp.\""});
}

TEST(Checkpoint, ABadValueInAnyExpertRefusesTheLayer) {
  CheckpointBuilder builder = layer_of(Packing::kFp8, 4);
  builder.tensors["layers.0.ffn.experts.3.w2.weight"].data[5 * kIntermediate + 7] = 0xFF;
  builder.tensors["layers.0.ffn.experts.1.w1.scale"].data = bytes_of(std::vector<float>{-1.0f});
  expect_error(load(builder),
               {"2 problems", "experts.3.w2.weight", "NaN code 0xff at row 5, column 7", "experts.1.w1.scale", "negative scale -1"});
  TempDir dir;
  builder.write(dir);
  EXPECT_TRUE(Checkpoint::open(dir.path()).value().load_layer(0, {.scan_values = false}).ok());
  expect_error(Checkpoint::open(dir.path()).value().load_layer(0, {.threads = 3}), {"2 problems"});
}

TEST(Checkpoint, ProblemsOfEveryKindAreListedTogether) {
  CheckpointBuilder builder = layer_of(Packing::kFp8, 4);
  builder.tensors.erase("layers.0.ffn.experts.1.w1.scale");
  builder.tensors["layers.0.ffn.experts.2.w2.weight"].data[0] = 0x7F;
  builder.add_matrix("layers.0.ffn.experts.3.w3", Packing::kFp8, kHidden, kIntermediate);
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {4, kHidden}, Bytes(4 * 2 * kHidden, 0xFF));
  expect_error(load(builder), {"experts.1.w1.scale", "experts.2.w2.weight", "the NaN code 0x7f", "experts.3.w3.weight", "(transposed)",
                               "gate.weight", "NaN value"});
}

TEST(Checkpoint, AllSixteenCodesSurviveTheTrip) {
  CheckpointBuilder builder = layer_of(Packing::kMxfp4, 1);
  Bytes& codes = builder.tensors["layers.0.ffn.experts.0.w1.weight"].data;
  for (size_t i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>((2 * i) | ((2 * i + 1) << 4));
  Result<LayerWeights> layer = load(builder);
  ASSERT_TRUE(layer.ok());
  const float wanted[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
  for (size_t c = 0; c < 16; ++c) {
    const uint8_t byte = layer.value().experts[0].gate.codes[c / 2];
    EXPECT_EQ(e2m1_decode(c % 2 == 0 ? byte & 15 : byte >> 4), wanted[c]) << c;  // the low nibble is the even column
  }
}

}  // namespace
}  // namespace monomoe
