// monomoe_checkpoint_verify: every problem of the files, names, shapes and values as a list; unused tensors as notes.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "layer/layer_rules.hpp"
#include "weights/completeness.hpp"
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

// "x.safetensors" in `tensor "..." (x.safetensors)`, or in `DIR/x.safetensors: ...`.
std::string file_of(std::string_view sentence, std::string_view directory) {
  if (const size_t at = sentence.find("tensor \""); at != std::string_view::npos) {
    const size_t quote = sentence.find('"', at + 8);
    if (quote != std::string_view::npos && sentence.substr(quote).starts_with("\" (")) {
      const size_t end = sentence.find(')', quote);
      if (end != std::string_view::npos) return std::string(sentence.substr(quote + 3, end - quote - 3));
    }
  }
  if (!sentence.starts_with(directory) || !sentence.substr(directory.size()).starts_with('/')) return {};
  sentence.remove_prefix(directory.size() + 1);
  const size_t end = sentence.find(": ");
  return end == std::string_view::npos || sentence.starts_with(',') ? std::string() : std::string(sentence.substr(0, end));
}

// The tensor a sentence is about; of an expert that is missing as a whole the first of its tensors.
std::string tensor_of(std::string_view sentence) {
  for (const std::string_view before : {"missing: \"", "tensor \""}) {
    if (std::string name = quoted_after(sentence, before); !name.empty()) return name;
  }
  constexpr std::string_view kWhole = " as a whole (";
  const size_t at = sentence.find(kWhole);
  if (at == std::string_view::npos) return {};
  const std::string_view names = sentence.substr(at + kWhole.size());
  return std::string(names.substr(0, names.find(',')));
}

class Report {
 public:
  Report(const std::string& directory, bool read_values) : directory_(printable(directory)), read_values_(read_values) {
    while (directory_.size() > 1 && directory_.ends_with('/')) directory_.pop_back();
  }

