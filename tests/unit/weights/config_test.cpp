// config.json: the keys of the supported models, what is refused, and what stays unset.
#include "weights/config.hpp"

#include <cmath>

#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::expect_error;
using test_support::TempDir;

ModelConfig parsed(const std::string& text, const std::string& quant = "") {
  Result<ModelConfig> config = parse_model_config(text, "config.json", quant, "hf_quant_config.json");
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? config.take() : ModelConfig{};
}

TEST(Config, ReadsDeepSeekV4) {
  const ModelConfig c = parsed(R"({"model_type":"deepseek_v4","hidden_size":4096,"moe_intermediate_size":2048,"n_routed_experts":256,
    "num_experts_per_tok":6,"n_shared_experts":1,"num_hidden_layers":43,"num_hash_layers":3,"routed_scaling_factor":1.5,"swiglu_limit":10.0,
    "topk_method":"noaux_tc","scoring_func":"sqrtsoftplus","norm_topk_prob":true,"expert_dtype":"fp4",
    "quantization_config":{"quant_method":"fp8","fmt":"e4m3","scale_fmt":"ue8m0","weight_block_size":[128,128]}})");
  EXPECT_TRUE(c.present);
  EXPECT_EQ(c.model_type, "deepseek_v4");
  EXPECT_EQ(c.hidden, 4096);
  EXPECT_EQ(c.intermediate, 2048);
  EXPECT_EQ(c.experts, 256);
  EXPECT_EQ(c.topk, 6);
  EXPECT_EQ(c.shared_experts, 1);
  EXPECT_EQ(c.layers, 43);
  EXPECT_EQ(c.hash_layers, 3);
  EXPECT_EQ(c.scoring, Scoring::kSqrtSoftplus);
  EXPECT_EQ(c.norm_topk_prob, true);
  EXPECT_EQ(c.routed_scaling_factor, 1.5);
  EXPECT_EQ(c.swiglu_limit, 10.0f);
  EXPECT_FALSE(c.groups.has_value());
  EXPECT_EQ(c.quant.expert_dtype, "fp4");
  EXPECT_EQ(c.quant.scale_fmt, "ue8m0");
  EXPECT_EQ(c.quant.weight_block_size, (std::array<int64_t, 2>{128, 128}));
}

TEST(Config, ScoringFollowsTheModelWhereItIsNotStated) {
  EXPECT_EQ(parsed(R"({"model_type":"deepseek_v3"})").scoring, Scoring::kSigmoid);
  EXPECT_EQ(parsed(R"({"model_type":"kimi_k2"})").scoring, Scoring::kSigmoid);
  EXPECT_EQ(parsed(R"({"model_type":"glm4_moe"})").scoring, Scoring::kSigmoid);
  EXPECT_EQ(parsed(R"({"model_type":"mimo_v2"})").scoring, Scoring::kSigmoid);
  EXPECT_EQ(parsed(R"({"model_type":"deepseek_v4"})").scoring, Scoring::kSqrtSoftplus);
  EXPECT_EQ(parsed(R"({"model_type":"qwen3_moe"})").scoring, Scoring::kSoftmax);
  EXPECT_EQ(parsed(R"({"model_type":"qwen3_moe","scoring_func":"sigmoid"})").scoring, Scoring::kSigmoid);
  // A multimodal model's own type stands outside, its language model's inside.
  const ModelConfig inner = parsed(R"({"model_type":"qwen3_5_moe","text_config":{"model_type":"qwen3_5_moe_text"}})");
  EXPECT_EQ(inner.model_type, "qwen3_5_moe");
  EXPECT_EQ(inner.scoring, Scoring::kSoftmax);
  EXPECT_EQ(inner.norm_topk_prob, true);
  EXPECT_FALSE(parsed(R"({"model_type":"something"})").scoring.has_value());
  expect_error(parse_model_config(R"({"scoring_func":"tanh"})", "config.json"), {"config.json", "scoring_func", "tanh", "softmax"});
}

TEST(Config, SwigluLimit) {
  EXPECT_FALSE(parsed("{}").swiglu_limit.has_value());
  EXPECT_FALSE(parsed(R"({"swiglu_limit":null})").swiglu_limit.has_value());
  EXPECT_FALSE(parsed(R"({"swiglu_limit":0})").swiglu_limit.has_value());
  EXPECT_FALSE(parsed(R"({"swiglu_limit":Infinity})").swiglu_limit.has_value());
  EXPECT_EQ(parsed(R"({"swiglu_limit":7.0})").swiglu_limit, 7.0f);
  for (const char* wrong : {"-1", "NaN", "-Infinity", "\"7\"", "true", "[7]", "1e-60"}) {
    expect_error(parse_model_config(std::string("{\"swiglu_limit\":") + wrong + "}", "config.json"), {"config.json", "swiglu_limit"});
  }
}

