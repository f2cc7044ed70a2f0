// Two experts of 32 x 32 in each: enough for every rule of names, companions and shapes, and little to read.
#include "checkpoint_seeds.hpp"

#include <initializer_list>

#include "config_words.hpp"
#include "plan/weight_packing.h"
#include "weights/checksum.hpp"
#include "weights/packed_manifest.hpp"

namespace monomoe::fuzz {
namespace {

constexpr int64_t kSide = 32;

void add(TensorFile& file, const std::string& name, const char* dtype, std::initializer_list<int64_t> shape) {
  Json extents = Json::array();
  for (const int64_t extent : shape) extents.push_back(static_cast<uint64_t>(extent));
  file.header[name] = {{"dtype", dtype}, {"shape", extents}, {"data_offsets", {0u, 0u}}};
}

template <class AddMatrix>
void add_experts(TensorFile& file, const std::string& prefix, std::initializer_list<const char*> roles, AddMatrix&& add_matrix) {
  for (int e = 0; e < 2; ++e) {
    for (const char* role : roles) add_matrix(prefix + "experts." + std::to_string(e) + "." + role);
  }
  add(file, prefix + "gate.weight", "BF16", {2, kSide});
}

Json config(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 32},        {"moe_intermediate_size", 32},
          {"n_routed_experts", 2},    {"num_experts_per_tok", 1}, {"num_hidden_layers", 1}};
}

void state(TensorFile& file, const char* name, const Json& settings) { file.header["__metadata__"][name] = settings.dump(); }

TensorFile nvfp4() {
  TensorFile file;
  state(file, "config.json", config("deepseek_v4"));
  state(file, "hf_quant_config.json", Json::parse(kQuantSeed));
  add_experts(file, "layers.0.ffn.", {"w1", "w3", "w2"}, [&](const std::string& base) {
    add(file, base + ".weight", "U8", {kSide, kSide / 2});
    add(file, base + ".weight_scale", "F8_E4M3", {kSide, kSide / 16});
    add(file, base + ".weight_scale_2", "F32", {});
    add(file, base + ".input_scale", "F32", {});
  });
  add(file, "layers.0.ffn.gate.bias", "F32", {2});
  return file;
}

TensorFile mxfp4_with_hash() {
  TensorFile file;
  Json settings = config("deepseek_v4");
  settings["num_hash_layers"] = 1;
  state(file, "config.json", settings);
  add_experts(file, "layers.0.ffn.", {"w1", "w3", "w2"}, [&](const std::string& base) {
    add(file, base + ".weight", "I8", {kSide, kSide / 2});
    add(file, base + ".scale", "F8_E8M0", {kSide, kSide / 32});
  });
  add(file, "layers.0.ffn.gate.tid2eid", "I64", {4, 1});
  for (const char* role : {"w1", "w3", "w2"}) {
    add(file, std::string("layers.0.ffn.shared_experts.") + role + ".weight", "F8_E4M3", {kSide, kSide});
    add(file, std::string("layers.0.ffn.shared_experts.") + role + ".scale", "F8_E8M0", {1, 1});
  }
  return file;
}

TensorFile fp8() {
  TensorFile file;
  Json settings = config("deepseek_v3");
  settings["n_group"] = 2;
  settings["topk_group"] = 1;
  state(file, "config.json", settings);
  for (const char* prefix : {"model.layers.0.mlp.", "mtp.0.ffn."}) {
    add_experts(file, prefix, {"gate_proj", "up_proj", "down_proj"}, [&](const std::string& base) {
      add(file, base + ".weight", "F8_E4M3", {kSide, kSide});
      add(file, base + ".weight_scale_inv", "F32", {1, 1});
    });
  }
  return file;
}

TensorFile fused() {
  TensorFile file;
  state(file, "config.json", config("qwen3_moe"));
  add(file, "model.layers.0.mlp.experts.gate_up_proj", "BF16", {2, 2 * kSide, kSide});
  add(file, "model.layers.0.mlp.experts.down_proj", "BF16", {2, kSide, kSide});
  add(file, "model.layers.0.mlp.gate.weight", "F32", {2, kSide});
  return file;
}

TensorFile compressed_tensors() {
  TensorFile file;
  Json settings = config("glm4_moe");
  settings["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}, {"ignore", {"lm_head"}}};
  state(file, "config.json", settings);
  add_experts(file, "model.layers.0.mlp.", {"gate_proj", "up_proj", "down_proj"}, [&](const std::string& base) {
    add(file, base + ".weight_packed", "U8", {kSide, kSide / 2});
    add(file, base + ".weight_scale", "F8_E4M3", {kSide, kSide / 16});
    add(file, base + ".weight_global_scale", "F32", {1});
  });
  return file;
}

TensorFile packed() {
  TensorFile file;
  Problem problem;
  problem.hidden = problem.intermediate = 128;
  problem.experts = problem.topk = 1;
  problem.weights = WeightFormat::kMxfp4;
  const auto bytes = static_cast<size_t>(expert_layout(problem).bytes);
  std::string expert(bytes, 0);
  const auto format = static_cast<int32_t>(problem.weights);
  for (size_t i = 0; i < 4; ++i) expert[i] = static_cast<char>(format >> (8 * i));
  PackedManifest manifest;
  PackedLayerRecord& record = manifest.layers["0"];
  record.prefix = "layers.0.ffn.";
  record.format = problem.weights;
  record.hidden = record.intermediate = 128;
  record.checksums = {checksum_text({reinterpret_cast<const uint8_t*>(expert.data()), bytes})};
  file.header["__metadata__"]["monomoe_packed.json"] = packed_manifest_text(manifest);
  add(file, "layers.0.ffn.experts.0.packed", "U8", {static_cast<int64_t>(bytes)});
  add(file, "layers.0.ffn.gate.weight", "BF16", {1, 128});
  file.data = expert;
  return file;
}

}  // namespace

TensorFile checkpoint_seed(Random& random) {
  constexpr TensorFile (*kSeeds[])() = {nvfp4, mxfp4_with_hash, fp8, fused, compressed_tensors, packed};
  TensorFile file = random.pick(kSeeds)();
  lay_out(file, random);
  return file;
}

}  // namespace monomoe::fuzz
