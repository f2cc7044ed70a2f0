// From named tensors to a layer: every matrix decided, all shapes compared, every problem listed before the layer is refused.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "numerics/e8m0.h"
#include "weights/layer_loader.hpp"
#include "weights/mapped_file.hpp"
#include "weights/scan.hpp"

namespace monomoe {
namespace {

MatrixSource sources(const MatrixTensors& tensors) {
  MatrixSource out;
  out.weight = tensors[tensors[TensorPart::kWeight].entry != nullptr ? TensorPart::kWeight : TensorPart::kWeightPacked];
  for (const TensorPart part : {TensorPart::kScale, TensorPart::kWeightScale, TensorPart::kWeightScaleInv}) {
    if (tensors[part].entry != nullptr) out.scale = tensors[part];
  }
  out.global_scale = tensors[tensors[TensorPart::kWeightScale2].entry != nullptr ? TensorPart::kWeightScale2 : TensorPart::kWeightGlobalScale];
  return out;
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

}  // namespace

std::string tensor_word(const LocatedTensor& tensor) {
  const std::string& path = tensor.file->path();
  return fmt::format("tensor \"{}\" ({})", printable(tensor.entry->name), printable(path.substr(path.rfind('/') + 1)));
}

void LayerLoader::refuse_unsupported() {
  for (const std::string& sentence : tensors_.conflicts) problems_.add(sentence);
  for (const std::string& sentence : tensors_.refused) problems_.add(sentence);
  for (size_t i = 0; i < tensors_.fused.size(); ++i) {
    const LocatedTensor& fused = tensors_.fused[i];
    problems_.add(fmt::format("{}: found a fused tensor {} {}; {}; wanted one tensor for each expert and matrix: split the tensor", tensor_word(fused),
                              dtype_name(fused.entry->dtype), shape_text(fused.entry->shape), tensors_.fused_why[i]));
  }
}

FormatHints LayerLoader::hints_of(const std::string& module) const {
  FormatHints hints = format_hints(config_, tensors_.prefix + module);
  hints.read_values = options_.read_values;
  return hints;
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
      if (hints.read_values && matrix_of(expert, role).format == WeightFormat::kMxfp4 && matrix_of(expert, role).scale_type == ScaleType::kF32) {
        complete = rewrite_scales(matrix_of(expert, role), source_of(source, role).scale) && complete;
      }
    } else {
      problems_.add(decided.error().message);
      complete = false;
    }
  }
  return complete;
}

// F32 powers of two as the e8m0 codes they stand for.
bool LayerLoader::rewrite_scales(SourceMatrix& matrix, const LocatedTensor& scale) {
  auto codes = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(matrix.rows * matrix.cols / 32));
  for (size_t i = 0; i < codes->size(); ++i) {
    float value;
    std::memcpy(&value, matrix.scales + i * 4, sizeof(value));
    (*codes)[i] = e8m0_encode(value);
    if ((*codes)[i] != kE8m0NaN) continue;
    const auto columns = static_cast<size_t>(matrix.cols / 32);
    problems_.add(fmt::format("{}: found {} at row {}, column {}, wanted a power of two from 2^-127 to 2^127, for F32 scales of FP4 codes stand for "
                              "e8m0 ones: export the tensor again",
                              tensor_word(scale), value, i / columns, i % columns));
    return false;
  }
  matrix.scales = codes->data();
  matrix.scale_type = ScaleType::kE8m0;
  out_.owned.push_back(std::move(codes));
  return true;
}

void LayerLoader::decide_experts() {
  const FormatHints hints = hints_of("experts");
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
  if (!decide_expert(*tensors_.shared, tensors_.shared_module, hints_of(tensors_.shared_module), shared, out_.shared_source)) return;
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

// Each matrix has its own multiplier here; other engines fold gate and up into one and refuse such experts or round them.
void LayerLoader::note_unequal_globals() {
  int64_t unequal = 0;
  const MatrixSource* first = nullptr;
  for (size_t e = 0; e < out_.experts.size(); ++e) {
    const SourceExpert& expert = out_.experts[e];
    if (expert.gate.format != WeightFormat::kNvfp4 || expert.gate.global_scale == expert.up.global_scale) continue;
    if (unequal++ == 0) first = &out_.expert_sources[e].up;
  }
  if (unequal > 0 && first->global_scale.entry != nullptr) {
    out_.notes.push_back(fmt::format("gate and up of {} experts have different global scales (the first: {}); this layer takes each as it is, engines that "
                                     "use one for both do not",
                                     unequal, tensor_word(first->global_scale)));
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
    for (size_t i = next++; i < items.size(); i = next++) {
      items[i].result = scan_matrix(*items[i].matrix);
      if (!options_.release_pages) continue;
      for (const LocatedTensor& tensor : {items[i].source->weight, items[i].source->scale}) {
        if (tensor.entry != nullptr) release_mapped(tensor.entry->data, static_cast<size_t>(tensor.entry->bytes));
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < options_.threads; ++t) helpers.emplace_back(work);
    work();
  }
  int64_t zeroed = 0;
  const Item* first_zeroed = nullptr;
  for (const Item& item : items) {
    if (item.result.zeroed > 0 && zeroed == 0) first_zeroed = &item;
    zeroed += item.result.zeroed;
  }
  if (zeroed > 0) {
    out_.notes.push_back(fmt::format("{} scales are zero although their weights' codes are not (the first in {}): those weights count as zero", zeroed,
                                     tensor_word(first_zeroed->source->scale)));
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

void LayerLoader::load_stored() {
  decide_experts();
  if (out_.experts.empty()) return;
  // Even after a problem: a reader who must fix a checkpoint wants to hear of all of them.
  check_one_format();
  settle_geometry();
  for (size_t e = 0; e < out_.experts.size(); ++e) {
    for (const MatrixRole role : kRoles) check_shape(matrix_of(out_.experts[e], role), source_of(out_.expert_sources[e], role), role, geometry_);
  }
  load_shared();
  load_router();
  note_shared_count();
  if (!options_.read_values) return;
  note_multipliers();
  note_unequal_globals();
  if (options_.scan_values) {
    scan();
    scan_router();
  }
}

Result<LayerWeights> LayerLoader::load(std::shared_ptr<const TensorSet> files) {
  out_.layer = layer_;
  out_.prefix = tensors_.prefix;
  out_.hugging_face_names = tensors_.hugging_face_names;
  refuse_unsupported();
  if (!tensors_.packed.empty()) {
    load_packed();
  } else if (problems_.empty()) {
    load_stored();
  }
  if (!problems_.empty()) {
    return bad_input(fmt::format("{}, layer {}: {} problem{}:\n  {}", printable(files->directory()), layer_.label(), problems_.count(),
                                 problems_.count() == 1 ? "" : "s", problems_.text()));
  }
  out_.files = std::move(files);
  return std::move(out_);
}

Result<LayerWeights> load_layer_weights(std::shared_ptr<const LayerTensors> tensors, LayerId layer, const ModelConfig& config,
                                        const PackedLayerRecord* packed, std::shared_ptr<const TensorSet> files, const LoadOptions& options) {
  auto loaded = LayerLoader(*tensors, layer, config, packed, options).load(std::move(files));
  if (loaded) loaded.value().names = std::move(tensors);
  return loaded;
}

}  // namespace monomoe
