// Shard names say how many shards there are, config.json how many layers; both are compared with what is here.
#include "weights/completeness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "weights/text.hpp"

namespace monomoe {
namespace {

// "model-00002-of-00004.safetensors"
struct ShardNumber {
  std::string_view prefix;
  int64_t number = 0, total = 0;
};

std::optional<int64_t> read_digits(std::string_view text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) value = value * 10 + (c - '0');
  return value;
}

std::optional<ShardNumber> shard_number(std::string_view name) {
  constexpr std::string_view kEnding = ".safetensors", kOf = "-of-";
  if (!name.ends_with(kEnding)) return std::nullopt;
  name.remove_suffix(kEnding.size());
  const size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of == 0) return std::nullopt;
  const size_t dash = name.rfind('-', of - 1);
  if (dash == std::string_view::npos) return std::nullopt;
  const auto number = read_digits(name.substr(dash + 1, of - dash - 1)), total = read_digits(name.substr(of + kOf.size()));
  if (!number || !total) return std::nullopt;
  return ShardNumber{name.substr(0, dash), *number, *total};
}

// With an index every tensor it places was found, so a number that is absent from its set holds nothing that counts.
void check_shards(const TensorSet& tensors, Completeness& out) {
  std::map<std::pair<std::string, int64_t>, std::set<int64_t>> sets;
  for (const auto& file : tensors.files()) {
    const std::string& path = file->path();
    const std::string name = path.substr(path.rfind('/') + 1);
    if (const auto shard = shard_number(name)) sets[{std::string(shard->prefix), shard->total}].insert(shard->number);
  }
  for (const auto& [set, numbers] : sets) {
    std::vector<int64_t> missing;
    for (int64_t n = 1; n <= set.second; ++n) {
      if (!numbers.contains(n)) missing.push_back(n);
    }
    if (missing.empty()) continue;
    const std::string what = fmt::format("{}: of the {} shards {}-...-of-{:05}.safetensors number {} is missing", printable(tensors.directory()),
                                         set.second, printable(set.first), set.second, ranges_text(missing));
    if (tensors.has_index()) {
      out.notes.push_back(what + "; the index needs nothing of it");
    } else {
      out.problems.push_back(what + fmt::format("; fetch it, or add {} if its tensors are not wanted", kIndexFileName));
    }
  }
}

void check_layers(const Checkpoint& checkpoint, Completeness& out) {
  const ModelConfig& config = checkpoint.config();
  const std::string file = printable(config.file);
  std::set<int64_t> present;
  for (const LayerSummary& summary : checkpoint.layers()) {
    if (!summary.layer.mtp) present.insert(summary.layer.index);
  }
  const int64_t dense = config.first_dense_layers.value_or(0);
  std::vector<int64_t> early;
  std::copy_if(present.begin(), present.end(), std::back_inserter(early), [&](int64_t layer) { return layer < dense; });
  if (!early.empty()) {
    out.notes.push_back(fmt::format("{} states first_k_dense_replace {}, but layers {} have experts; the tensors decide", file, dense,
                                    ranges_text(early)));
  }
  if (!config.layers) return;
  std::vector<int64_t> absent, beyond;
  constexpr int64_t kMostLayers = 100'000;  // more cannot be named
  for (int64_t layer = dense; layer < std::min(*config.layers, kMostLayers); ++layer) {
    if (!present.contains(layer)) absent.push_back(layer);
  }
  // A block for the prediction of further tokens may be numbered like one more layer.
  const int64_t end = *config.layers + config.nextn_layers.value_or(0);
  std::copy_if(present.begin(), present.end(), std::back_inserter(beyond), [&](int64_t layer) { return layer >= end; });
  if (!absent.empty()) {
    out.notes.push_back(fmt::format("{} states num_hidden_layers {}{}; the experts of layers {} are not here", file, *config.layers,
                                    dense > 0 ? fmt::format(" and first_k_dense_replace {}", dense) : "", ranges_text(absent)));
  }
  if (!beyond.empty()) {
    out.notes.push_back(fmt::format("{} states num_hidden_layers {}, but layers {} are here too; config.json and tensors may not be of the "
                                    "same checkpoint",
                                    file, *config.layers, ranges_text(beyond)));
  }
}

}  // namespace

Completeness check_completeness(const Checkpoint& checkpoint) {
  Completeness out;
  check_shards(checkpoint.tensors(), out);
  for (const std::string& sentence : checkpoint.layers_without_experts()) out.problems.push_back(sentence);
  check_layers(checkpoint, out);
  const std::string& method = checkpoint.config().topk_method;
  if (method != "" && method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
    out.notes.push_back(fmt::format("{} states the topk_method \"{}\", which is not known (greedy, group_limited_greedy, noaux_tc); it is "
                                    "taken as noaux_tc",
                                    printable(checkpoint.config().file), printable(method)));
  }
  return out;
}

}  // namespace monomoe
