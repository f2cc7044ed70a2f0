// One fixture for each row of the table in docs/checkpoints.md: names, schemas and layouts that are read, and what they decode to.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint_builder.hpp"
#include "weights/checkpoint.hpp"
#include "weights/matrix_values.hpp"

namespace monomoe {
namespace formats_test {

using namespace test_support;

constexpr int64_t kWide = 256, kNarrow = 128;  // hidden, intermediate

Result<LayerWeights> load(const CheckpointBuilder& builder, const std::string& config = {}, LayerId layer = {},
                          const std::string& quant = {}) {
  TempDir dir;
  builder.write(dir);
  if (!config.empty()) dir.write("config.json", config);
  if (!quant.empty()) dir.write("hf_quant_config.json", quant);
  auto checkpoint = Checkpoint::open(dir.path());
  if (!checkpoint) return checkpoint.error();
  return checkpoint.value().load_layer(layer);
}

double first_value(const SourceMatrix& m) {
  std::vector<double> row(static_cast<size_t>(m.cols));
  decode_row(m, 0, row.data());
  return row[0];
}

// The layer loads in `format` and every gate starts with `gate`, every up with `up`, every down with `down`.
void expect_layer(const Result<LayerWeights>& layer, WeightFormat format, double gate, double up, double down) {
  ASSERT_TRUE(layer.ok()) << layer.error().message;
  EXPECT_EQ(layer.value().format, format);
  for (const SourceExpert& expert : layer.value().experts) {
    EXPECT_EQ(first_value(expert.gate), gate);
    EXPECT_EQ(first_value(expert.up), up);
    EXPECT_EQ(first_value(expert.down), down);
  }
}

using AddMatrix = std::function<void(CheckpointBuilder&, const std::string& base, int64_t rows, int64_t cols)>;

CheckpointBuilder experts(const std::string& prefix, const AddMatrix& add, bool hugging_face) {
  CheckpointBuilder builder;
  for (int e = 0; e < 2; ++e) {
    const std::string expert = prefix + "experts." + std::to_string(e) + ".";
    add(builder, expert + (hugging_face ? "gate_proj" : "w1"), kNarrow, kWide);
    add(builder, expert + (hugging_face ? "up_proj" : "w3"), kNarrow, kWide);
    add(builder, expert + (hugging_face ? "down_proj" : "w2"), kWide, kNarrow);
  }
  return builder;
}

AddMatrix packing(Packing kind) {
  return [kind](CheckpointBuilder& builder, const std::string& base, int64_t rows, int64_t cols) {
    builder.add_matrix(base, kind, rows, cols);
  };
}

TEST(Formats, DeepSeekV4WithMtpBlocksOfAnotherFormat) {
  CheckpointBuilder builder = experts("layers.0.ffn.", packing(Packing::kNvfp4), false);
  for (const auto& [name, tensor] : experts("mtp.0.ffn.", packing(Packing::kMxfp4), false).tensors) builder.tensors[name] = tensor;
  for (const auto& [name, tensor] : experts("mtp.2.ffn.", packing(Packing::kMxfp4), false).tensors)
    builder.tensors[name] = tensor;  // refresh: mtp.0..2
  const std::string config =
      R"({"model_type":"deepseek_v4","expert_dtype":"fp4","quantization_config":{"quant_method":"fp8","moe_quant_algo":"NVFP4",
    "quant_algo":"MIXED_PRECISION","group_size":16,"scale_fmt":"ue8m0","ignore":["*.attn.*","*.ffn.shared_experts.*","head","mtp.*"],
    "quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4","group_size":16}}}})";
  expect_layer(load(builder, config), WeightFormat::kNvfp4, 0.25, 0.25, 0.25);
  for (const int block : {0, 2}) {
    const auto layer = load(builder, config, {true, block});
    expect_layer(layer, WeightFormat::kMxfp4, 1, 1, 1);
    EXPECT_TRUE(layer.value().notes.empty()) << layer.value().notes[0];
  }
}

