// Opens a directory and sorts its tensor names into layers; layers are resolved when they are loaded (layer_loader.cpp).
#include "weights/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/problem.h"
#include "weights/fused.hpp"
#include "weights/layer_tensors.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

using Kind = MoeTensorName::Kind;

std::string file_of(const LocatedTensor& tensor) {
  const std::string& path = tensor.file->path();
  return path.substr(path.rfind('/') + 1);
}

std::string odd_layer(std::string_view number) {
  return fmt::format("the layer number \"{}\" is not written as 0 to 99999", printable(number));
}

std::string odd_expert(const LocatedTensor& tensor, std::string_view number) {
  return fmt::format("tensor \"{}\" ({}): found the expert number \"{}\", wanted 0 to 99999 without a sign or leading zeros: rename the tensor",
                     printable(tensor.entry->name), printable(file_of(tensor)), printable(number));
}

// Endings of tensors that would change an expert's result if they were left out.
bool changes_result(std::string_view name) {
  for (const std::string_view ending : {"bias", "pre_quant_scale", "zero_point", "zeros", "weight_shape", "g_idx"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

void place(LocatedTensor& slot, const LocatedTensor& tensor, LayerTensors& layer) {
  if (slot.entry == nullptr) {
    slot = tensor;
  } else {
    layer.conflicts.push_back(fmt::format("tensors \"{}\" and \"{}\" have one meaning; wanted one of them: remove the other",
                                          printable(slot.entry->name), printable(tensor.entry->name)));
  }
}

void sort_matrix(const MoeTensorName& name, const LocatedTensor& tensor, LayerTensors& layer) {
  if (tensor.entry->name.find("_proj.", name.layer_prefix.size()) != std::string::npos) layer.hugging_face_names = true;
  if (name.kind == Kind::kExpert) {
    place(layer.experts[name.expert][static_cast<size_t>(name.role)][name.part], tensor, layer);
    return;
  }
  if (!layer.shared) layer.shared = std::make_unique<ExpertTensors>();
  const std::string_view rest = std::string_view(tensor.entry->name).substr(name.layer_prefix.size());
  layer.shared_module = rest.substr(0, rest.find('.'));
  place((*layer.shared)[static_cast<size_t>(name.role)][name.part], tensor, layer);
}

// What a tensor is for; fused ones wait until all of a layer are known.
void sort_tensor(const MoeTensorName& name, const LocatedTensor& tensor, LayerTensors& layer, std::vector<FusedTensor>& fused,
                 std::vector<UnusedTensor>& unknown) {
  switch (name.kind) {
    case Kind::kExpert:
    case Kind::kSharedExpert:
      sort_matrix(name, tensor, layer);
      break;
    case Kind::kPackedExpert:
      layer.packed[name.expert] = tensor;  // names are unique
      break;
    case Kind::kPackedShared:
      place(layer.packed_shared, tensor, layer);
      break;
    case Kind::kRouterWeight:
      place(layer.router_weight, tensor, layer);
      break;
    case Kind::kRouterBias:
      place(layer.router_bias, tensor, layer);
      break;
    case Kind::kHashTable:
      place(layer.hash_table, tensor, layer);
      break;
    case Kind::kFused:
      fused.push_back({name, tensor});
      break;
    case Kind::kUnknownFused:
      layer.fused.push_back(tensor);
      layer.fused_why.push_back("nothing states what is where inside it");
      break;
    case Kind::kOddExpert:
      layer.refused.push_back(odd_expert(tensor, name.number));
      break;
    case Kind::kOddLayer:
      break;
    case Kind::kUnknownShared:
      layer.unsupported_shared = true;
      unknown.push_back({file_of(tensor), tensor.entry->name, "not a known tensor of a shared expert"});
      break;
    case Kind::kUnknownExpert:
      if (changes_result(tensor.entry->name)) {
        layer.refused.push_back(
            fmt::format("tensor \"{}\" ({}) would change the result and is not supported; wanted experts of weights and "
                        "scales alone: convert the checkpoint",
                        printable(tensor.entry->name), printable(file_of(tensor))));
      } else {
        unknown.push_back({file_of(tensor), tensor.entry->name, "not a known tensor of an expert"});
      }
      break;
  }
}

}  // namespace

std::string LayerTensors::matrix_name(const std::string& module, MatrixRole role) const {
  constexpr const char* kNames[2][kMatrixRoles] = {{"w1", "w3", "w2"}, {"gate_proj", "up_proj", "down_proj"}};
  return fmt::format("{}{}.{}", prefix, module, kNames[hugging_face_names ? 1 : 0][static_cast<size_t>(role)]);
}

Result<Checkpoint> Checkpoint::open(const std::string& directory, const OpenOptions& options) {
  Result<TensorSet> set = TensorSet::open(directory, options);
  Result<ModelConfig> config = read_model_config(directory);
  Result<PackedManifest> packed = read_packed_manifest(directory);
  Checkpoint checkpoint(options.max_problems);
  if (!set) checkpoint.problems_.add_lines(set.error().message);
  if (set) checkpoint.problems_.add_all(set.value().problems());
  if (!config) checkpoint.problems_.add_lines(config.error().message);
  if (!packed) checkpoint.problems_.add_lines(packed.error().message);
  if (!set || (!options.keep_going && !checkpoint.problems_.empty())) return bad_input(checkpoint.problems_.text());
  checkpoint.tensors_ = std::make_shared<const TensorSet>(set.take());
  checkpoint.settings_sound_ = config.ok() && packed.ok();
  if (config) checkpoint.config_ = config.take();
  if (packed) checkpoint.packed_ = packed.take();
  for (const std::string& name : checkpoint.tensors_->absent()) {
    if (const std::optional<MoeTensorName> parsed = parse_moe_name(name)) checkpoint.incomplete_.insert(parsed->layer);
  }
  if (Result<void> sorted = checkpoint.sort_names(); !sorted) return sorted.error();
  return checkpoint;
}

bool Checkpoint::can_judge(LayerId layer) const {
  // Without an index nothing says what a shard that cannot be read would hold.
  const bool shards_known = tensors_->problems().empty() || tensors_->has_index();
  return settings_sound_ && shards_known && !incomplete_.contains(layer);
}

Result<void> Checkpoint::sort_names() {
  std::map<LayerId, std::vector<FusedTensor>> fused;
  for (const LocatedTensor& tensor : tensors_->tensors()) {
    const std::optional<MoeTensorName> name = parse_moe_name(tensor.entry->name);
    if (!name) continue;
    if (name->kind == Kind::kOddLayer) {
      unknown_.push_back({file_of(tensor), tensor.entry->name, odd_layer(name->number)});
      continue;
    }
    std::shared_ptr<LayerTensors>& slot = layers_[name->layer];
    if (!slot) slot = std::make_shared<LayerTensors>();
    LayerTensors& layer = *slot;
    if (layer.prefix.empty()) layer.prefix = name->layer_prefix;
    if (layer.prefix != name->layer_prefix) {
      layer.conflicts.push_back(
          fmt::format("tensor \"{}\": this layer's tensors begin with both \"{}\" and \"{}\"; wanted one prefix: remove the "
                      "copies",
                      printable(tensor.entry->name), printable(layer.prefix), printable(name->layer_prefix)));
      continue;
    }
    sort_tensor(*name, tensor, layer, fused[name->layer], unknown_);
  }
  for (const auto& [id, tensors] : fused) split_fused(tensors, config_, *layers_[id]);
  return {};
}

std::vector<LayerSummary> Checkpoint::layers() const {
  std::vector<LayerSummary> out;
  for (const auto& [id, layer] : layers_) {
    if (!layer->has_experts()) continue;
    int64_t experts = layer->experts.empty() ? 0 : layer->experts.rbegin()->first + 1;
    if (!layer->packed.empty()) experts = std::max<int64_t>(experts, layer->packed.rbegin()->first + 1);
    out.push_back({id, experts, layer->shared != nullptr || layer->packed_shared.entry != nullptr, layer->router_weight.entry != nullptr, layer->hash_table.entry != nullptr});
  }
  return out;
}

std::vector<std::string> Checkpoint::layers_without_experts() const {
  std::vector<std::string> out;
  for (const auto& [id, layer] : layers_) {
    if (layer->has_experts()) continue;
    LocatedTensor witness = layer->router_weight;
    if (witness.entry == nullptr) witness = layer->router_bias.entry != nullptr ? layer->router_bias : layer->hash_table;
    for (size_t m = 0; layer->shared && m < layer->shared->size(); ++m) {
      if (witness.entry == nullptr) witness = (*layer->shared)[m][TensorPart::kWeight];
    }
    if (witness.entry == nullptr) continue;
    out.push_back(fmt::format("tensor \"{}\" ({}) belongs to layer {}, of which no expert is here; fetch the shards that hold them",
                              printable(witness.entry->name), printable(file_of(witness)), id.label()));
  }
  return out;
}

std::vector<UnusedTensor> Checkpoint::unused() const {
  std::vector<UnusedTensor> out = tensors_->unused();
  out.insert(out.end(), unknown_.begin(), unknown_.end());
  return out;
}

Result<LayerWeights> Checkpoint::load_layer(LayerId layer, const LoadOptions& options) const {
  const auto found = layers_.find(layer);
  if (found != layers_.end() && found->second->has_experts()) {
    const auto record = packed_.layers.find(layer.label());
    return load_layer_weights(found->second, layer, config_, record == packed_.layers.end() ? nullptr : &record->second, tensors_, options);
  }
  const std::vector<LayerSummary> present = layers();
  std::string labels;
  for (const LayerSummary& summary : present) labels += (labels.empty() ? "" : ", ") + summary.layer.label();
  return usage_error(fmt::format("{}: layer {} has no experts; layers with experts: {}", printable(tensors_->directory()), layer.label(),
                                 labels.empty() ? "none (wanted names like layers.0.ffn.experts.0.w1.weight or "
                                                  "model.layers.0.mlp.experts.0.gate_proj.weight)"
                                                : labels));
}

namespace {

constexpr const char* kOrGiveRouting = "correct the file, or give topk_ids and topk_weights";

// Numbers of config.json that cannot route `experts` experts. `out` holds them as they will be used.
void check_router_numbers(const ModelConfig& config, const RouterConfig& out, int64_t experts, bool hash, ProblemList& problems) {
  const int64_t most = std::min(experts, kMaxTopk);
  if (out.topk < 1 || out.topk > most) {
    problems.add(fmt::format("\"num_experts_per_tok\": found {}, wanted 1 to {} (the layer has {} experts); {}", out.topk, most, experts,
                             kOrGiveRouting));
  }
  if (out.groups < 1 || experts % out.groups != 0) {
    problems.add(fmt::format("\"n_group\": found {}, wanted a number that divides the {} experts; {}", out.groups, experts, kOrGiveRouting));
    return;
  }
  if (out.topk_groups < 1 || out.topk_groups > out.groups) {
    problems.add(fmt::format("\"topk_group\": found {}, wanted 1 to n_group, which is {}; {}", out.topk_groups, out.groups, kOrGiveRouting));
  } else if (!hash && out.topk <= most && out.topk > out.topk_groups * (experts / out.groups)) {
    problems.add(fmt::format("\"topk_group\": found {} (of {} groups, {} experts each), wanted enough groups for num_experts_per_tok {}; {}",
                             out.topk_groups, out.groups, experts / out.groups, *config.topk, kOrGiveRouting));
  }
}

}  // namespace

Result<RouterConfig> Checkpoint::router_config(const LayerWeights& layer) const {
  const std::string where = fmt::format("{}, layer {}", printable(tensors_->directory()), layer.layer.label());
  if (!layer.router) return bad_input(where + ": has no router (gate.weight); give topk_ids and topk_weights instead");
  ProblemList missing;
  if (!config_.scoring) missing.add("scoring_func (softmax, sigmoid or sqrtsoftplus)");
  if (!config_.topk) missing.add("num_experts_per_tok");
  if (!config_.norm_topk_prob) missing.add("norm_topk_prob");
  if (!missing.empty()) {
    return bad_input(fmt::format("{}: config.json does not state {}, which the router needs; state it, or give topk_ids and topk_weights",
                                 where, missing.text(", ")));
  }
  const bool hash = layer.router->table != nullptr;
  RouterConfig out;
  out.scoring = *config_.scoring;
  out.topk = *config_.topk;
  out.norm_topk_prob = *config_.norm_topk_prob;
  out.routed_scaling_factor = config_.routed_scaling_factor.value_or(1.0);
  out.groups = config_.groups.value_or(1);
  out.topk_groups = config_.topk_groups.value_or(out.groups);
  out.best_per_group = config_.topk_method == "group_limited_greedy" ? 1 : 2;
  if (config_.topk_method == "greedy") out.groups = out.topk_groups = 1;
  ProblemList problems(20, printable(config_.file) + ": ");
  if (!layer.layer.mtp && !hash && config_.hash_layers && layer.layer.index < *config_.hash_layers) {
    problems.add(fmt::format("\"num_hash_layers\": found {}, so layer {} needs the tensor gate.tid2eid, which is missing; fetch the shard "
                             "that holds it",
                             *config_.hash_layers, layer.layer.label()));
  }
  check_router_numbers(config_, out, layer.router->experts, hash, problems);
  if (!problems.empty()) return bad_input(problems.text());
  return out;
}

}  // namespace monomoe
