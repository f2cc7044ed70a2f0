// What stands in config.json and hf_quant_config.json, as seeds and as words for mutators.
#pragma once

#include "json_mutator.hpp"

namespace monomoe::fuzz {

constexpr const char* kConfigSeed =
    R"({"model_type":"deepseek_v4","hidden_size":4096,"moe_intermediate_size":2048,"n_routed_experts":256,"num_experts_per_tok":6,"swiglu_limit":10.0,)"
    R"("routed_scaling_factor":1.5,"norm_topk_prob":true,"scoring_func":"sqrtsoftplus","n_group":8,"topk_group":4,"num_hash_layers":3,"expert_dtype":"fp4",)"
    R"("text_config":{"n_group":8,"hidden_act":"silu"},"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"ignore":["*.attn.*","re:model[.].*","mtp.*"],)"
    R"("config_groups":{"group_0":{"format":"nvfp4-pack-quantized","targets":["Linear"]}},"quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4","group_size":16}}}})";
constexpr const char* kQuantSeed =
    R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"MIXED_PRECISION","exclude_modules":["lm_head","mtp.*"],)"
    R"("quantized_layers":{"layers.3.ffn.experts":{"quant_algo":"NVFP4","group_size":16},"layers.3.ffn.experts.0.w1":{"quant_algo":null,"awq_block_size":16}}}})";

inline const Vocabulary kConfigWords = {{"model_type",
                                         "hidden_size",
                                         "moe_intermediate_size",
                                         "intermediate_size",
                                         "n_routed_experts",
                                         "num_experts",
                                         "num_local_experts",
                                         "num_experts_per_tok",
                                         "swiglu_limit",
                                         "routed_scaling_factor",
                                         "norm_topk_prob",
                                         "scoring_func",
                                         "topk_method",
                                         "n_group",
                                         "topk_group",
                                         "num_hash_layers",
                                         "num_hidden_layers",
                                         "first_k_dense_replace",
                                         "text_config",
                                         "quantization_config",
                                         "quantization",
                                         "quant_method",
                                         "quant_algo",
                                         "moe_quant_algo",
                                         "expert_dtype",
                                         "scale_fmt",
                                         "format",
                                         "config_groups",
                                         "group_size",
                                         "weight_block_size",
                                         "ignore",
                                         "exclude_modules",
                                         "modules_to_not_convert",
                                         "ignored_layers",
                                         "quantized_layers",
                                         "hidden_act",
                                         "layers.3.ffn.experts",
                                         "weight",
                                         "model."},
                                        {"deepseek_v4",
                                         "deepseek_v3",
                                         "qwen3_moe",
                                         "kimi_k2",
                                         "glm4_moe",
                                         "softmax",
                                         "sigmoid",
                                         "sqrtsoftplus",
                                         "silu",
                                         "swish",
                                         "greedy",
                                         "noaux_tc",
                                         "group_limited_greedy",
                                         "fp8",
                                         "NVFP4",
                                         "MXFP4",
                                         "MIXED_PRECISION",
                                         "ue8m0",
                                         "e4m3",
                                         "fp4",
                                         "mxfp4-pack-quantized",
                                         "nvfp4-pack-quantized",
                                         "mixed-precision",
                                         "compressed-tensors",
                                         "*.attn.*",
                                         "*",
                                         "**",
                                         "re:^model\\.layers\\.(3|4)\\..*$",
                                         "re:",
                                         "re:.*.*.*.*.*a",
                                         "mtp",
                                         "layers.3.ffn",
                                         "layers.3.ffn.experts.0.w1",
                                         "NaN",
                                         "Infinity"}};

}  // namespace monomoe::fuzz