TEST(Formats, HuggingFaceNamesUnderEveryPrefix) {
  for (const char* prefix : {"model.layers.0.mlp.", "language_model.model.layers.0.mlp.", "model.language_model.layers.0.mlp."}) {
    for (const char* type : {"deepseek_v3", "kimi_k2", "glm4_moe", "qwen3_moe"}) {
      const auto layer = load(experts(prefix, packing(Packing::kFp8), true), std::string(R"({"model_type":")") + type + "\"}");
      expect_layer(layer, WeightFormat::kFp8, 0.5, 0.5, 0.5);
      EXPECT_TRUE(layer.value().hugging_face_names);
    }
  }
}

// Both revisions of the NVFP4 export: settings by layer with exclude_modules, and by tensor with another key for the group.
TEST(Formats, BothModelOptSchemasOfHfQuantConfig) {
  const CheckpointBuilder builder = experts("layers.0.ffn.", packing(Packing::kNvfp4), false);
  const char* const by_layer =
      R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"MIXED_PRECISION","exclude_modules":["mtp.*","head"],
    "quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4","group_size":16}}}})";
  const char* const by_tensor = R"({"quantization":{"quant_algo":null,"quantized_layers":{
    "layers.0.ffn.experts.0.w1":{"quant_algo":"NVFP4","awq_block_size":16},"layers.0.ffn.experts.1.w2.weight":{"quant_algo":"NVFP4","awq_block_size":16}}}})";
  for (const char* quant : {by_layer, by_tensor}) expect_layer(load(builder, "{}", {}, quant), WeightFormat::kNvfp4, 0.25, 0.25, 0.25);
  // They bind: tensors of another format under such a name are of another checkpoint.
  const CheckpointBuilder other = experts("layers.0.ffn.", packing(Packing::kFp8), false);
  expect_error(load(other, "{}", {}, by_layer), {"experts.0.w1", "quantized_layers states nvfp4"});
  expect_error(load(other, "{}", {}, by_tensor), {"experts.1.w2", "quantized_layers states nvfp4"});
}

TEST(Formats, ExcludedLayersKeepTheirOwnFormat) {
  CheckpointBuilder builder = experts("model.layers.0.mlp.", packing(Packing::kNvfp4), true);
  for (const auto& [name, tensor] : experts("model.layers.1.mlp.", packing(Packing::kFp8), true).tensors) builder.tensors[name] = tensor;
  const char* const quant = R"({"quantization":{"quant_algo":"NVFP4","group_size":16,"exclude_modules":["lm_head","model.layers.1.*"]}})";
  expect_layer(load(builder, "{}", {}, quant), WeightFormat::kNvfp4, 0.25, 0.25, 0.25);
  const auto excluded = load(builder, "{}", {false, 1}, quant);
  expect_layer(excluded, WeightFormat::kFp8, 0.5, 0.5, 0.5);
  EXPECT_TRUE(excluded.value().notes.empty());
}

// Codes as weight_packed, global scale as reciprocal: 1 / 4 is ModelOpt's 0.25.
void add_compressed_nvfp4(CheckpointBuilder& builder, const std::string& base, int64_t rows, int64_t cols) {
  builder.add(base + ".weight_packed", DType::U8, {rows, cols / 2}, Bytes(static_cast<size_t>(rows * cols / 2), 0x22));
  builder.add(base + ".weight_scale", DType::F8_E4M3, {rows, cols / 16}, Bytes(static_cast<size_t>(rows * cols / 16), 0x38));
  builder.add(base + ".weight_global_scale", DType::F32, {1}, bytes_of(std::vector<float>{4.0f}));
  builder.add(base + ".input_global_scale", DType::F32, {1}, bytes_of(std::vector<float>{std::nanf("")}));  // never read
}

