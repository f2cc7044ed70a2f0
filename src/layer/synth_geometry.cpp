// Sizes and keys as the published config.json files state them. Dense layers in front are left out: every synthetic layer is sparse.
#include "layer/synth_geometry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

constexpr Geometry kGeometries[] = {
    {"deepseek-v4-flash", "deepseek_v4", "DeepseekV4ForCausalLM", true, 4096, 2048, 256, 6, 1, 3, 129280, Scoring::kSqrtSoftplus, true, 0,
     0, 1.5, 10},
    {"deepseek-v4-pro", "deepseek_v4", "DeepseekV4ForCausalLM", true, 7168, 3072, 384, 6, 1, 3, 129280, Scoring::kSqrtSoftplus, true, 0, 0,
     2.5, 10},
    {"mimo-v2.5-pro", "mimo_v2", "MiMoV2ForCausalLM", false, 6144, 2048, 384, 8, 0, 0, 152576, Scoring::kSigmoid, true, 1, 1, 0, 0},
    {"deepseek-v3", "deepseek_v3", "DeepseekV3ForCausalLM", false, 7168, 2048, 256, 8, 1, 0, 129280, Scoring::kSigmoid, true, 8, 4, 2.5, 0},
    {"kimi-k2", "kimi_k2", "DeepseekV3ForCausalLM", false, 7168, 2048, 384, 8, 1, 0, 163840, Scoring::kSigmoid, true, 1, 1, 2.827, 0},
    {"glm-4.5", "glm4_moe", "Glm4MoeForCausalLM", false, 5120, 1536, 160, 8, 1, 0, 151552, Scoring::kSigmoid, true, 1, 1, 2.5, 0},
    {"qwen3-235b", "qwen3_moe", "Qwen3MoeForCausalLM", false, 4096, 1536, 128, 8, 0, 0, 151936, Scoring::kSoftmax, false, 0, 0, 0, 0},
};

// What stays FP8 when the experts are FP4, and what never was quantised.
Json unquantised_modules(const Geometry& geometry) {
  if (geometry.native_names) return {"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"};
  return {"lm_head", "*.self_attn.*", "*.mlp.gate", "*.mlp.shared_experts.*"};
}

Json block_fp8(const Geometry& geometry) {
  Json quant = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  if (geometry.native_names) quant["scale_fmt"] = "ue8m0";
  return quant;
}

Json nvfp4_quantisation(const Geometry& geometry, int64_t layers) {
  Json quant = geometry.native_names ? block_fp8(geometry) : Json{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  quant["group_size"] = 16;
  quant["ignore"] = unquantised_modules(geometry);
  quant["producer"] = {{"name", "modelopt"}};
  if (!geometry.native_names) return quant;
  quant["moe_quant_algo"] = "NVFP4";
  quant["quant_algo"] = "MIXED_PRECISION";
  Json quantised = Json::object();
  for (int64_t layer = 0; layer < layers; ++layer) {
    quantised[layer_prefix(geometry, layer) + "experts"] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  quant["quantized_layers"] = quantised;
  return quant;
}

Json mxfp4_quantisation(const Geometry& geometry) {
  if (geometry.native_names) return block_fp8(geometry);
  return {{"quant_method", "mxfp4"}, {"group_size", 32}, {"ignore", unquantised_modules(geometry)}};
}

Json quantisation(const Geometry& geometry, const SynthShape& shape) {
  if (shape.format == WeightFormat::kNvfp4) return nvfp4_quantisation(geometry, shape.layers);
  if (shape.format == WeightFormat::kMxfp4) return mxfp4_quantisation(geometry);
  return block_fp8(geometry);
}

}  // namespace

std::span<const Geometry> geometries() { return kGeometries; }

const Geometry* find_geometry(std::string_view name) {
  const auto found = std::ranges::find_if(kGeometries, [&](const Geometry& geometry) { return geometry.name == name; });
  return found == std::end(kGeometries) ? nullptr : &*found;
}

std::string layer_prefix(const Geometry& geometry, int64_t layer) {
  return fmt::format("{}layers.{}.{}.", geometry.native_names ? "" : "model.", layer, geometry.native_names ? "ffn" : "mlp");
}

std::string matrix_name(const Geometry& geometry, int matrix) {
  constexpr const char* kNative[] = {"w1", "w3", "w2"};
  constexpr const char* kHuggingFace[] = {"gate_proj", "up_proj", "down_proj"};
  return geometry.native_names ? kNative[matrix] : kHuggingFace[matrix];
}

std::string synth_config(const Geometry& geometry, const SynthShape& shape) {
  Json config;
  config["architectures"] = {geometry.architecture};
  config["model_type"] = geometry.model_type;
  config["hidden_act"] = "silu";
  config["hidden_size"] = geometry.hidden;
  config["moe_intermediate_size"] = geometry.intermediate;
  const bool is_qwen = geometry.scoring == Scoring::kSoftmax;
  config[is_qwen ? "num_experts" : "n_routed_experts"] = shape.experts;
  config["num_experts_per_tok"] = std::min(geometry.topk, shape.experts);
  config["num_hidden_layers"] = shape.layers;
  config["vocab_size"] = geometry.vocabulary;
  config["norm_topk_prob"] = true;
  if (is_qwen) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = Json::array();
  } else {
    if (geometry.shared_experts != 0) config["n_shared_experts"] = geometry.shared_experts;
    config["scoring_func"] = scoring_name(geometry.scoring);
    config["topk_method"] = "noaux_tc";
    config["routed_scaling_factor"] = geometry.scaling_factor == 0 ? Json(nullptr) : Json(geometry.scaling_factor);
  }
  if (geometry.native_names) {
    config["num_hash_layers"] = std::min(geometry.hash_layers, shape.layers);
    config["expert_dtype"] = shape.format == WeightFormat::kFp8 ? "fp8" : "fp4";
  } else if (!is_qwen) {
    config["first_k_dense_replace"] = 0;
    config["moe_layer_freq"] = 1;
  }
  if (geometry.groups != 0) {
    // Groups must divide the experts: a reduced copy keeps them only where they do.
    const bool fits = shape.experts % geometry.groups == 0 && shape.experts / geometry.groups >= 2;
    config["n_group"] = fits ? geometry.groups : 1;
    config["topk_group"] = fits ? geometry.topk_groups : 1;
  }
  if (geometry.swiglu_limit != 0) config["swiglu_limit"] = geometry.swiglu_limit;
  config["quantization_config"] = quantisation(geometry, shape);
  return config.dump(2) + "\n";
}

}  // namespace monomoe::layer
