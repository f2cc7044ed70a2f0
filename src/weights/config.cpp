// config.json -> ModelConfig. Every field is checked where it is read, so a wrong type is an error that names the key.
#include "weights/config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weights/config_quant.hpp"
#include "weights/json_text.hpp"
#include "weights/mapped_file.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

using nlohmann::json;

// Reads keys of config.json, in text_config first (multimodal models keep the language model's fields there).
class Fields {
 public:
  Fields(const json& root, std::string_view file) : root_(root), file_(file) {
    const auto nested = root.find("text_config");
    if (nested != root.end() && nested->is_object()) text_ = &*nested;
  }

  // null counts as absent
  const json* get(const char* key) const {
    for (const json* object : {text_, &root_}) {
      if (object == nullptr) continue;
      const auto found = object->find(key);
      if (found != object->end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  std::optional<int64_t> count(std::initializer_list<const char*> keys) {
    constexpr uint64_t kLargest = 1'000'000'000;
    for (const char* key : keys) {
      const json* value = get(key);
      if (value == nullptr) continue;
      if (value->is_number_unsigned() && value->get<uint64_t>() <= kLargest) return value->get<int64_t>();
      refuse(key, *value, "a whole number from 0 to 1000000000");
      return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<bool> flag(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_boolean()) return value->get<bool>();
    refuse(key, *value, "true or false");
    return std::nullopt;
  }

  std::optional<std::string> word(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_string()) return value->get<std::string>();
    refuse(key, *value, "a string");
    return std::nullopt;
  }

  // A number, or one of the words that stand for NaN and the infinities.
  std::optional<double> number(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number()) return value->get<double>();
    if (*value == "NaN") return std::nan("");
    if (*value == "Infinity") return INFINITY;
    if (*value == "-Infinity") return -INFINITY;
    refuse(key, *value, "a number");
    return std::nullopt;
  }

  void refuse(const char* key, const json& found, std::string_view wanted) {
    constexpr size_t kLongest = 240;
    std::string text = found.dump(-1, ' ', true, json::error_handler_t::replace);  // plain ASCII, quotes as the file has them
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    problems_.add(fmt::format("{}: \"{}\": found {}, wanted {}; correct the file", printable(file_), key, text, wanted));
  }
  ProblemList& problems() { return problems_; }

 private:
  const json& root_;
  const json* text_ = nullptr;
  std::string_view file_;
  ProblemList problems_;
};

// What a model's own code does where its config.json does not say.
struct ModelHabit {
  std::string_view model_type;
  Scoring scoring;
  bool norm_topk_prob;
};
constexpr ModelHabit kHabits[] = {
    {"deepseek_v4", Scoring::kSqrtSoftplus, true}, {"deepseek_v3", Scoring::kSigmoid, true},   {"deepseek_v32", Scoring::kSigmoid, true},
    {"kimi_k2", Scoring::kSigmoid, true},          {"glm4_moe", Scoring::kSigmoid, true},      {"glm_moe_dsa", Scoring::kSigmoid, true},
    {"mimo_v2", Scoring::kSigmoid, true},          {"mimo_v2_flash", Scoring::kSigmoid, true}, {"mimo", Scoring::kSigmoid, true},
    {"qwen3_moe", Scoring::kSoftmax, false},       {"qwen2_moe", Scoring::kSoftmax, false},   {"qwen3_next", Scoring::kSoftmax, true},
    {"qwen3_5_moe", Scoring::kSoftmax, true},      {"deepseek_v2", Scoring::kSoftmax, false},
};

const ModelHabit* habit_of(const std::optional<std::string>& model_type) {
  for (const ModelHabit& habit : kHabits) {
    if (model_type && *model_type == habit.model_type) return &habit;
  }
  return nullptr;
}

void read_scoring(Fields& fields, ModelConfig& config) {
  const std::optional<std::string> stated = fields.word("scoring_func");
  const ModelHabit* habit = habit_of(config.model_type);
  config.norm_topk_prob = fields.flag("norm_topk_prob");
  if (!config.norm_topk_prob && habit != nullptr) config.norm_topk_prob = habit->norm_topk_prob;
  if (!stated) {
    if (habit != nullptr) config.scoring = habit->scoring;
    return;
  }
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus}) {
    if (*stated == scoring_name(scoring)) config.scoring = scoring;
  }
  if (!config.scoring) fields.refuse("scoring_func", *stated, "softmax, sigmoid or sqrtsoftplus");
}

void read_limits(Fields& fields, ModelConfig& config) {
  if (const std::optional<double> limit = fields.number("swiglu_limit"); limit && *limit != 0) {
    const float rounded = static_cast<float>(*limit);
    if (std::isnan(*limit) || *limit < 0 || rounded == 0) {
      fields.refuse("swiglu_limit", *fields.get("swiglu_limit"), "a positive number, or null or 0 for no clamp");
    } else if (std::isfinite(rounded)) {
      config.swiglu_limit = rounded;
    }
  }
  config.routed_scaling_factor = fields.number("routed_scaling_factor");
  if (const auto factor = config.routed_scaling_factor) {
    const float rounded = static_cast<float>(*factor);
    if (!(std::isfinite(rounded) && rounded > 0))
      fields.refuse("routed_scaling_factor", *fields.get("routed_scaling_factor"), "a positive number that fp32 can hold");
  }
}