TEST(Formats, CompressedTensorsNvfp4WithReciprocalGlobalScales) {
  const char* const config =
      R"({"model_type":"qwen3_moe","quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",
    "ignore":["lm_head","re:.*mlp\\.gate$","re:.*self_attn.*"],"config_groups":{"group_0":{"targets":["Linear"]}}}})";
  const CheckpointBuilder builder = experts("model.layers.0.mlp.", add_compressed_nvfp4, true);
  const auto layer = load(builder, config);
  expect_layer(layer, WeightFormat::kNvfp4, 0.25, 0.25, 0.25);
  EXPECT_EQ(layer.value().experts[0].gate.global_scale, 0.25f);
  EXPECT_TRUE(layer.value().notes.empty());
  CheckpointBuilder zero = builder;
  zero.tensors["model.layers.0.mlp.experts.1.up_proj.weight_global_scale"].data = bytes_of(std::vector<float>{0.0f});
  expect_error(load(zero, config), {"experts.1.up_proj.weight_global_scale", "infinite"});
  CheckpointBuilder missing = builder;
  missing.tensors.erase("model.layers.0.mlp.experts.1.up_proj.weight_global_scale");
  expect_error(load(missing, config), {"experts.1.up_proj.weight_global_scale", "missing"});
}

void add_compressed_mxfp4(CheckpointBuilder& builder, const std::string& base, int64_t rows, int64_t cols) {
  builder.add(base + ".weight_packed", DType::U8, {rows, cols / 2}, Bytes(static_cast<size_t>(rows * cols / 2), 0x22));
  builder.add(base + ".weight_scale", DType::U8, {rows, cols / 32}, Bytes(static_cast<size_t>(rows * cols / 32), 126));
}

TEST(Formats, CompressedTensorsMxfp4) {
  const CheckpointBuilder builder = experts("model.layers.0.mlp.", add_compressed_mxfp4, true);
  for (const char* format : {R"("format":"mxfp4-pack-quantized")",
                             R"("format":"mixed-precision","config_groups":{"group_0":{"format":"mxfp4-pack-quantized"}})"}) {
    const std::string config = std::string(R"({"quantization_config":{"quant_method":"compressed-tensors",)") + format + "}}";
    expect_layer(load(builder, config), WeightFormat::kMxfp4, 0.5, 0.5, 0.5);
  }
  expect_error(load(builder, "{}"), {"weight_scale", "U8", "mxfp4-pack-quantized"});
}

TEST(Formats, MxfpScalesInTheirThreeDisguises) {
  for (const DType dtype : {DType::F8_E8M0, DType::U8, DType::F32}) {
    const AddMatrix add = [dtype](CheckpointBuilder& builder, const std::string& base, int64_t rows, int64_t cols) {
      builder.add_matrix(base, Packing::kMxfp4, rows, cols);
      BuiltTensor& scale = builder.tensors[base + ".scale"];
      const auto groups = static_cast<size_t>(rows * cols / 32);
      scale.dtype = dtype;
      scale.data = dtype == DType::F32 ? bytes_of(std::vector<float>(groups, 0x1p-3f)) : Bytes(groups, 124);
    };
    const CheckpointBuilder builder = experts("layers.0.ffn.", add, false);
    const auto layer = load(builder, R"({"expert_dtype":"fp4"})");
    expect_layer(layer, WeightFormat::kMxfp4, 0.125, 0.125, 0.125);
    EXPECT_EQ(layer.value().experts[1].down.scale_type, ScaleType::kE8m0);
    EXPECT_EQ(layer.value().experts[1].down.scales[0], 124);
    if (dtype != DType::F32) continue;
    CheckpointBuilder odd = builder;
    Bytes& data = odd.tensors["layers.0.ffn.experts.1.w3.scale"].data;
    const float three = 3;
    std::memcpy(&data[4 * 9], &three, 4);  // row 1, column 1 of 8 columns
    expect_error(load(odd, R"({"expert_dtype":"fp4"})"), {"experts.1.w3.scale", "found 3 at row 1, column 1", "power of two"});
  }
}

