// Keys nobody asked about stay as they are, in their order; what describes the experts' quantisation is replaced.
#include "layer/pack_config.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weights/config_quant.hpp"
#include "weights/mapped_file.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

// The object that holds the language model's fields.
Json& fields_of(Json& root) {
  const auto nested = root.find("text_config");
  return nested != root.end() && nested->is_object() ? *nested : root;
}

void set_experts(Json& root, int64_t experts) {
  for (Json* object : {&fields_of(root), &root}) {
    for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) {
      if (object->contains(key) && !(*object)[key].is_null()) (*object)[key] = experts;
    }
  }
}

// Patterns of modules that are not quantised like the experts; those that cover experts were true of the source only.
Json kept_patterns(const Json& quant, const PackPlan& plan, bool native) {
  Json kept = Json::array();
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
    const auto found = quant.find(key);
    if (found == quant.end() || !found->is_array()) continue;
    for (const Json& item : *found) {
      if (!item.is_string()) continue;
      bool covers = false;
      for (const LayerWeights& layer : plan.layers) covers = covers || matches_module({item.get<std::string>()}, layer.prefix + "experts");
      if (!covers) kept.push_back(item);
    }
  }
  if (!kept.empty()) return kept;
  if (native) return {"*.attn.*", "*.ffn.shared_experts.*", "head"};
  return {"lm_head", "*.self_attn.*", "*.mlp.gate", "*.mlp.shared_expert*"};
}

void set_nvfp4(Json& quant, const PackPlan& plan, bool native) {
  quant["group_size"] = 16;
  if (!native) {
    quant["quant_method"] = "modelopt";
    quant["quant_algo"] = "NVFP4";
    return;
  }
  quant["quant_algo"] = "MIXED_PRECISION";
  quant["moe_quant_algo"] = "NVFP4";
  Json layers = Json::object();
  for (const LayerWeights& layer : plan.layers) layers[layer.prefix + "experts"] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  quant["quantized_layers"] = layers;
}

void set_block_fp8(Json& quant) {
  quant["quant_method"] = "fp8";
  quant["fmt"] = "e4m3";
  quant["weight_block_size"] = {128, 128};
  quant["activation_scheme"] = "dynamic";
}

void set_quantisation(Json& root, WeightFormat format, const PackPlan& plan) {
  const bool native = !plan.layers.front().hugging_face_names;
  Json& holder = root.contains("quantization_config") ? root : fields_of(root);
  Json quant =
      holder.contains("quantization_config") && holder["quantization_config"].is_object() ? holder["quantization_config"] : Json::object();
  const Json patterns = kept_patterns(quant, plan, native);
  for (const char* key : {"quant_algo", "moe_quant_algo", "quantized_layers", "group_size", "config_groups", "format", "ignore",
                          "exclude_modules", "modules_to_not_convert", "ignored_layers", "producer"}) {
    quant.erase(key);
  }
  // Native checkpoints are FP8 outside their experts, whatever those are.
  if (native || format == WeightFormat::kFp8) set_block_fp8(quant);
  if (format == WeightFormat::kNvfp4) set_nvfp4(quant, plan, native);
  if (format == WeightFormat::kMxfp4 && !native) {
    quant["quant_method"] = "mxfp4";
    quant["group_size"] = 32;
  }
  quant["ignore"] = patterns;
  holder["quantization_config"] = quant;
  if (native || root.contains("expert_dtype")) root["expert_dtype"] = format == WeightFormat::kFp8 ? "fp8" : "fp4";
}

}  // namespace

Result<std::string> pack_config(const Checkpoint& checkpoint, const PackRequest& request, const PackPlan& plan) {
  if (!checkpoint.config().present) return std::string();
  const std::string path = (std::filesystem::path(checkpoint.tensors().directory()) / "config.json").string();
  auto map = MappedFile::open(path);
  if (!map) return map.error();
  const std::span<const uint8_t> bytes = map.value().bytes();
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Json root = Json::parse(text, nullptr, false);
  if (!root.is_object()) {
    return bad_input(fmt::format(
        "{} has bare NaN or Infinity, which is no JSON: `pack` writes it anew and needs plain JSON; correct the file", printable(path)));
  }
  if (!request.format && request.experts.empty()) return text;  // packed: nothing it says has changed
  if (!request.experts.empty()) set_experts(root, static_cast<int64_t>(request.experts.size()));
  if (request.format) set_quantisation(root, *request.format, plan);
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace monomoe::layer
