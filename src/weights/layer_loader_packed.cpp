// Experts in the kernel's own layout: the manifest says what they are, their sizes must fit, and their checksums are held against it.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "plan/problem.h"
#include "plan/weight_packing.h"
#include "weights/checksum.hpp"
#include "weights/layer_loader.hpp"

namespace monomoe {
namespace {

// Sizes and format without codes: what a packed expert still says about its matrices.
SourceExpert without_codes(int64_t hidden, int64_t intermediate, WeightFormat format) {
  SourceMatrix gate;
  gate.format = format;
  gate.rows = intermediate;
  gate.cols = hidden;
  SourceMatrix down = gate;
  down.rows = hidden;
  down.cols = intermediate;
  return {gate, gate, down};
}

ExpertSource packed_source(const LocatedTensor& tensor) {
  ExpertSource source;
  source.gate.weight = tensor;
  return source;
}

}  // namespace

// nullptr, and a problem, unless the tensor holds one expert of these sizes.
const uint8_t* LayerLoader::check_packed(const LocatedTensor& tensor, int64_t intermediate, WeightFormat format) {
  Problem problem;
  problem.hidden = record_->hidden;
  problem.intermediate = intermediate;
  problem.experts = problem.topk = 1;
  problem.weights = format;
  if (broken_rule(problem) != ProblemRule::kLegal) {
    problems_.add(fmt::format("{}: the manifest states hidden {} and intermediate {}, which no layer can have: pack the checkpoint again",
                              tensor_word(tensor), problem.hidden, intermediate));
    return nullptr;
  }
  const int64_t bytes = expert_layout(problem).bytes;
  if (tensor.entry->dtype != DType::U8 || tensor.entry->shape != std::vector<int64_t>{bytes}) {
    problems_.add(
        fmt::format("{}: found {} {}, wanted U8 [{}], one packed {} expert of hidden {} and intermediate {}: pack the checkpoint again",
                    tensor_word(tensor), dtype_name(tensor.entry->dtype), shape_text(tensor.entry->shape), bytes, format_name(format),
                    problem.hidden, intermediate));
    return nullptr;
  }
  if (!options_.read_values) return tensor.entry->data;
  PackedExpertHeader header;
  std::memcpy(&header, tensor.entry->data, sizeof(header));
  if (header.format != static_cast<int32_t>(format)) {
    problems_.add(fmt::format("{}: its header states weight format {}, the manifest {}: pack the checkpoint again", tensor_word(tensor),
                              header.format, format_name(format)));
    return nullptr;
  }
  return tensor.entry->data;
}

void LayerLoader::load_packed() {
  if (!tensors_.experts.empty()) {
    problems_.add(
        fmt::format("{}: found beside the packed experts; wanted one or the other: remove one of them",
                    tensor_word(tensors_.experts.begin()->second[0].parts[0].entry != nullptr ? tensors_.experts.begin()->second[0].parts[0]
                                                                                              : tensors_.packed.begin()->second)));
    return;
  }
  if (record_ == nullptr || record_->prefix != tensors_.prefix) {
    problems_.add(fmt::format("{}: {} says nothing of this layer; fetch the file, or pack the checkpoint again",
                              tensor_word(tensors_.packed.begin()->second), kPackedManifestName));
    return;
  }
  expert_count_ = static_cast<int64_t>(record_->checksums.size());
  out_.hidden = geometry_.hidden = record_->hidden;
  out_.intermediate = geometry_.intermediate = record_->intermediate;
  out_.format = record_->format;
  for (int64_t e = 0; e < expert_count_; ++e) {
    const auto found = tensors_.packed.find(static_cast<int>(e));
    if (found == tensors_.packed.end()) {
      problems_.add(fmt::format("missing: \"{}experts.{}.packed\"; fetch the shard that holds it", printable(tensors_.prefix), e));
      continue;
    }
    const uint8_t* data = check_packed(found->second, record_->intermediate, record_->format);
    if (data == nullptr) continue;
    out_.packed.push_back(data);
    out_.experts.push_back(without_codes(record_->hidden, record_->intermediate, record_->format));
    out_.expert_sources.push_back(packed_source(found->second));
  }
  if (tensors_.packed.rbegin()->first >= expert_count_) {
    problems_.add(fmt::format("{}: the manifest counts {} experts in this layer; pack the checkpoint again",
                              tensor_word(tensors_.packed.rbegin()->second), expert_count_));
  }
  if (tensors_.packed_shared.entry != nullptr && !record_->shared_checksum.empty()) {
    out_.packed_shared = check_packed(tensors_.packed_shared, record_->shared_intermediate, record_->shared_format);
    out_.shared = without_codes(record_->hidden, record_->shared_intermediate, record_->shared_format);
    out_.shared_source = packed_source(tensors_.packed_shared);
    out_.shared_format = record_->shared_format;
  } else if (!record_->shared_checksum.empty()) {
    problems_.add(fmt::format("missing: \"{}shared_experts.packed\"; fetch the shard that holds it", printable(tensors_.prefix)));
  } else {
    load_shared();
  }
  load_router();
  check_none_missing();
  if (!options_.scan_values || !options_.read_values) return;
  if (problems_.empty()) verify_checksums();
  scan_router();
}

void LayerLoader::verify_checksums() {
  struct Item {
    LocatedTensor tensor;
    std::string_view wanted;
    std::string found;
  };
  std::vector<Item> items;
  const std::vector<bool>* wanted = options_.scanned_experts;
  for (size_t e = 0; e < out_.packed.size(); ++e) {
    if (wanted == nullptr || (e < wanted->size() && (*wanted)[e])) items.push_back({out_.expert_sources[e].gate.weight, record_->checksums[e], {}});
  }
  if (out_.packed_shared != nullptr) items.push_back({out_.shared_source.gate.weight, record_->shared_checksum, {}});
  for (const LocatedTensor& tensor : tensors_beside_experts()) {
    const auto stated = record_->tensor_checksums.find(tensor.entry->name);
    if (stated != record_->tensor_checksums.end()) {
      items.push_back({tensor, stated->second, {}});
    } else {
      problems_.add(fmt::format("{}: {} states no checksum of it, so it was not packed with this layer: remove it, or pack the checkpoint again",
                                tensor_word(tensor), kPackedManifestName));
    }
  }
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < items.size(); i = next++)
      items[i].found = checksum_text({items[i].tensor.entry->data, static_cast<size_t>(items[i].tensor.entry->bytes)});
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < options_.threads; ++t) helpers.emplace_back(work);
    work();
  }
  for (const Item& item : items) {
    if (item.found == item.wanted) continue;
    problems_.add(fmt::format("{}: its bytes have the checksum {}, {} states {}: the file is damaged, copy or pack it again",
                              tensor_word(item.tensor), item.found, kPackedManifestName, printable(item.wanted)));
  }
}