void add_fp8_blocks_of_32(CheckpointBuilder& builder, const std::string& base, int64_t rows, int64_t cols) {
  builder.add(base + ".weight", DType::F8_E4M3, {rows, cols}, Bytes(static_cast<size_t>(rows * cols), 0x38));
  builder.add(base + ".scale", DType::F8_E8M0, {rows / 32, cols / 32}, Bytes(static_cast<size_t>(rows * cols / 1024), 126));
}

TEST(Formats, Fp8BlocksOf32AreReadForConversion) {
  const auto layer = load(experts("layers.0.ffn.", add_fp8_blocks_of_32, false),
                          R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[32,32]}})");
  expect_layer(layer, WeightFormat::kFp8, 0.5, 0.5, 0.5);
  EXPECT_EQ(layer.value().experts[0].gate.scale_block, 32);
}

TEST(Formats, FusedTensorsOfAllExperts) {
  CheckpointBuilder builder;
  std::vector<uint16_t> gate_up, down;
  for (int e = 0; e < 2; ++e) {
    gate_up.insert(gate_up.end(), kNarrow * kWide, 0x4000);  // 2
    gate_up.insert(gate_up.end(), kNarrow * kWide, 0x4040);  // 3
    down.insert(down.end(), kNarrow * kWide, e == 0 ? 0x4080 : 0x40A0);
  }
  builder.add("model.layers.0.mlp.experts.gate_up_proj", DType::BF16, {2, 2 * kNarrow, kWide}, bytes_of(gate_up));
  builder.add("model.layers.0.mlp.experts.down_proj", DType::BF16, {2, kWide, kNarrow}, bytes_of(down));
  const auto layer = load(builder, R"({"model_type":"qwen3_moe"})");
  ASSERT_TRUE(layer.ok()) << layer.error().message;
  ASSERT_EQ(layer.value().experts.size(), 2u);
  EXPECT_EQ(first_value(layer.value().experts[1].gate), 2);
  EXPECT_EQ(first_value(layer.value().experts[1].up), 3);
  EXPECT_EQ(first_value(layer.value().experts[0].down), 4);
  EXPECT_EQ(first_value(layer.value().experts[1].down), 5);
  for (const char* config : {"{}", R"({"model_type":"gpt_oss"})", R"({"model_type":"llama4"})"}) {
    expect_error(load(builder, config), {"gate_up_proj", "follows from the model type", "split the tensor"});
  }
  // Transposed as some types store it: the sizes tell.
  builder.add("model.layers.0.mlp.experts.gate_up_proj", DType::BF16, {2, kWide, 2 * kNarrow + 2},
              Bytes(static_cast<size_t>(2 * kWide * (2 * kNarrow + 2) * 2)));
  expect_error(load(builder, R"({"model_type":"qwen3_moe","hidden_size":256,"moe_intermediate_size":128})"),
               {"gate_up_proj[0][gate]", "wanted 128 x 256"});
}

