// What config.json (and hf_quant_config.json) say about a model's MoE layers. Nothing here is trusted over the tensors: a field that
// the files do not state stays empty.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace monomoe {

enum class Scoring : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
std::string_view scoring_name(Scoring scoring);

// Hints about quantisation, as written; lower case where they are words. Empty = not stated.
struct QuantHints {
  std::string quant_method, quant_algo, moe_quant_algo, expert_dtype, scale_fmt, format;
  std::optional<std::array<int64_t, 2>> weight_block_size;
  std::optional<int64_t> group_size;
  std::vector<std::string> ignore;                      // module patterns that are not quantised this way ('*' wildcards)
  std::map<std::string, std::string> quantized_layers;  // module -> algorithm, lower case
};

struct ModelConfig {
  bool present = false;  // false: the directory has no config.json
  std::string file;      // its path, for messages
  std::optional<std::string> model_type;
  std::optional<int64_t> hidden, intermediate, experts, topk, shared_experts;
  std::optional<int64_t> layers, first_dense_layers, hash_layers, nextn_layers;
  std::optional<Scoring> scoring;  // stated, or known from model_type
  std::optional<bool> norm_topk_prob;
  std::optional<double> routed_scaling_factor;  // a normal or subnormal fp32 value above zero
  std::optional<int64_t> groups, topk_groups;
  std::string topk_method;
  std::optional<float> swiglu_limit;  // empty = no clamp (absent, null, 0 or Infinity in the file)
  QuantHints quant;
};

// From a checkpoint directory; a missing config.json is legal.
Result<ModelConfig> read_model_config(const std::string& directory);

// The same from text; `quant_json` is hf_quant_config.json's text or empty.
Result<ModelConfig> parse_model_config(std::string_view config_json, std::string_view file, std::string_view quant_json = {},
                                       std::string_view quant_file = {});

}  // namespace monomoe