// What was copied when the experts were packed and counts in the result: the router, and a shared expert that could not be packed.
std::vector<LocatedTensor> LayerLoader::tensors_beside_experts() const {
  std::vector<LocatedTensor> out;
  for (const LocatedTensor& tensor : {tensors_.router_weight, tensors_.router_bias, tensors_.hash_table}) {
    if (tensor.entry != nullptr) out.push_back(tensor);
  }
  for (size_t m = 0; tensors_.shared && m < tensors_.shared->size(); ++m) {
    for (const LocatedTensor& tensor : (*tensors_.shared)[m].parts) {
      if (tensor.entry != nullptr) out.push_back(tensor);
    }
  }
  return out;
}

// Tensors that the manifest states and the directory does not have.
void LayerLoader::check_none_missing() {
  std::set<std::string_view> present;
  for (const LocatedTensor& tensor : tensors_beside_experts()) present.insert(tensor.entry->name);
  for (const auto& [name, checksum] : record_->tensor_checksums) {
    const std::optional<MoeTensorName> parsed = parse_moe_name(name);
    const bool counts = parsed && parsed->kind != MoeTensorName::Kind::kUnknownShared;
    if (counts && !present.contains(name)) problems_.add(fmt::format("missing: \"{}\"; fetch the shard that holds it", printable(name)));
  }
}

}  // namespace monomoe