TEST(Formats, FusedTensorsWithScales) {
  CheckpointBuilder fp8;
  fp8.add("model.layers.0.mlp.experts.gate_up_proj", DType::F8_E4M3, {2, 2 * kNarrow, kWide}, Bytes(2 * 2 * kNarrow * kWide, 0x38));
  fp8.add("model.layers.0.mlp.experts.gate_up_proj_scale_inv", DType::F32, {2, 2, 2}, bytes_of(std::vector<float>{2, 2, 3, 3, 2, 2, 3, 3}));
  fp8.add("model.layers.0.mlp.experts.down_proj", DType::F8_E4M3, {2, kWide, kNarrow}, Bytes(2 * kNarrow * kWide, 0x38));
  fp8.add("model.layers.0.mlp.experts.down_proj_scale_inv", DType::F32, {2, 2, 1}, bytes_of(std::vector<float>{4, 4, 4, 4}));
  expect_layer(load(fp8, R"({"model_type":"deepseek_v3"})"), WeightFormat::kFp8, 2, 3, 4);

  CheckpointBuilder nvfp4;  // one expert at a time
  for (int e = 0; e < 2; ++e) {
    const std::string expert = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    nvfp4.add_matrix(expert + "gate_up_proj", Packing::kNvfp4, 2 * kNarrow, kWide);
    nvfp4.add_matrix(expert + "down_proj", Packing::kNvfp4, kWide, kNarrow);
    nvfp4.add(expert + "gate_up_proj.weight_scale_2", DType::F32, {2}, bytes_of(std::vector<float>{0.5f, 0.75f}));
  }
  expect_layer(load(nvfp4, R"({"model_type":"glm4_moe"})"), WeightFormat::kNvfp4, 0.5, 0.75, 0.25);

  fp8.add("model.layers.0.mlp.experts.gate_up_proj", DType::F8_E4M3, {2, 448, kWide}, Bytes(2 * 448 * kWide, 0x38));
  fp8.add("model.layers.0.mlp.experts.gate_up_proj_scale_inv", DType::F32, {2, 4, 2}, bytes_of(std::vector<float>(16, 1)));
  expect_error(load(fp8, R"({"model_type":"deepseek_v3"})"), {"224 rows of gate end inside a block of 128"});
}

// An expert cut across ranks of a tensor-parallel group has a part of its channels.
TEST(Formats, TensorParallelCutsOfExperts) {
  for (const Packing kind : {Packing::kFp8, Packing::kNvfp4, Packing::kMxfp4}) {
    for (const int64_t intermediate : {192, 96, 64, 32}) {
      CheckpointBuilder builder;
      builder.add_experts("layers.0.ffn.", kind, 2, 256, intermediate);
      const auto layer = load(builder);
      ASSERT_TRUE(layer.ok()) << layer.error().message;
      EXPECT_EQ(layer.value().intermediate, intermediate);
    }
  }
  CheckpointBuilder cut_group;  // 720 of 2880 = 22.5 groups of 32
  cut_group.add_experts("layers.0.ffn.", Packing::kMxfp4, 1, 256, 96);
  cut_group.tensors["layers.0.ffn.experts.0.w2.weight"].shape = {256, 40};
  cut_group.tensors["layers.0.ffn.experts.0.w2.weight"].data.resize(256 * 40);
  expect_error(load(cut_group), {"w2.weight", "multiple of 32 columns"});
}

TEST(Formats, PreflightNotesWhatIsLegalButWorthKnowing) {
  CheckpointBuilder builder = experts("layers.0.ffn.", packing(Packing::kNvfp4), false);
  builder.tensors["layers.0.ffn.experts.1.w3.weight_scale_2"].data = bytes_of(std::vector<float>{0.125f});
  builder.tensors["layers.0.ffn.experts.0.w2.weight_scale"].data[3] = 0;
  builder.tensors["layers.0.ffn.experts.0.w2.weight_scale"].data[4] = 0x80;
  const auto layer = load(builder);
  ASSERT_TRUE(layer.ok()) << layer.error().message;
  ASSERT_EQ(layer.value().notes.size(), 2u);
  EXPECT_NE(layer.value().notes[0].find("gate and up of 1 experts have different global scales"), std::string::npos)
      << layer.value().notes[0];
  EXPECT_NE(layer.value().notes[0].find("experts.1.w3.weight_scale_2"), std::string::npos);
  EXPECT_NE(layer.value().notes[1].find("2 scales are zero"), std::string::npos) << layer.value().notes[1];
  EXPECT_NE(layer.value().notes[1].find("experts.0.w2.weight_scale"), std::string::npos);
}

}  // namespace formats_test
}  // namespace monomoe
