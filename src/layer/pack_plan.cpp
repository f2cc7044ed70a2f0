// Layer after layer: what is copied first, then the experts, a new shard before one would grow beyond kMostShardBytes.
#include "layer/pack_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "layer/layer_rules.hpp"
#include "plan/problem.h"
#include "plan/problem_text.hpp"
#include "plan/weight_packing.h"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

constexpr uint64_t kMostShardBytes = 4'000'000'000;

uint64_t spec_bytes(const TensorSpec& spec) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(spec.dtype));
  for (const int64_t extent : spec.shape) bits *= static_cast<uint64_t>(extent);
  return bits / 8;
}

DType scale_dtype(ScaleType type) {
  return type == ScaleType::kE8m0 ? DType::F8_E8M0 : type == ScaleType::kBf16 ? DType::BF16 : DType::F32;
}

void add_matrix_specs(const std::string& base, const SourceMatrix& m, WeightFormat format, bool hugging_face,
                      std::vector<TensorSpec>& specs) {
  if (format == WeightFormat::kFp8) {
    const bool kept = m.format == WeightFormat::kFp8 && m.scale_block == kBlockK;
    specs.push_back({base + ".weight", DType::F8_E4M3, {m.rows, m.cols}});
    specs.push_back({base + (hugging_face ? ".weight_scale_inv" : ".scale"),
                     kept ? scale_dtype(m.scale_type) : DType::F32,
                     {ceil_div(m.rows, kBlockK), ceil_div(m.cols, kBlockK)}});
  } else if (format == WeightFormat::kNvfp4) {
    specs.push_back({base + ".weight", DType::U8, {m.rows, m.cols / 2}});
    specs.push_back({base + ".weight_scale", DType::F8_E4M3, {m.rows, m.cols / 16}});
    specs.push_back({base + ".weight_scale_2", DType::F32, {}});
  } else {
    specs.push_back({base + ".weight", hugging_face ? DType::U8 : DType::I8, {m.rows, m.cols / 2}});
    specs.push_back({base + (hugging_face ? ".weight_scale" : ".scale"), DType::F8_E8M0, {m.rows, m.cols / 32}});
  }
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const PackRequest& request) : checkpoint_(checkpoint), request_(request) {}

  Result<PackPlan> make();

 private:
  Result<void> load_layers();
  Result<void> check_layer(const LayerWeights& layer) const;
  Result<void> check_experts(const LayerWeights& layer) const;
  Result<void> sort_tensors();
  Result<void> sort_tensor(const LocatedTensor& tensor, const MoeTensorName& name, size_t layer);
  void plan_layer(size_t layer);
  void plan_rest();
  std::vector<TensorSpec> expert_specs(const LayerWeights& layer, int64_t source, int64_t target) const;
  void begin_shard(int layer);
  void add(std::vector<TensorSpec> specs);
  void add_copy(CopiedTensor copy, int layer);
  bool packs_shared(const LayerWeights& layer) const { return !request_.format && layer.shared && shared_expert_refusal(layer).empty(); }
  std::string place(const LayerWeights& layer) const {
    return fmt::format("{}, layer {}", printable(checkpoint_.tensors().directory()), layer.layer.label());
  }

  const Checkpoint& checkpoint_;
  const PackRequest& request_;
  PackPlan plan_;
  std::vector<std::vector<CopiedTensor>> layer_copies_;  // by layer
  std::vector<CopiedTensor> rest_;
  int64_t dropped_ = 0;
};

Result<void> Planner::load_layers() {
  const std::vector<LayerSummary> present = checkpoint_.layers();
  std::vector<LayerId> wanted = request_.layers;
  if (wanted.empty()) {
    for (const LayerSummary& summary : present) wanted.push_back(summary.layer);
  }
  if (wanted.empty()) return bad_input(fmt::format("{}: no MoE layer", printable(checkpoint_.tensors().directory())));
  for (const LayerId id : wanted) {
    auto layer = checkpoint_.load_layer(id, {.scan_values = false});
    if (!layer) return layer.error();
    checkpoint_.tensors().release_pages();
    if (auto legal = check_layer(layer.value()); !legal) return legal;
    plan_.layers.push_back(layer.take());
  }
  return {};
}