// The experts' activation is silu(gate) * up and no other.
void check_activation(Fields& fields) {
  const std::optional<std::string> stated = fields.word("hidden_act");
  if (!stated) return;
  const std::string act = lower_case(*stated);
  if (act != "silu" && act != "swiglu" && act != "swish")
    fields.refuse("hidden_act", *fields.get("hidden_act"), "silu (the layer computes silu(gate) * up)");
}

void read_geometry(Fields& fields, ModelConfig& config) {
  config.hidden = fields.count({"hidden_size"});
  config.intermediate = fields.count({"moe_intermediate_size"});
  // Models whose every layer is sparse name the experts' width like a dense one's and count "local" experts.
  if (!config.intermediate && fields.get("num_local_experts") != nullptr) config.intermediate = fields.count({"intermediate_size"});
  config.experts = fields.count({"n_routed_experts", "num_experts", "num_local_experts"});
  config.topk = fields.count({"num_experts_per_tok", "num_experts_per_token"});
  config.shared_experts = fields.count({"n_shared_experts", "num_shared_experts"});
  config.layers = fields.count({"num_hidden_layers"});
  config.first_dense_layers = fields.count({"first_k_dense_replace"});
  config.hash_layers = fields.count({"num_hash_layers"});
  config.nextn_layers = fields.count({"num_nextn_predict_layers"});
  config.groups = fields.count({"n_group"});
  config.topk_groups = fields.count({"topk_group"});
}

Result<json> parse_object(std::string_view text, std::string_view file) {
  Result<json> parsed = parse_json_strict(text, file);
  if (parsed.ok() && !parsed.value().is_object()) {
    return bad_input(fmt::format("{}: found {}, wanted a JSON object; correct the file", printable(file), parsed.value().type_name()));
  }
  return parsed;
}

}  // namespace

std::string_view scoring_name(Scoring scoring) {
  switch (scoring) {
    case Scoring::kSoftmax:
      return "softmax";
    case Scoring::kSigmoid:
      return "sigmoid";
    default:
      return "sqrtsoftplus";
  }
}

Result<ModelConfig> parse_model_config(std::string_view config_json, std::string_view file, std::string_view quant_json,
                                       std::string_view quant_file) {
  ModelConfig config;
  config.file = file;
  ProblemList problems;
  if (!config_json.empty()) {
    Result<json> root = parse_object(config_json, file);
    if (!root) return root.error();
    config.present = true;
    Fields fields(root.value(), file);
    config.model_type = fields.word("model_type");
    // "qwen3_5_moe_text": the language model's own part of a multimodal one is the same model.
    constexpr std::string_view kText = "_text";
    if (config.model_type && config.model_type->ends_with(kText)) config.model_type->resize(config.model_type->size() - kText.size());
    read_geometry(fields, config);
    read_scoring(fields, config);
    read_limits(fields, config);
    check_activation(fields);
    config.topk_method = fields.word("topk_method").value_or("");
    config.quant.expert_dtype = lower_case(fields.word("expert_dtype").value_or(""));
    if (const json* quant = fields.get("quantization_config")) read_quant_hints(*quant, file, config.quant, problems);
    if (!fields.problems().empty()) problems.add(fields.problems().text());
  }
  if (!quant_json.empty()) {
    Result<json> root = parse_object(quant_json, quant_file);
    if (!root) return root.error();
    const auto quant = root.value().find("quantization");
    if (quant != root.value().end()) read_quant_hints(*quant, quant_file, config.quant, problems);
  }
  if (!problems.empty()) return bad_input(problems.text());
  return config;
}

Result<ModelConfig> read_model_config(const std::string& directory) {
  std::string texts[2], paths[2];
  const char* const names[2] = {"config.json", "hf_quant_config.json"};
  bool present[2] = {};
  for (int i = 0; i < 2; ++i) {
    paths[i] = (std::filesystem::path(directory) / names[i]).string();
    std::error_code error;
    if (!std::filesystem::exists(std::filesystem::symlink_status(paths[i], error))) continue;
    Result<MappedFile> map = MappedFile::open(paths[i]);
    if (!map) return map.error();
    present[i] = true;
    texts[i].assign(reinterpret_cast<const char*>(map.value().bytes().data()), map.value().bytes().size());
    if (texts[i].empty()) return bad_input(fmt::format("{} is empty; wanted a JSON object; fetch the file again", printable(paths[i])));
  }
  Result<ModelConfig> config = parse_model_config(texts[0], paths[0], texts[1], paths[1]);
  if (config.ok() && !present[0]) config.value().file.clear();
  return config;
}

}  // namespace monomoe
