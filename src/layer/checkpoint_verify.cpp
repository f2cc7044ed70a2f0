// monomoe_checkpoint_verify: every problem of the files, names, shapes and values as a list; unused tensors as notes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

// Enough for every matrix of a large layer to be listed; a report beyond it would not be read.
constexpr size_t kMaxListed = 10000;

// The quoted word behind `before` in a sentence, e.g. tensor "x": x; empty if there is none.
std::string quoted_after(std::string_view sentence, std::string_view before) {
  const size_t at = sentence.find(before);
  if (at == std::string_view::npos) return {};
  const size_t begin = at + before.size();
  const size_t end = sentence.find('"', begin);
  return end == std::string_view::npos ? std::string() : std::string(sentence.substr(begin, end - begin));
}

// "x.safetensors" in `tensor "..." (x.safetensors): ...`.
std::string file_behind_tensor(std::string_view sentence) {
  const size_t at = sentence.find("\" (");
  if (at == std::string_view::npos) return {};
  const size_t end = sentence.find(')', at);
  return end == std::string_view::npos ? std::string() : std::string(sentence.substr(at + 3, end - at - 3));
}

Json problem(std::string_view where, std::string_view sentence) {
  std::string tensor = quoted_after(sentence, "tensor \"");
  if (tensor.empty()) tensor = quoted_after(sentence, "missing: \"");
  return {{"file", file_behind_tensor(sentence)}, {"tensor", tensor}, {"where", where}, {"what", sentence}};
}

// Messages that list several problems hold one in each line, indented; the line before them is a headline.
void add_problems(std::string_view where, std::string_view message, Json& problems) {
  size_t begin = message.find("\n  ");
  if (begin == std::string_view::npos) {
    problems.push_back(problem(where, message));
    return;
  }
  const std::string_view headline = message.substr(0, begin);
  if (!headline.ends_with(':')) problems.push_back(problem(where, headline));
  while (begin != std::string_view::npos) {
    begin += 3;
    const size_t end = message.find("\n  ", begin);
    problems.push_back(problem(where, message.substr(begin, end == std::string_view::npos ? end : end - begin)));
    begin = end;
  }
}

void verify_layer(const Checkpoint& checkpoint, LayerId id, Json& problems, Json& notes) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string where = "layer " + id.label();
  auto loaded = checkpoint.load_layer(id, {.scan_values = true, .threads = threads, .max_problems = kMaxListed});
  if (!loaded) return add_problems(where, loaded.error().message, problems);
  for (const std::string& note : loaded.value().notes) notes.push_back(where + ": " + note);
  if (loaded.value().format == WeightFormat::kBf16)
    notes.push_back(where + ": experts are bf16 and must be quantised before the layer runs");
  if (!loaded.value().router) notes.push_back(where + ": no router; topk_ids and topk_weights must be given");
  if (!loaded.value().router) return;
  if (const auto config = checkpoint.router_config(loaded.value()); !config) problems.push_back(problem(where, config.error().message));
}

std::string report_text(const Json& problems, const Json& notes, const Json& layers) {
  Json report = {{"ok", problems.empty()}, {"layers", layers}, {"problems", problems}, {"notes", notes}};
  return report.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string verify(const std::string& directory, int32_t only_layer) {
  Json problems = Json::array(), notes = Json::array(), layers = Json::array();
  auto opened = Checkpoint::open(directory);
  if (!opened) {
    add_problems("files", opened.error().message, problems);
    return report_text(problems, notes, layers);
  }
  const Checkpoint& checkpoint = opened.value();
  for (const LayerSummary& summary : checkpoint.layers()) {
    if (only_layer >= 0 && (summary.layer.mtp || summary.layer.index != only_layer)) continue;
    layers.push_back(summary.layer.label());
    verify_layer(checkpoint, summary.layer, problems, notes);
  }
  if (layers.empty()) {
    problems.push_back(problem(
        "files", only_layer < 0 ? fmt::format("{}: no MoE layer", printable(directory))
                                : fmt::format("{}: layer {} is no MoE layer of this checkpoint", printable(directory), only_layer)));
  }
  for (const UnusedTensor& unused : checkpoint.unused()) {
    notes.push_back(fmt::format("unused: {}{}{}: {}", printable(unused.file), unused.tensor.empty() ? "" : ", ", printable(unused.tensor),
                                unused.reason));
  }
  return report_text(problems, notes, layers);
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_checkpoint_verify(const char* directory, int32_t layer, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    if (layer < -1) return usage_error(fmt::format("layer is {}, wanted a layer or -1 for all", layer));
    *json = caller_text(verify(directory, layer));
    return {};
  });
}