Result<void> Planner::check_layer(const LayerWeights& layer) const {
  if (!layer.packed.empty()) {
    return usage_error(fmt::format("{} is packed already; pack the checkpoint that it was packed from", place(layer)));
  }
  if (!request_.format && layer.format == WeightFormat::kBf16) {
    return bad_input(fmt::format("{} is BF16, which has no packed form; first quantise it with --to fp8, nvfp4 or mxfp4", place(layer)));
  }
  LayerWeights target;  // as it will be: the rules hold for what is written
  target.layer = layer.layer;
  target.hidden = layer.hidden;
  target.intermediate = layer.intermediate;
  target.format = output_format(layer, request_);
  target.experts = layer.experts;
  for (SourceExpert& expert : target.experts) {
    if (!request_.format) break;  // packed as they are
    expert.gate.scale_block = expert.up.scale_block = expert.down.scale_block = kBlockK;
  }
  target.expert_sources = layer.expert_sources;
  target.files = layer.files;
  if (auto legal = check_rules(target); !legal) return legal;
  return check_experts(layer);
}

// A reduced layer must still be one that its router can route.
Result<void> Planner::check_experts(const LayerWeights& layer) const {
  if (request_.experts.empty()) return {};
  const auto count = static_cast<int64_t>(layer.experts.size()), kept = static_cast<int64_t>(request_.experts.size());
  if (request_.experts.back() >= count) {
    return usage_error(fmt::format("{} has experts 0 to {}, options->experts names {}", place(layer), count - 1, request_.experts.back()));
  }
  if (layer.router && layer.router->table != nullptr) {
    return usage_error(
        fmt::format("{} takes its experts from the token ids, which name all {} of them; leave the layer out with "
                    "options->layers, or keep all experts",
                    place(layer), count));
  }
  const ModelConfig& config = checkpoint_.config();
  if (layer.router && config.topk && *config.topk > kept) {
    return usage_error(fmt::format("options->experts keeps {} experts, the router of {} chooses {} for each token; keep at least that many",
                                   kept, place(layer), *config.topk));
  }
  if (layer.router && config.groups && *config.groups > 1 && kept != count) {
    return usage_error(
        fmt::format("the router of {} chooses among {} groups of experts, which a part of them does not keep; keep all experts",
                    place(layer), *config.groups));
  }
  return {};
}

Result<void> Planner::sort_tensors() {
  layer_copies_.resize(plan_.layers.size());
  for (const LocatedTensor& tensor : checkpoint_.tensors().tensors()) {
    const std::optional<MoeTensorName> name = parse_moe_name(tensor.entry->name);
    if (!name || name->kind == MoeTensorName::Kind::kOddLayer) {
      if (request_.is_whole()) rest_.push_back({tensor.entry->name, tensor, {}});
      continue;
    }
    const auto layer =
        std::find_if(plan_.layers.begin(), plan_.layers.end(), [&](const LayerWeights& l) { return l.layer == name->layer; });
    if (layer == plan_.layers.end()) {
      if (request_.is_whole()) rest_.push_back({tensor.entry->name, tensor, {}});
      continue;
    }
    if (auto sorted = sort_tensor(tensor, *name, static_cast<size_t>(layer - plan_.layers.begin())); !sorted) return sorted;
  }
  return {};
}

Result<void> Planner::sort_tensor(const LocatedTensor& tensor, const MoeTensorName& name, size_t index) {
  using Kind = MoeTensorName::Kind;
  const LayerWeights& layer = plan_.layers[index];
  CopiedTensor copy{tensor.entry->name, tensor, {}};
  switch (name.kind) {
    case Kind::kRouterWeight:
    case Kind::kRouterBias:
      copy.rows = request_.experts;
      break;
    case Kind::kSharedExpert:
    case Kind::kUnknownShared:
      if (packs_shared(layer)) return {};
      break;
    case Kind::kHashTable:
      break;
    case Kind::kExpert: {
      // Calibrated for FP4 activations: no part of this layer's arithmetic, but other engines read it.
      if (name.part != TensorPart::kInputScale || request_.format != WeightFormat::kNvfp4) return {};
      const auto& kept = request_.experts;
      const auto at = std::find(kept.begin(), kept.end(), name.expert);
      if (!kept.empty() && at == kept.end()) return {};
      if (!kept.empty()) {
        const std::string old = fmt::format("experts.{}.", name.expert), renamed = fmt::format("experts.{}.", at - kept.begin());
        copy.name.replace(layer.prefix.size(), old.size(), renamed);
      }
      break;
    }
    default:  // fused experts are split; what is unknown below an expert belongs to the old format
      dropped_ += name.kind == Kind::kUnknownExpert ? 1 : 0;
      return {};
  }
  layer_copies_[index].push_back(std::move(copy));
  return {};
}

void Planner::begin_shard(int layer) {
  plan_.shards.emplace_back();
  plan_.shards.back().layer = layer;
}

