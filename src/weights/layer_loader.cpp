// From named tensors to a layer: every matrix decided, all shapes compared, every problem listed before the layer is refused.
#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "weights/layer_tensors.hpp"
#include "weights/scan.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

constexpr MatrixRole kRoles[kMatrixRoles] = {MatrixRole::kGate, MatrixRole::kUp, MatrixRole::kDown};

SourceMatrix& matrix_of(SourceExpert& expert, MatrixRole role) {
  return role == MatrixRole::kGate ? expert.gate : role == MatrixRole::kUp ? expert.up : expert.down;
}
MatrixSource& source_of(ExpertSource& expert, MatrixRole role) {
  return role == MatrixRole::kGate ? expert.gate : role == MatrixRole::kUp ? expert.up : expert.down;
}

MatrixSource sources(const MatrixTensors& tensors) {
  MatrixSource out;
  out.weight = tensors[TensorPart::kWeight];
  for (const TensorPart part : {TensorPart::kScale, TensorPart::kWeightScale, TensorPart::kWeightScaleInv}) {
    if (tensors[part].entry != nullptr) out.scale = tensors[part];
  }
  out.global_scale = tensors[TensorPart::kWeightScale2];
  return out;
}

std::string tensor_word(const LocatedTensor& tensor) {
  const std::string& path = tensor.file->path();
  return fmt::format("tensor \"{}\" ({})", printable(tensor.entry->name), printable(path.substr(path.rfind('/') + 1)));
}

// For a sentence about an expert as a whole.
LocatedTensor any_tensor(const ExpertTensors& expert) {
  for (const MatrixTensors& matrix : expert) {
    for (const LocatedTensor& part : matrix.parts) {
      if (part.entry != nullptr) return part;
    }
  }
  return {};
}

// The sizes all experts of a layer must have, and who says so.
struct Geometry {
  int64_t hidden = 0, intermediate = 0;
  std::string hidden_from, intermediate_from;
};

class LayerLoader {
 public:
  LayerLoader(const LayerTensors& tensors, LayerId layer, const ModelConfig& config, const LoadOptions& options)
      : tensors_(tensors), layer_(layer), config_(config), options_(options), problems_(options.max_problems) {}

  Result<LayerWeights> load(std::shared_ptr<const TensorSet> files);

 private:
  void refuse_unsupported();
  bool decide_expert(const ExpertTensors& tensors, const std::string& module, const FormatHints& hints, SourceExpert& expert,
                     ExpertSource& source);
  void decide_experts();
  void check_one_format();
  void settle_geometry();
  void check_shape(const SourceMatrix& matrix, const MatrixSource& source, MatrixRole role, const Geometry& wanted);
  void load_shared();
  void load_router();
  void note_multipliers();
  void scan();
  void scan_router();
  void scan_table(const RouterTensors& router);
  void note_shared_count();

  const LayerTensors& tensors_;
  LayerId layer_;
  const ModelConfig& config_;
  const LoadOptions& options_;
  LayerWeights out_;
  int64_t expert_count_ = 0;  // as it should be; out_.experts holds those without a problem
  bool router_readable_ = false;
  Geometry geometry_;
  ProblemList problems_;
};

void LayerLoader::refuse_unsupported() {
  for (const std::string& sentence : tensors_.conflicts) problems_.add(sentence);
  for (const std::string& sentence : tensors_.refused) problems_.add(sentence);
  for (const LocatedTensor& fused : tensors_.fused) {
    problems_.add(
        fmt::format("{}: found a fused tensor {} {}; nothing states the order of gate and up (or of the experts) inside it; wanted "
                    "one tensor for each expert and matrix: split the tensor",
                    tensor_word(fused), dtype_name(fused.entry->dtype), shape_text(fused.entry->shape)));
  }
}

