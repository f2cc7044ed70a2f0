// Two JSON files in one input, config.json before a line break of its own and hf_quant_config.json behind it: an error, or settings within
// their rules.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "custom_mutator.hpp"
#include "weights/config.hpp"
#include "weights/config_quant.hpp"

namespace {

std::pair<std::string_view, std::string_view> two_files(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view between = monomoe::fuzz::kBetweenFiles;
  const size_t at = all.find(between);
  if (at == std::string_view::npos) return {all, {}};
  return {all.substr(0, at), all.substr(at + between.size())};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [config_text, quant_text] = two_files(data, size);
  const auto config = monomoe::parse_model_config(config_text, "config.json", quant_text, "hf_quant_config.json");
  if (!config) {
    if (config.error().message.find(".json: ") == std::string::npos) std::abort();
    return 0;
  }
  const monomoe::ModelConfig& c = config.value();
  if (c.swiglu_limit && !(*c.swiglu_limit > 0 && std::isfinite(*c.swiglu_limit))) std::abort();
  for (const auto& count : {c.hidden, c.intermediate, c.experts, c.topk, c.shared_experts, c.layers, c.first_dense_layers, c.hash_layers,
                            c.groups, c.topk_groups}) {
    if (count && (*count < 0 || *count > 1'000'000'000)) std::abort();
  }
  size_t matched = 0;
  for (const char* module : {"layers.3.ffn.experts", "model.layers.3.mlp.experts", "mtp.0.ffn.experts", ""}) {
    matched += monomoe::matches_module(c.quant.ignore, module) ? 1 : 0;
    matched += monomoe::stated_algorithm(c.quant, module).size();
  }
  volatile size_t sink = matched;
  (void)sink;
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return monomoe::fuzz::mutate_input(data, size, max_size, seed, monomoe::fuzz::change_settings);
}
