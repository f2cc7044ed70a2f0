// A part is a tensor entry of its own that points into the fused tensor's bytes: rows are contiguous, so nothing is copied.
#include "weights/fused.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "weights/text.hpp"

namespace monomoe {
namespace {

// Their modelling code applies the fused matrix as it lies, [2 I, H] rows, and takes the first half of the result as the gate.
constexpr std::string_view kGateFirst[] = {"deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe",   "glm_moe_dsa",
                                           "kimi_k2",     "qwen2_moe",   "qwen3_moe",    "qwen3_next",  "qwen3_5_moe"};

bool is_scalar_part(TensorPart part) {
  return part == TensorPart::kWeightScale2 || part == TensorPart::kInputScale || part == TensorPart::kWeightGlobalScale ||
         part == TensorPart::kInputGlobalScale;
}

class Splitter {
 public:
  Splitter(const ModelConfig& config, LayerTensors& layer) : config_(config), layer_(layer) {}

  void split(const FusedTensor& fused);

 private:
  std::string order_unknown() const;
  std::string split_all(const FusedTensor& fused);
  std::string split_one(const FusedTensor& fused, int expert, const std::vector<int64_t>& shape, uint64_t begin, uint64_t bytes);
  std::string split_scalars(const FusedTensor& fused);
  void place(const FusedTensor& fused, int expert, MatrixRole role, std::vector<int64_t> shape, uint64_t begin, uint64_t bytes);