TEST(Config, ScalingFactorsThatFp32CannotHoldAreRefused) {
  for (const char* wrong : {"1e300", "-1", "NaN", "Infinity", "0", "1e-300"}) {
    expect_error(parse_model_config(std::string("{\"routed_scaling_factor\":") + wrong + "}", "dir/config.json"),
                 {"dir/config.json", "\"routed_scaling_factor\"", "wanted a positive number"});
  }
  EXPECT_EQ(parsed(R"({"routed_scaling_factor":2.5})").routed_scaling_factor, 2.5);
}

TEST(Config, ActivationsOtherThanSiluAreRefused) {
  for (const char* fine : {"silu", "SiLU", "swiglu", "swish"}) parsed(std::string("{\"hidden_act\":\"") + fine + "\"}");
  for (const char* wrong : {"\"gelu\"", "\"relu2\"", "7"})
    expect_error(parse_model_config(std::string("{\"hidden_act\":") + wrong + "}", "dir/config.json"), {"dir/config.json", "\"hidden_act\"", wrong});
}

TEST(Config, PythonsWordsInsideStringsStay) {
  EXPECT_EQ(parsed(R"({"model_type":"NaN \" Infinity","swiglu_limit":Infinity})").model_type, "NaN \" Infinity");
}

TEST(Config, KeysOfOtherModels) {
  const ModelConfig qwen =
      parsed(R"({"model_type":"qwen3_moe","hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,
    "num_experts_per_tok":8,"norm_topk_prob":true})");
  EXPECT_EQ(qwen.intermediate, 768);
  EXPECT_EQ(qwen.experts, 128);
  const ModelConfig local = parsed(R"({"intermediate_size":1536,"num_local_experts":256})");
  EXPECT_EQ(local.intermediate, 1536);
  EXPECT_EQ(local.experts, 256);
  EXPECT_FALSE(parsed(R"({"intermediate_size":18432,"n_routed_experts":256})").intermediate.has_value());
  EXPECT_FALSE(parsed(R"({"routed_scaling_factor":null})").routed_scaling_factor.has_value());
  const ModelConfig v3 = parsed(R"({"n_group":8,"topk_group":4,"first_k_dense_replace":3})");
  EXPECT_EQ(v3.groups, 8);
  EXPECT_EQ(v3.topk_groups, 4);
  EXPECT_EQ(v3.first_dense_layers, 3);
}

TEST(Config, NestedTextConfigCounts) {
  const ModelConfig c = parsed(
      R"({"model_type":"wrapper","text_config":{"model_type":"kimi_k2","hidden_size":7168,"quantization_config":{"quant_method":"fp8"}}})");
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_EQ(c.hidden, 7168);
  EXPECT_EQ(c.quant.quant_method, "fp8");
}

TEST(Config, WrongTypesNameTheKey) {
  expect_error(parse_model_config(R"({"hidden_size":-1,"num_experts_per_tok":"6"})", "config.json"),
               {"config.json", "hidden_size", "found -1", "num_experts_per_tok"});
  expect_error(parse_model_config(R"({"norm_topk_prob":1})", "config.json"), {"norm_topk_prob", "true or false"});
  expect_error(parse_model_config(R"({"routed_scaling_factor":-2})", "config.json"), {"routed_scaling_factor", "positive"});
  expect_error(parse_model_config(R"({"hidden_size":1,"hidden_size":2})", "config.json"), {"config.json", "hidden_size", "twice"});
  expect_error(parse_model_config("[]", "config.json"), {"config.json", "JSON object"});
  expect_error(parse_model_config(R"({"quantization_config":{"weight_block_size":[128]}})", "config.json"), {"weight_block_size", "[128]"});
}

TEST(Config, QuantHintsOfBothFiles) {
  const ModelConfig c =
      parsed(R"({"quantization_config":{"quant_method":"fp8","moe_quant_algo":"NVFP4","quant_algo":"MIXED_PRECISION","group_size":16,
    "ignore":["*.attn.*","mtp.*"],"quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4","group_size":16}}}})",
             R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":null,"exclude_modules":["head"],
    "quantized_layers":{"layers.1.ffn.experts":{"quant_algo":"FP8"}}}})");
  EXPECT_EQ(c.quant.moe_quant_algo, "nvfp4");
  EXPECT_EQ(c.quant.quant_algo, "mixed_precision");
  EXPECT_EQ(c.quant.group_size, 16);
  EXPECT_EQ(c.quant.ignore, (std::vector<std::string>{"*.attn.*", "mtp.*", "head"}));
  EXPECT_EQ(c.quant.quantized_layers.at("layers.0.ffn.experts"), "nvfp4");
  EXPECT_EQ(c.quant.quantized_layers.at("layers.1.ffn.experts"), "fp8");
}

TEST(Config, FilesAreReadFromTheDirectoryAndMayBeAbsent) {
  TempDir dir;
  Result<ModelConfig> none = read_model_config(dir.path());
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none.value().present);
  EXPECT_FALSE(none.value().hidden.has_value());
  dir.write("config.json", R"({"hidden_size":128})");
  EXPECT_EQ(read_model_config(dir.path()).value().hidden, 128);
  dir.write("config.json", "");
  expect_error(read_model_config(dir.path()), {"config.json", "empty"});
}

}  // namespace
}  // namespace monomoe
