// monomoe_checkpoint_inspect: layers, formats, geometry, router, and what the conversion of each matrix costs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "layer/layer_rules.hpp"
#include "layer/parallel.hpp"
#include "plan/problem_text.hpp"
#include "weights/conversion_cost.hpp"
#include "weights/mapped_file.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kReplaceBadText = Json::error_handler_t::replace;

Json bad_values(const ScanResult& scan) {
  Json list = Json::array();
  for (const ScanFinding& finding : scan.findings) {
    constexpr const char* kWhere[] = {"code", "scale", "global_scale"};
    list.push_back(
        {{"what", finding.what}, {"where", kWhere[static_cast<int>(finding.where)]}, {"row", finding.row}, {"column", finding.column}});
  }
  return {{"count", scan.count}, {"first", list}};
}

Json matrix_report(const std::string& tensor, const SourceMatrix& matrix, bool read_values) {
  Json report = {
      {"tensor", printable(tensor)}, {"format", weight_format_text(matrix.format)}, {"rows", matrix.rows}, {"cols", matrix.cols}};
  if (!read_values) return report;
  const ConversionCost cost = conversion_cost(matrix);
  if (!cost.converts) {
    report["conversion"] = "none";
    return report;
  }
  report["conversion"] = cost.exact ? "exact" : "rounded";
  report["shift"] = cost.shift;
  report["weights"] = cost.weights;
  report["nonzero_weights"] = cost.nonzero_weights;
  report["rounded_weights"] = cost.rounded_weights;
  report["underflows"] = cost.underflows;
  report["worst_relative_error"] = cost.worst_relative_error;
  report["rms_relative_error"] = cost.rms_relative_error;
  report["groups"] = cost.groups;
  report["groups_outside_window"] = cost.groups_outside_window;
  Json scales = {
      {"nan", cost.nan_scales}, {"infinite", cost.infinite_scales}, {"zero", cost.zero_scales}, {"negative", cost.negative_scales}};
  if (cost.zero_scales > 0) scales["first_zero"] = {cost.first_zero_row, cost.first_zero_column};
  report["scales"] = scales;
  report["bad_values"] = bad_values(cost.bad_values);
  return report;
}

Json router_report(const Checkpoint& checkpoint, const LayerWeights& layer) {
  if (!layer.router) return nullptr;
  const RouterTensors& tensors = *layer.router;
  Json report = {{"weight_dtype", dtype_name(tensors.weight_type)}, {"bias", tensors.bias != nullptr}, {"hash", tensors.table != nullptr}};
  if (tensors.table != nullptr) report["vocabulary"] = tensors.vocabulary;
  const auto config = checkpoint.router_config(layer);
  if (!config) {
    report["usable"] = false;
    report["why_not"] = config.error().message;
    return report;
  }
  report["usable"] = true;
  report["scoring"] = scoring_name(config.value().scoring);
  report["topk"] = config.value().topk;
  report["norm_topk_prob"] = config.value().norm_topk_prob;
  report["routed_scaling_factor"] = config.value().routed_scaling_factor;
  report["groups"] = config.value().groups;
  report["topk_groups"] = config.value().topk_groups;
  return report;
}

Json shared_report(const LayerWeights& layer) {
  if (!layer.shared) return nullptr;
  Json report = {{"format", weight_format_text(layer.shared_format)}, {"intermediate", layer.shared->gate.rows}};
  const std::string refusal = shared_expert_refusal(layer);
  report["usable"] = refusal.empty();
  if (!refusal.empty()) report["why_not"] = refusal;
  return report;
}

struct NamedMatrix {
  LocatedTensor weight, scale;
  const SourceMatrix* matrix;
};

void add_matrices(const SourceExpert& expert, const ExpertSource& source, std::vector<NamedMatrix>& list) {
  list.push_back({source.gate.weight, source.gate.scale, &expert.gate});
  list.push_back({source.up.weight, source.up.scale, &expert.up});
  list.push_back({source.down.weight, source.down.scale, &expert.down});
}

// Of a packed layer none: it was converted when it was packed.
std::vector<NamedMatrix> matrices_of(const LayerWeights& layer) {
  std::vector<NamedMatrix> list;
  if (!layer.packed.empty()) return list;
  if (layer.shared && layer.packed_shared == nullptr) add_matrices(*layer.shared, layer.shared_source, list);
  for (size_t e = 0; e < layer.experts.size(); ++e) add_matrices(layer.experts[e], layer.expert_sources[e], list);
  return list;
}

