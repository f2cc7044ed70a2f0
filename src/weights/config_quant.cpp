// Two dialects (quantization_config of config.json, quantization of hf_quant_config.json) with nearly the same keys.
#include "weights/config_quant.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace monomoe {
namespace {

using nlohmann::json;

void read_word(const json& object, const char* key, std::string& out) {
  const auto found = object.find(key);
  if (out.empty() && found != object.end() && found->is_string()) out = lower_case(found->get_ref<const std::string&>());
}

void read_block(const json& object, std::string_view file, QuantHints& hints, ProblemList& problems) {
  const auto found = object.find("weight_block_size");
  if (hints.weight_block_size || found == object.end() || found->is_null()) return;
  auto whole = [](const json& value) { return value.is_number_unsigned() && value.get<uint64_t>() <= 1'000'000; };
  if (found->is_array() && found->size() == 2 && whole((*found)[0]) && whole((*found)[1])) {
    hints.weight_block_size = {(*found)[0].get<int64_t>(), (*found)[1].get<int64_t>()};
  } else {
    problems.add(fmt::format("{}: \"weight_block_size\": found {}, wanted two whole numbers; correct the file", printable(file),
                             printable(found->dump(-1, ' ', true, json::error_handler_t::replace))));
  }
}

void read_ignored(const json& object, QuantHints& hints) {
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"}) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_array()) continue;
    for (const json& item : *found) {
      if (item.is_string()) hints.ignore.push_back(item.get<std::string>());
    }
  }
}

void read_layers(const json& object, QuantHints& hints) {
  const auto found = object.find("quantized_layers");
  if (found == object.end() || !found->is_object()) return;
  for (const auto& [module, value] : found->items()) {
    std::string algorithm;
    if (value.is_string()) algorithm = lower_case(value.get_ref<const std::string&>());
    if (value.is_object()) read_word(value, "quant_algo", algorithm);
    if (!algorithm.empty()) hints.quantized_layers.emplace(module, algorithm);
  }
}

// compressed-tensors states the format in each group when they differ, beside "mixed-precision" or nothing for the whole.
void read_groups(const json& object, QuantHints& hints) {
  const auto found = object.find("config_groups");
  if (found == object.end() || !found->is_object() || (!hints.format.empty() && hints.format != "mixed-precision")) return;
  std::string format;
  for (const auto& [name, group] : found->items()) {
    std::string stated;
    if (group.is_object()) read_word(group, "format", stated);
    if (!format.empty() && stated != format) return;  // several: none holds for all
    format = stated;
  }
  if (!format.empty()) hints.format = format;
}

std::string_view without_model(std::string_view name) { return name.starts_with("model.") ? name.substr(6) : name; }

// Linear two-pointer match with one '*' to go back to.
bool wildcard_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// "re:model.layers.(3|4).*" as compressed-tensors writes it: of regular expressions what their exporters use, "." escaped, ".*", anchors.
// Anything else becomes a pattern that covers nothing: these are hints, and the tensors decide.
std::string wildcards_of(std::string_view pattern) {
  if (!pattern.starts_with("re:")) return std::string(pattern);
  pattern.remove_prefix(3);
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  if (pattern.ends_with('$')) pattern.remove_suffix(1);
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with(".*") || rest.starts_with(".+")) {
      out += '*';
      ++i;
    } else if (rest.starts_with("\\.")) {
      out += '.';
      ++i;
    } else if (std::string_view("()[]{}|?+*\\^$").find(c) != std::string_view::npos) {
      return "\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

void read_quant_hints(const json& object, std::string_view file, QuantHints& hints, ProblemList& problems) {
  if (!object.is_object()) {
    problems.add(
        fmt::format("{}: the quantisation settings are {}, wanted a JSON object; correct the file", printable(file), object.type_name()));
    return;
  }
  read_word(object, "quant_method", hints.quant_method);
  read_word(object, "quant_algo", hints.quant_algo);
  read_word(object, "moe_quant_algo", hints.moe_quant_algo);
  read_word(object, "expert_dtype", hints.expert_dtype);
  read_word(object, "scale_fmt", hints.scale_fmt);
  read_word(object, "format", hints.format);
  read_groups(object, hints);
  const auto group = object.find("group_size");
  if (!hints.group_size && group != object.end() && group->is_number_unsigned() && group->get<uint64_t>() <= 1'000'000) {
    hints.group_size = group->get<int64_t>();
  }
  read_block(object, file, hints, problems);
  read_ignored(object, hints);
  read_layers(object, hints);
}

bool matches_module(const std::vector<std::string>& patterns, std::string_view module) {
  // Seen as "layers.3.ffn.experts.", so that patterns for what is inside ("*.ffn.experts.*") cover the module too.
  const std::string name = std::string(without_model(module)).append(".");
  for (const std::string& written : patterns) {
    const std::string translated = wildcards_of(written);
    const std::string_view pattern = without_model(translated);
    // A pattern for a parent ("mtp", "layers.3.ffn") covers what is below it.
    if (wildcard_match(pattern, name) || wildcard_match(std::string(pattern).append(".*"), name)) return true;
  }
  return false;
}

std::string stated_algorithm(const QuantHints& hints, std::string_view module) {
  for (std::string_view name = without_model(module); !name.empty();) {
    for (const std::string& key : {std::string(name), "model." + std::string(name), std::string(name) + ".weight"}) {
      const auto found = hints.quantized_layers.find(key);
      if (found != hints.quantized_layers.end()) return found->second;
    }
    const size_t dot = name.rfind('.');
    name = dot == std::string_view::npos ? std::string_view{} : name.substr(0, dot);
  }
  return {};
}

}  // namespace monomoe