  const ModelConfig& config_;
  LayerTensors& layer_;
};

std::string Splitter::order_unknown() const {
  const bool known =
      config_.model_type && std::find(std::begin(kGateFirst), std::end(kGateFirst), *config_.model_type) != std::end(kGateFirst);
  if (known) return {};
  return fmt::format("the order of gate and up inside it follows from the model type, and {}",
                     config_.model_type ? fmt::format("that of \"{}\" is not known", printable(*config_.model_type))
                                        : std::string("config.json states none"));
}

void Splitter::place(const FusedTensor& fused, int expert, MatrixRole role, std::vector<int64_t> shape, uint64_t begin, uint64_t bytes) {
  const TensorEntry& whole = *fused.tensor.entry;
  constexpr const char* kRoles[] = {"gate", "up", "down"};
  TensorEntry entry;
  entry.name = fmt::format("{}[{}][{}]", whole.name, expert, kRoles[static_cast<size_t>(role)]);
  entry.dtype = whole.dtype;
  entry.shape = std::move(shape);
  entry.data = whole.data + begin;
  entry.bytes = bytes;
  entry.file_offset = whole.file_offset + begin;
  layer_.split.push_back(std::move(entry));
  LocatedTensor& slot = layer_.experts[expert][static_cast<size_t>(role)][fused.name.part];
  const LocatedTensor part{&layer_.split.back(), fused.tensor.file};
  if (slot.entry == nullptr) {
    slot = part;
  } else {
    layer_.conflicts.push_back(fmt::format("tensors \"{}\" and \"{}\" have one meaning; wanted one of them: remove the other",
                                           printable(slot.entry->name), printable(part.entry->name)));
  }
}

// One value for each expert, or one for its gate and one for its up.
std::string Splitter::split_scalars(const FusedTensor& fused) {
  const TensorEntry& whole = *fused.tensor.entry;
  const bool all = fused.name.expert < 0, both = fused.name.role == MatrixRole::kGate;
  std::vector<int64_t> shape = whole.shape;
  const int64_t experts = !all ? 1 : shape.empty() ? 0 : shape[0];
  if (all && !shape.empty()) shape.erase(shape.begin());
  const int64_t width = shape.empty() ? 1 : shape[0];
  if (experts < 1 || shape.size() > 1 || width < 1 || width > (both ? 2 : 1))
    return "it should hold one value for each expert, or for its gate and its up";
  const uint64_t bytes = whole.bytes / static_cast<uint64_t>(experts * width);
  for (int64_t e = 0; e < experts; ++e) {
    const int expert = all ? static_cast<int>(e) : fused.name.expert;
    const uint64_t begin = static_cast<uint64_t>(e * width) * bytes;
    place(fused, expert, fused.name.role, {}, begin, bytes);
    if (both) place(fused, expert, MatrixRole::kUp, {}, begin + static_cast<uint64_t>(width - 1) * bytes, bytes);
  }
  return {};
}

std::string Splitter::split_one(const FusedTensor& fused, int expert, const std::vector<int64_t>& shape, uint64_t begin, uint64_t bytes) {
  if (fused.name.role == MatrixRole::kDown) {
    place(fused, expert, MatrixRole::kDown, shape, begin, bytes);
    return {};
  }
  if (shape[0] % 2 != 0) {
    return fmt::format("its {} rows are no two halves (of FP8 scales: a block would hold rows of gate and of up)", shape[0]);
  }
  const std::vector<int64_t> half{shape[0] / 2, shape[1]};
  place(fused, expert, MatrixRole::kGate, half, begin, bytes / 2);
  place(fused, expert, MatrixRole::kUp, half, begin + bytes / 2, bytes / 2);
  return {};
}

std::string Splitter::split_all(const FusedTensor& fused) {
  const TensorEntry& whole = *fused.tensor.entry;
  const bool all = fused.name.expert < 0;
  if (is_scalar_part(fused.name.part)) return split_scalars(fused);
  if (whole.shape.size() != (all ? 3u : 2u) || std::ranges::any_of(whole.shape, [](int64_t extent) { return extent < 1; })) {
    return fmt::format("wanted {} dimensions that are not empty", all ? "three" : "two");
  }
  if (!all) return split_one(fused, fused.name.expert, whole.shape, 0, whole.bytes);
  constexpr int64_t kMostExperts = 100'000;  // as of tensors with a number each
  if (whole.shape[0] > kMostExperts) return fmt::format("wanted at most {} experts", kMostExperts);
  const uint64_t bytes = whole.bytes / static_cast<uint64_t>(whole.shape[0]);
  for (int64_t e = 0; e < whole.shape[0]; ++e) {
    std::string why = split_one(fused, static_cast<int>(e), {whole.shape[1], whole.shape[2]}, static_cast<uint64_t>(e) * bytes, bytes);
    if (!why.empty()) return why;
  }
  return {};
}

void Splitter::split(const FusedTensor& fused) {
  std::string why = order_unknown();
  if (why.empty()) why = split_all(fused);
  if (why.empty()) {
    layer_.hugging_face_names = true;
    return;
  }
  layer_.fused.push_back(fused.tensor);
  layer_.fused_why.push_back(std::move(why));
}

// Blocks of scales are counted from the first row of gate_up: up's begin with one only where gate ends with one.
std::string block_straddles(const FusedTensor& fused) {
  const TensorEntry& entry = *fused.tensor.entry;
  if (entry.dtype != DType::F8_E4M3 || fused.name.part != TensorPart::kWeight || fused.name.role != MatrixRole::kGate ||
      entry.shape.size() < 2)
    return {};
  const int64_t rows = entry.shape[entry.shape.size() - 2] / 2;
  return rows % 128 == 0 ? std::string() : fmt::format("its {} rows of gate end inside a block of 128", rows);
}

}  // namespace

void split_fused(const std::vector<FusedTensor>& tensors, const ModelConfig& config, LayerTensors& layer) {
  Splitter splitter(config, layer);
  for (const FusedTensor& fused : tensors) {
    splitter.split(fused);
    if (std::string why = block_straddles(fused); !why.empty() && layer.fused.empty()) {
      layer.fused.push_back(fused.tensor);
      layer.fused_why.push_back(std::move(why));
    }
  }
}

}  // namespace monomoe