Result<Json> matrices_report(const std::vector<NamedMatrix>& list, bool read_values) {
  std::vector<Json> reports(list.size());
  const int threads = read_values ? static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) : 1;
  const auto report_one = [&](int64_t i) -> Result<void> {
    reports[i] = matrix_report(list[i].weight.entry->name, *list[i].matrix, read_values);
    for (const LocatedTensor& read : {list[i].weight, list[i].scale}) {
      if (read_values && read.entry != nullptr) release_mapped(read.entry->data, static_cast<size_t>(read.entry->bytes));
    }
    return {};
  };
  if (auto done = parallel_for(static_cast<int64_t>(list.size()), threads, report_one); !done) return done.error();
  return Json(reports);
}

struct InspectOptions {
  int32_t only_layer;
  bool read_values;
};

Result<Json> layer_report(const Checkpoint& checkpoint, LayerId id, const InspectOptions& options) {
  Json report = {{"layer", id.label()}};
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const bool read_values = options.read_values;
  const auto scanned = checkpoint.load_layer(id, {.scan_values = read_values, .read_values = read_values, .threads = threads, .release_pages = true});
  // Bad values make the layer unusable, but its matrices can still be told.
  auto loaded = checkpoint.load_layer(id, {.scan_values = false, .read_values = read_values, .threads = 1});
  ProblemList reasons;
  if (!scanned) reasons.add(scanned.error().message);
  if (loaded) {
    if (const auto legal = check_rules(loaded.value()); !legal) reasons.add(legal.error().message);
  }
  report["usable"] = reasons.empty();
  if (!reasons.empty()) report["why_not"] = reasons.text();
  if (!loaded) return report;
  const LayerWeights& layer = loaded.value();
  report["format"] = weight_format_text(layer.format);
  report["hidden"] = layer.hidden;
  report["intermediate"] = layer.intermediate;
  report["experts"] = layer.experts.size();
  report["topk"] = checkpoint.config().topk ? Json(*checkpoint.config().topk) : Json(nullptr);
  report["swiglu_limit"] = checkpoint.config().swiglu_limit ? Json(*checkpoint.config().swiglu_limit) : Json(nullptr);
  report["router"] = router_report(checkpoint, layer);
  report["shared_expert"] = shared_report(layer);
  report["packed"] = !layer.packed.empty();
  report["notes"] = layer.notes;
  const std::vector<NamedMatrix> list = matrices_of(layer);
  report["num_matrices"] = list.size();
  if (!read_values && options.only_layer < 0) return report;
  auto matrices = matrices_report(list, read_values);
  if (!matrices) return matrices.error();
  report["matrices"] = matrices.take();
  return report;
}

Result<std::string> inspect(const std::string& directory, const InspectOptions& options) {
  auto opened = Checkpoint::open(directory);
  if (!opened) return opened.error();
  const Checkpoint& checkpoint = opened.value();
  Json report = {{"directory", directory},
                 {"has_index", checkpoint.tensors().has_index()},
                 {"files", checkpoint.tensors().files().size()},
                 {"tensors", checkpoint.tensors().tensors().size()},
                 {"model_type", checkpoint.config().model_type.value_or("")},
                 {"values_read", options.read_values}};
  Json layers = Json::array();
  for (const LayerSummary& summary : checkpoint.layers()) {
    if (options.only_layer >= 0 && (summary.layer.mtp || summary.layer.index != options.only_layer)) continue;
    auto layer = layer_report(checkpoint, summary.layer, options);
    if (!layer) return layer.error();
    layers.push_back(layer.take());
    checkpoint.tensors().release_pages();
  }
  if (layers.empty() && options.only_layer >= 0) {
    return usage_error(fmt::format("{}: layer {} is no MoE layer of this checkpoint", printable(directory), options.only_layer));
  }
  if (layers.empty()) {
    return bad_input(fmt::format("{}: no MoE layer; wanted tensors like layers.0.ffn.experts.0.w1.weight", printable(directory)));
  }
  report["layers"] = layers;
  return report.dump(-1, ' ', false, kReplaceBadText);
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_checkpoint_inspect(const char* directory, int32_t layer, int32_t read_values, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    if (layer < -1) return usage_error(fmt::format("layer is {}, wanted a layer or -1 for all", layer));
    if (auto legal = require_flag(read_values, "read_values"); !legal) return legal;
    auto report = inspect(directory, {layer, read_values != 0});
    if (!report) return report.error();
    *json = caller_text(report.value());
    return {};
  });
}