bool LayerLoader::decide_expert(const ExpertTensors& tensors, const std::string& module, const FormatHints& hints, SourceExpert& expert,
                                ExpertSource& source) {
  bool complete = true;
  for (const MatrixRole role : kRoles) {
    const MatrixTensors& parts = tensors[static_cast<size_t>(role)];
    Result<SourceMatrix> decided = decide_matrix(parts, tensors_.matrix_name(module, role), hints);
    if (decided) {
      matrix_of(expert, role) = decided.value();
      source_of(source, role) = sources(parts);
    } else {
      problems_.add(decided.error().message);
      complete = false;
    }
  }
  return complete;
}

void LayerLoader::decide_experts() {
  const FormatHints hints = format_hints(config_, tensors_.prefix + "experts");
  const int64_t last = tensors_.experts.empty() ? -1 : tensors_.experts.rbegin()->first;
  const int64_t count = config_.experts.value_or(last + 1);
  if (last >= count) {
    problems_.add(fmt::format(
        "{}: found expert {}, wanted experts 0 to {} as {} states; config.json and tensors are not of the same checkpoint",
        tensor_word(any_tensor(tensors_.experts.rbegin()->second)), last, count - 1, printable(config_.file)));
    return;
  }
  constexpr int64_t kMostExperts = 100'000;  // more cannot be named; keeps a wrong number in config.json from costing minutes
  if (count > kMostExperts) {
    problems_.add(fmt::format("{} states {} experts, wanted at most {}: correct the file", printable(config_.file), count, kMostExperts));
    return;
  }
  expert_count_ = count;
  int64_t absent = 0;
  for (int64_t e = 0; e < count; ++e) {
    const std::string module = fmt::format("experts.{}", e);
    const auto found = tensors_.experts.find(static_cast<int>(e));
    if (found == tensors_.experts.end()) {
      if (static_cast<size_t>(++absent) <= options_.max_problems)
        problems_.add(fmt::format("missing: expert {} as a whole ({}, {}, {}); fetch the shard that holds it", e,
                                  printable(tensors_.matrix_name(module, MatrixRole::kGate)),
                                  printable(tensors_.matrix_name(module, MatrixRole::kUp)),
                                  printable(tensors_.matrix_name(module, MatrixRole::kDown))));
      continue;
    }
    SourceExpert expert;
    ExpertSource source;
    if (!decide_expert(found->second, module, hints, expert, source)) continue;
    out_.experts.push_back(expert);
    out_.expert_sources.push_back(source);
  }
  if (static_cast<size_t>(absent) > options_.max_problems) problems_.add_uncounted(absent - static_cast<int64_t>(options_.max_problems));
  if (out_.experts.empty()) return;
  out_.format = out_.experts[0].gate.format;
  if (std::string note = contradicts_config(out_.format, hints); !note.empty()) out_.notes.push_back(std::move(note));
}

void LayerLoader::check_one_format() {
  for (size_t e = 0; e < out_.experts.size(); ++e) {
    for (const MatrixRole role : kRoles) {
      const SourceMatrix& matrix = matrix_of(out_.experts[e], role);
      if (matrix.format == out_.format) continue;
      problems_.add(fmt::format("{} is {}, {} is {}; wanted one format for all experts of a layer: convert the checkpoint",
                                tensor_word(source_of(out_.expert_sources[e], role).weight), format_name(matrix.format),
                                tensor_word(out_.expert_sources[0].gate.weight), format_name(out_.format)));
    }
  }
}

// config.json decides the sizes where it states them, else the first expert's gate.
void LayerLoader::settle_geometry() {
  const SourceMatrix& first = out_.experts[0].gate;
  const std::string from_tensor = tensor_word(out_.expert_sources[0].gate.weight);
  geometry_.hidden = config_.hidden.value_or(first.cols);
  geometry_.hidden_from = config_.hidden ? "hidden_size of config.json" : from_tensor;
  geometry_.intermediate = config_.intermediate.value_or(first.rows);
  geometry_.intermediate_from = config_.intermediate ? "the expert width of config.json" : from_tensor;
  out_.hidden = geometry_.hidden;
  out_.intermediate = geometry_.intermediate;
}