  // What config.json gets wrong is found again by each layer and told once.
  void add_problem(std::string_view where, std::string_view sentence) {
    if (!told_.emplace(sentence).second) return;
    problems_.push_back({{"file", file_of(sentence, directory_)}, {"tensor", tensor_of(sentence)}, {"where", where}, {"what", sentence}});
  }
  void add_problems(std::string_view where, std::string_view message);
  void add_note(std::string note) { notes_.push_back(std::move(note)); }
  void add_layer(const std::string& label) { layers_.push_back(label); }
  bool has_layers() const { return !layers_.empty(); }
  std::string text() const {
    const Json report = {
        {"ok", problems_.empty()}, {"values_read", read_values_}, {"layers", layers_}, {"problems", problems_}, {"notes", notes_}};
    return report.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  std::string directory_;
  bool read_values_;
  std::set<std::string> told_;
  Json problems_ = Json::array(), notes_ = Json::array(), layers_ = Json::array();
};

// Messages that list several problems hold one in each line, indented; the line before them is a headline.
void Report::add_problems(std::string_view where, std::string_view message) {
  size_t begin = message.find("\n  ");
  if (begin == std::string_view::npos) return add_problem(where, message);
  const std::string_view headline = message.substr(0, begin);
  if (!headline.ends_with(':')) add_problem(where, headline);
  while (begin != std::string_view::npos) {
    begin += 3;
    const size_t end = message.find("\n  ", begin);
    add_problem(where, message.substr(begin, end == std::string_view::npos ? end : end - begin));
    begin = end;
  }
}

void verify_layer(const Checkpoint& checkpoint, LayerId id, bool read_values, Report& report) {
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string where = "layer " + id.label();
  auto loaded = checkpoint.load_layer(
      id, {.scan_values = read_values, .read_values = read_values, .threads = threads, .max_problems = kMaxListed, .release_pages = true});
  if (!loaded) {
    report.add_problems(where, loaded.error().message);
    // The rules and the router's numbers can be told beside bad values.
    loaded = checkpoint.load_layer(id, {.scan_values = false, .read_values = read_values, .threads = 1});
    if (!loaded) return;
  }
  const LayerWeights& layer = loaded.value();
  for (const std::string& note : layer.notes) report.add_note(where + ": " + note);
  for (const std::string& sentence : broken_rules(layer)) report.add_problem(where, sentence);
  if (const std::string refusal = shared_expert_refusal(layer); !refusal.empty())
    report.add_note(fmt::format("{}: the shared expert cannot be added: {}", where, refusal));
  if (!layer.router) return report.add_note(where + ": no router; topk_ids and topk_weights must be given");
  if (const auto config = checkpoint.router_config(layer); !config) report.add_problems("router", config.error().message);
}

void verify_layers(const Checkpoint& checkpoint, int32_t only_layer, bool read_values, Report& report) {
  std::string unjudged;
  for (const LayerSummary& summary : checkpoint.layers()) {
    if (only_layer >= 0 && (summary.layer.mtp || summary.layer.index != only_layer)) continue;
    report.add_layer(summary.layer.label());
    if (checkpoint.can_judge(summary.layer)) {
      verify_layer(checkpoint, summary.layer, read_values, report);
      checkpoint.tensors().release_pages();
    } else {
      unjudged += (unjudged.empty() ? "" : ", ") + summary.layer.label();
    }
  }
  if (!unjudged.empty())
    report.add_note(fmt::format("layers {} were not looked into: what the problems of files and settings say must be right first", unjudged));
}

void verify_whole(const Checkpoint& checkpoint, Report& report) {
  const Completeness found = check_completeness(checkpoint);
  for (const std::string& sentence : found.problems) report.add_problem("files", sentence);
  for (const std::string& note : found.notes) report.add_note(note);
}

std::string verify(const std::string& directory, int32_t only_layer, bool read_values) {
  Report report(directory, read_values);
  auto opened = Checkpoint::open(directory, {.max_problems = kMaxListed, .keep_going = true});
  if (!opened) {
    report.add_problems("files", opened.error().message);
    return report.text();
  }
  const Checkpoint& checkpoint = opened.value();
  for (const std::string& sentence : checkpoint.problems().sentences()) report.add_problem("files", sentence);
  const int64_t more = checkpoint.problems().count() - static_cast<int64_t>(checkpoint.problems().sentences().size());
  if (more > 0) report.add_problem("files", fmt::format("{}: and {} more problems of its files", printable(directory), more));
  const bool files_sound = checkpoint.problems().empty();
  verify_layers(checkpoint, only_layer, read_values, report);
  if (!files_sound && !report.has_layers())
    report.add_note("no layer was looked into, nor what the settings say of layers: what the problems of files say must be right first");
  if (files_sound && !report.has_layers()) {
    report.add_problem("files", only_layer < 0
                                    ? fmt::format("{}: no MoE layer; wanted tensors like layers.0.ffn.experts.0.w1.weight", printable(directory))
                                    : fmt::format("{}: layer {} is no MoE layer of this checkpoint", printable(directory), only_layer));
  }
  if (files_sound && only_layer < 0) verify_whole(checkpoint, report);
  if (const auto same = checkpoint.tensors().check_unchanged(); !same) report.add_problems("files", same.error().message);
  for (const UnusedTensor& unused : checkpoint.unused()) {
    report.add_note(fmt::format("unused: {}{}{}: {}", printable(unused.file), unused.tensor.empty() ? "" : ", ", printable(unused.tensor),
                                unused.reason));
  }
  return report.text();
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_checkpoint_verify(const char* directory, int32_t layer, int32_t read_values, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    if (layer < -1) return usage_error(fmt::format("layer is {}, wanted a layer or -1 for all", layer));
    if (auto legal = require_flag(read_values, "read_values"); !legal) return legal;
    *json = caller_text(verify(directory, layer, read_values != 0));
    return {};
  });
}