void Planner::add(std::vector<TensorSpec> specs) {
  ShardPlan& shard = plan_.shards.back();
  for (TensorSpec& spec : specs) {
    shard.bytes += spec_bytes(spec);
    shard.specs.push_back(std::move(spec));
  }
}

void Planner::add_copy(CopiedTensor copy, int layer) {
  ShardPlan& open = plan_.shards.back();
  if (!open.specs.empty() && open.bytes + spec_bytes(copy.spec()) > kMostShardBytes) begin_shard(layer);
  add({copy.spec()});
  plan_.shards.back().copies.push_back(std::move(copy));
}

std::vector<TensorSpec> Planner::expert_specs(const LayerWeights& layer, int64_t source, int64_t target) const {
  const std::string module = fmt::format("{}experts.{}", layer.prefix, target);
  if (!request_.format) return {{module + ".packed", DType::U8, {expert_layout(packed_problem(layer, false)).bytes}}};
  const SourceExpert& expert = layer.experts[static_cast<size_t>(source)];
  const bool hugging_face = layer.hugging_face_names;
  std::vector<TensorSpec> specs;
  add_matrix_specs(module + (hugging_face ? ".gate_proj" : ".w1"), expert.gate, *request_.format, hugging_face, specs);
  add_matrix_specs(module + (hugging_face ? ".up_proj" : ".w3"), expert.up, *request_.format, hugging_face, specs);
  add_matrix_specs(module + (hugging_face ? ".down_proj" : ".w2"), expert.down, *request_.format, hugging_face, specs);
  return specs;
}

void Planner::plan_layer(size_t index) {
  const LayerWeights& layer = plan_.layers[index];
  begin_shard(static_cast<int>(index));
  for (CopiedTensor& copy : layer_copies_[index]) add_copy(std::move(copy), static_cast<int>(index));
  if (packs_shared(layer)) {
    plan_.shards.back().packs_shared = true;
    add({{layer.prefix + "shared_experts.packed", DType::U8, {expert_layout(packed_problem(layer, true)).bytes}}});
  }
  const int64_t count =
      request_.experts.empty() ? static_cast<int64_t>(layer.experts.size()) : static_cast<int64_t>(request_.experts.size());
  for (int64_t target = 0; target < count; ++target) {
    const int64_t source = request_.experts.empty() ? target : request_.experts[static_cast<size_t>(target)];
    std::vector<TensorSpec> specs = expert_specs(layer, source, target);
    uint64_t bytes = 0;
    for (const TensorSpec& spec : specs) bytes += spec_bytes(spec);
    if (!plan_.shards.back().specs.empty() && plan_.shards.back().bytes + bytes > kMostShardBytes) begin_shard(static_cast<int>(index));
    ShardPlan& shard = plan_.shards.back();
    if (shard.experts.empty()) shard.first_expert = target;
    shard.experts.push_back(source);
    add(std::move(specs));
  }
}

void Planner::plan_rest() {
  if (rest_.empty()) return;
  begin_shard(-1);
  for (CopiedTensor& copy : rest_) add_copy(std::move(copy), -1);
}

Result<PackPlan> Planner::make() {
  if (auto done = load_layers(); !done) return done.error();
  if (auto done = sort_tensors(); !done) return done.error();
  for (size_t layer = 0; layer < plan_.layers.size(); ++layer) plan_layer(layer);
  plan_rest();
  for (size_t i = 0; i < plan_.shards.size(); ++i) {
    plan_.shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan_.shards.size());
    plan_.bytes += plan_.shards[i].bytes;
  }
  if (dropped_ > 0) plan_.notes.push_back(fmt::format("{} tensors of unknown meaning below experts are left out", dropped_));
  return std::move(plan_);
}

}  // namespace

TensorSpec CopiedTensor::spec() const {
  TensorSpec spec{name, source.entry->dtype, source.entry->shape};
  if (!rows.empty()) spec.shape[0] = static_cast<int64_t>(rows.size());
  return spec;
}

WeightFormat output_format(const LayerWeights& layer, const PackRequest& request) { return request.format.value_or(layer.format); }

Problem packed_problem(const LayerWeights& layer, bool shared) {
  Problem problem;
  problem.hidden = layer.hidden;
  problem.intermediate = shared ? layer.shared->gate.rows : layer.intermediate;
  problem.experts = problem.topk = 1;
  problem.weights = shared ? layer.shared_format : layer.format;
  return problem;
}

Result<PackPlan> make_pack_plan(const Checkpoint& checkpoint, const PackRequest& request) { return Planner(checkpoint, request).make(); }

}  // namespace monomoe::layer