void LayerLoader::check_shape(const SourceMatrix& matrix, const MatrixSource& source, MatrixRole role, const Geometry& wanted) {
  const bool down = role == MatrixRole::kDown;
  const int64_t rows = down ? wanted.hidden : wanted.intermediate, cols = down ? wanted.intermediate : wanted.hidden;
  if (matrix.rows == rows && matrix.cols == cols) return;
  constexpr const char* kWords[] = {"gate", "up", "down"};
  problems_.add(fmt::format(
      "{}: found {} {} = {} x {}{}, wanted {} x {} for the {} matrix (hidden {} from {}, intermediate {} from {}): export the tensor "
      "again or correct config.json",
      tensor_word(source.weight), dtype_name(source.weight.entry->dtype), shape_text(source.weight.entry->shape), matrix.rows, matrix.cols,
      matrix.rows == cols && matrix.cols == rows ? " (transposed)" : "", rows, cols, kWords[static_cast<size_t>(role)], wanted.hidden,
      wanted.hidden_from, wanted.intermediate, wanted.intermediate_from));
}

void LayerLoader::load_shared() {
  if (!tensors_.shared) return;
  if (tensors_.unsupported_shared) {
    out_.notes.push_back("the shared expert has tensors of unknown meaning (a gate of its own, a bias); it cannot be added");
    return;
  }
  SourceExpert shared;
  if (!decide_expert(*tensors_.shared, tensors_.shared_module, format_hints(config_, tensors_.prefix + tensors_.shared_module), shared,
                     out_.shared_source))
    return;
  Geometry wanted = geometry_;
  wanted.intermediate = shared.gate.rows;  // several shared experts are stored as one wide one
  wanted.intermediate_from = tensor_word(out_.shared_source.gate.weight);
  for (const MatrixRole role : kRoles) {
    check_shape(matrix_of(shared, role), source_of(out_.shared_source, role), role, wanted);
    if (matrix_of(shared, role).format != shared.gate.format) {
      problems_.add(fmt::format("{} is {}, {} is {}; wanted one format for a shared expert: convert the checkpoint",
                                tensor_word(source_of(out_.shared_source, role).weight), format_name(matrix_of(shared, role).format),
                                tensor_word(out_.shared_source.gate.weight), format_name(shared.gate.format)));
    }
  }
  out_.shared_format = shared.gate.format;
  out_.shared = shared;
}

void LayerLoader::load_router() {
  const int64_t experts = expert_count_, problems_before = problems_.count();
  auto wrong = [&](const LocatedTensor& tensor, std::string_view wanted) {
    problems_.add(fmt::format("{}: found {} {}, wanted {}: export the tensor again", tensor_word(tensor), dtype_name(tensor.entry->dtype),
                              shape_text(tensor.entry->shape), wanted));
  };
  const LocatedTensor &weight = tensors_.router_weight, &bias = tensors_.router_bias, &table = tensors_.hash_table;
  if (weight.entry == nullptr) {
    for (const LocatedTensor& orphan : {bias, table}) {
      if (orphan.entry != nullptr)
        problems_.add(fmt::format("missing: \"{}gate.weight\" (beside {}); fetch the shard that holds it", printable(tensors_.prefix),
                                  tensor_word(orphan)));
    }
    return;
  }
  RouterTensors router;
  router.experts = experts;
  router.hidden = geometry_.hidden;
  auto is_float = [](DType dtype) { return dtype == DType::BF16 || dtype == DType::F32; };
  if (!is_float(weight.entry->dtype) || weight.entry->shape != std::vector<int64_t>{experts, geometry_.hidden}) {
    wrong(weight, fmt::format("BF16 or F32 [{}, {}] (experts, hidden)", experts, geometry_.hidden));
  }
  router.weight_type = weight.entry->dtype;
  router.weight = weight.entry->data;
  if (bias.entry != nullptr) {
    if (!is_float(bias.entry->dtype) || bias.entry->shape != std::vector<int64_t>{experts})
      wrong(bias, fmt::format("F32 or BF16 [{}] (experts)", experts));
    router.bias_type = bias.entry->dtype;
    router.bias = bias.entry->data;
  }
  if (table.entry != nullptr) {
    const std::vector<int64_t>& shape = table.entry->shape;
    const bool whole = table.entry->dtype == DType::I64 || table.entry->dtype == DType::I32;
    if (!whole || shape.size() != 2 || shape[0] == 0 || shape[1] == 0 || (config_.topk && shape[1] != *config_.topk)) {
      wrong(table, fmt::format("I64 or I32 [vocabulary, {}]", config_.topk ? fmt::to_string(*config_.topk) : "top-k"));
    } else {
      router.vocabulary = shape[0];
      router.table_topk = shape[1];
    }
    if (layer_.mtp || (config_.hash_layers && layer_.index >= *config_.hash_layers)) {
      problems_.add(fmt::format(
          "{}: found a hash table in layer {}, wanted none outside the first {} layers that config.json states (num_hash_layers): "
          "config.json and tensors are not of the same checkpoint",
          tensor_word(table), layer_.label(), config_.hash_layers.value_or(0)));
    }
    router.table_type = table.entry->dtype;
    router.table = table.entry->data;
  }
  out_.router = router;
  router_readable_ = problems_.count() == problems_before;
}

