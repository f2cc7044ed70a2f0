// Whole checkpoint directories with damage in their index, config.json and shards: an error or a sound layer, never a crash.
#include "loader/hostile_file.hpp"
#include "weights/checkpoint.hpp"
#include "weights/config.hpp"
#include "weights/tensor_index.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::CheckpointBuilder;
using test_support::expect_error;
using test_support::mutate;
using test_support::Packing;
using test_support::Random;
using test_support::repair_length;
using test_support::TempDir;

Bytes bytes_of_text(std::string_view text) { return {text.begin(), text.end()}; }

std::string_view text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TEST(HostileCheckpoint, RandomChangesOfTheIndex) {
  const Bytes index = bytes_of_text(
      R"({"metadata":{"total_size":12},"weight_map":{"layers.0.ffn.experts.0.w1.weight":"a.safetensors","b":"model-00001-of-00002.safetensors"}})");
  Random random(3);
  for (int round = 0; round < 10000; ++round) {
    Bytes changed = index;
    for (size_t changes = 1 + random.below(4); changes > 0; --changes) mutate(changed, random);
    const Result<std::vector<IndexedTensor>> parsed = parse_tensor_index(changed, "index");
    if (!parsed) {
      ASSERT_EQ(parsed.error().message.rfind("index: ", 0), 0u) << parsed.error().message;
      continue;
    }
    for (const IndexedTensor& item : parsed.value()) {
      ASSERT_FALSE(item.shard.empty());
      ASSERT_EQ(item.shard.find('/'), std::string::npos);
      ASSERT_NE(item.shard[0], '.');
    }
  }
}

TEST(HostileCheckpoint, RandomChangesOfTheConfig) {
  const Bytes config = bytes_of_text(
      R"({"model_type":"deepseek_v4","hidden_size":4096,"num_experts_per_tok":6,"swiglu_limit":10.0,"routed_scaling_factor":1.5,
    "text_config":{"n_group":8},"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"ignore":["*.attn.*"],
    "quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4"}}}})");
  Random random(4);
  int accepted = 0;
  for (int round = 0; round < 10000; ++round) {
    Bytes changed = config;
    for (size_t changes = 1 + random.below(4); changes > 0; --changes) mutate(changed, random);
    const Result<ModelConfig> parsed = parse_model_config(text_of(changed), "config.json", text_of(changed), "hf_quant_config.json");
    if (!parsed) continue;
    ++accepted;
    ASSERT_GT(parsed.value().swiglu_limit.value_or(1.0f), 0.0f);
    ASSERT_GE(parsed.value().hidden.value_or(0), 0);
  }
  EXPECT_GT(accepted, 100);  // the loop reaches past the parser
}

TEST(HostileCheckpoint, AShardCutAnywhereIsNamed) {
  CheckpointBuilder builder;
  builder.add_experts("layers.0.ffn.", Packing::kNvfp4, 1, 64, 32);
  TempDir dir;
  builder.write(dir);
  const std::string whole = dir.read("model.safetensors");
  ASSERT_TRUE(Checkpoint::open(dir.path()).ok());
  for (size_t length = 0; length < whole.size(); length += 37) {
    dir.write("model.safetensors", std::string_view(whole).substr(0, length));
    expect_error(Checkpoint::open(dir.path()), {"model.safetensors", std::to_string(length) + " bytes"});
  }
}

TEST(HostileCheckpoint, RandomChangesOfAShard) {
  CheckpointBuilder builder;
  builder.add_experts("layers.0.ffn.", Packing::kNvfp4, 1, 32, 32);
  builder.add("layers.0.ffn.gate.weight", DType::BF16, {1, 32}, Bytes(64));
  TempDir dir;
  builder.write(dir);
  const std::string whole = dir.read("model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  Random random(5);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    Bytes changed(whole.begin(), whole.begin() + 8 + static_cast<std::ptrdiff_t>(header));
    mutate(changed, random);
    changed.insert(changed.end(), whole.begin() + 8 + static_cast<std::ptrdiff_t>(header), whole.end());
    if (changed.size() > 8) repair_length(changed, whole.size() - 8 - header);
    dir.write("model.safetensors", changed);
    Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    if (!checkpoint) {
      ++refused;
      continue;
    }
    const Result<LayerWeights> layer = checkpoint.value().load_layer(0);
    loaded += layer.ok() ? 1 : 0;
    refused += layer.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(loaded, 0);  // a change of a space, or of metadata, harms nothing
}

TEST(HostileCheckpoint, AHugeExpertNumberCostsNothing) {
  CheckpointBuilder builder;
  builder.add_matrix("layers.0.ffn.experts.99999.w1", Packing::kFp8, 128, 128);
  TempDir dir;
  builder.write(dir);
  expect_error(Checkpoint::open(dir.path()).value().load_layer(0), {"missing: expert 0 as a whole", "more"});
  dir.write("config.json", R"({"num_experts":1000000000})");
  expect_error(Checkpoint::open(dir.path()).value().load_layer(0), {"1000000000 experts", "at most 100000"});
}

}  // namespace
}  // namespace monomoe