// A multiplier of 1 or more is legal, but it usually is the reciprocal that another tool stores under another name.
void LayerLoader::note_multipliers() {
  int64_t large = 0;
  const LocatedTensor* first = nullptr;
  for (size_t e = 0; e < out_.experts.size(); ++e) {
    for (const MatrixRole role : kRoles) {
      const SourceMatrix& matrix = matrix_of(out_.experts[e], role);
      if (matrix.format != WeightFormat::kNvfp4 || !(matrix.global_scale >= 1.0f)) continue;
      if (large++ == 0) first = &source_of(out_.expert_sources[e], role).global_scale;
    }
  }
  if (large > 0) {
    out_.notes.push_back(
        fmt::format("{} and {} more: a weight_scale_2 of 1 or more is unusual; if it is a reciprocal (weight_global_scale under "
                    "another name) the weights come out wrong by its square",
                    tensor_word(*first), large - 1));
  }
}

// config.json counts shared experts; the tensors hold them as one expert of their widths together.
void LayerLoader::note_shared_count() {
  if (!config_.shared_experts || layer_.mtp) return;
  const int64_t stated = *config_.shared_experts;
  if (stated > 0 && !tensors_.shared) {
    out_.notes.push_back(fmt::format("{} states {} shared expert(s), this layer has none", printable(config_.file), stated));
  } else if (stated == 0 && tensors_.shared) {
    out_.notes.push_back(fmt::format("{} states no shared expert, this layer has one; the tensors decide", printable(config_.file)));
  } else if (out_.shared && out_.shared->gate.rows != stated * geometry_.intermediate) {
    out_.notes.push_back(fmt::format("{} states {} shared expert(s) of {} channels, the tensors hold {} channels; the tensors decide",
                                     printable(config_.file), stated, geometry_.intermediate, out_.shared->gate.rows));
  }
}

void LayerLoader::scan() {
  struct Item {
    const SourceMatrix* matrix;
    const MatrixSource* source;
    ScanResult result;
  };
  std::vector<Item> items;
  auto add = [&items](SourceExpert& expert, ExpertSource& source) {
    for (const MatrixRole role : kRoles) items.push_back({&matrix_of(expert, role), &source_of(source, role), {}});
  };
  for (size_t e = 0; e < out_.experts.size(); ++e) {
    const std::vector<bool>* scanned = options_.scanned_experts;
    if (scanned == nullptr || (e < scanned->size() && (*scanned)[e])) add(out_.experts[e], out_.expert_sources[e]);
  }
  if (out_.shared) add(*out_.shared, out_.shared_source);
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < items.size(); i = next++) items[i].result = scan_matrix(*items[i].matrix);
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < options_.threads; ++t) helpers.emplace_back(work);
    work();
  }
  for (const Item& item : items) {
    for (const ScanFinding& finding : item.result.findings) {
      const LocatedTensor& tensor = finding.where == ScanFinding::Where::kCode    ? item.source->weight
                                    : finding.where == ScanFinding::Where::kScale ? item.source->scale
                                                                                  : item.source->global_scale;
      problems_.add(fmt::format("{}: found {} at row {}, column {}; {}", tensor_word(tensor), finding.what, finding.row, finding.column,
                                scan_remedy(finding.kind)));
    }
    problems_.add_uncounted(item.result.count - static_cast<int64_t>(item.result.findings.size()));
  }
}

void LayerLoader::scan_router() {
  if (!router_readable_) return;
  auto check = [&](const LocatedTensor& tensor, DType dtype, int64_t rows, int64_t columns) {
    const ScanResult result = scan_values(tensor.entry->data, dtype == DType::BF16, rows, columns);
    for (const ScanFinding& finding : result.findings) {
      problems_.add(fmt::format("{}: found {} at row {}, column {}; {}", tensor_word(tensor), finding.what, finding.row, finding.column,
                                finding.kind == ScanFinding::Kind::kNaN
                                    ? "it would turn outputs into NaN: export the tensor again"
                                    : "a router's values must be finite: export the tensor again"));
    }
    problems_.add_uncounted(result.count - static_cast<int64_t>(result.findings.size()));
  };
  check(tensors_.router_weight, out_.router->weight_type, out_.router->experts, out_.router->hidden);
  if (out_.router->bias != nullptr) check(tensors_.router_bias, out_.router->bias_type, 1, out_.router->experts);
  if (out_.router->table != nullptr) scan_table(*out_.router);
}

// Each of a hash layer's entries is an expert.
void LayerLoader::scan_table(const RouterTensors& router) {
  int64_t bad = 0;
  for (int64_t i = 0; i < router.vocabulary * router.table_topk; ++i) {
    const int64_t expert = hash_table_entry(router, i);
    if ((expert >= 0 && expert < router.experts) || ++bad > kMaxFindings) continue;
    problems_.add(fmt::format("{}: found expert {} at row {}, column {}, wanted 0 to {}: export the tensor again",
                              tensor_word(tensors_.hash_table), expert, i / router.table_topk, i % router.table_topk, router.experts - 1));
  }
  if (bad > kMaxFindings) problems_.add_uncounted(bad - kMaxFindings);
}

Result<LayerWeights> LayerLoader::load(std::shared_ptr<const TensorSet> files) {
  out_.layer = layer_;
  refuse_unsupported();
  if (problems_.empty()) decide_experts();
  if (!out_.experts.empty()) {  // even after a problem: a reader who must fix a checkpoint wants to hear of all of them
    check_one_format();
    settle_geometry();
    for (size_t e = 0; e < out_.experts.size(); ++e) {
      for (const MatrixRole role : kRoles)
        check_shape(matrix_of(out_.experts[e], role), source_of(out_.expert_sources[e], role), role, geometry_);
    }
    load_shared();
    load_router();
    note_multipliers();
    note_shared_count();
    if (options_.scan_values) {
      scan();
      scan_router();
    }
  }
  if (!problems_.empty()) {
    return bad_input(fmt::format("{}, layer {}: {} problem{}:\n  {}", printable(files->directory()), layer_.label(), problems_.count(),
                                 problems_.count() == 1 ? "" : "s", problems_.text()));
  }
  out_.files = std::move(files);
  return std::move(out_);
}

}  // namespace

Result<LayerWeights> load_layer_weights(const LayerTensors& tensors, LayerId layer, const ModelConfig& config,
                                        std::shared_ptr<const TensorSet> files, const LoadOptions& options) {
  return LayerLoader(tensors, layer, config, options).load(std::move(files));
}

}  // namespace monomoe
