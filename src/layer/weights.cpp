// Checks and packs experts. Every expert is looked at before the handle exists, and a replaced one before the old is touched.
#include "layer/weights.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/machine.hpp"
#include "layer/parallel.hpp"
#include "plan/layer_tag.hpp"
#include "plan/problem_text.hpp"
#include "weights/pack_expert.hpp"
#include "weights/scan.hpp"

namespace monomoe::layer {
namespace {

Result<SourceMatrix> matrix_from_abi(const monomoe_matrix& matrix, std::string_view name) {
  auto format = format_from_abi(matrix.format, fmt::format("{}.format", name));
  if (!format) return format.error();
  auto scale_type = scale_type_from_abi(matrix.scale_type, fmt::format("{}.scale_type", name));
  if (!scale_type) return scale_type.error();
  SourceMatrix source;
  source.format = format.value();
  source.scale_type = scale_type.value();
  source.rows = matrix.rows;
  source.cols = matrix.cols;
  source.codes = static_cast<const uint8_t*>(matrix.codes);
  source.scales = static_cast<const uint8_t*>(matrix.scales);
  source.global_scale = source.format == WeightFormat::kNvfp4 ? matrix.global_scale : 1.0f;
  return source;
}

Result<SourceExpert> expert_from_abi(const monomoe_expert& expert, int64_t index) {
  SourceExpert source;
  const std::pair<const monomoe_matrix*, SourceMatrix*> matrices[] = {
      {&expert.gate, &source.gate}, {&expert.up, &source.up}, {&expert.down, &source.down}};
  constexpr const char* kNames[] = {"gate", "up", "down"};
  for (int m = 0; m < 3; ++m) {
    auto matrix = matrix_from_abi(*matrices[m].first, fmt::format("expert {} {}", index, kNames[m]));
    if (!matrix) return matrix.error();
    *matrices[m].second = matrix.value();
  }
  return source;
}

Result<void> scan_expert(const SourceExpert& expert, int64_t index) {
  const std::pair<const char*, const SourceMatrix*> matrices[] = {{"gate", &expert.gate}, {"up", &expert.up}, {"down", &expert.down}};
  for (const auto& [name, matrix] : matrices) {
    const ScanResult scan = scan_matrix(*matrix);
    if (scan.count == 0) continue;
    const ScanFinding& first = scan.findings.front();
    const char* where = first.where == ScanFinding::Where::kCode    ? "code"
                        : first.where == ScanFinding::Where::kScale ? "scale"
                                                                    : "global scale";
    return bad_input(fmt::format("expert {} {}: {} at {} row {}, column {}{}; quantise the matrix again", index, name, first.what, where,
                                 first.row, first.column, scan.count > 1 ? fmt::format(", and {} more bad values", scan.count - 1) : ""));
  }
  return {};
}

Result<void> check_and_scan(const SourceExpert& expert, const Problem& problem, int64_t index, bool from_caller) {
  if (auto legal = check_expert(expert, problem); !legal) {
    return Error{from_caller ? Status::kUsage : legal.error().status, fmt::format("expert {} {}", index, legal.error().message)};
  }
  return from_caller ? scan_expert(expert, index) : Result<void>{};
}

// Pages are given out when they are first written, so too large a layer would end the process instead of this call.
Result<void> check_memory(const Problem& problem, int64_t experts) {
  const int64_t wanted = experts * expert_layout(problem).bytes;
  const int64_t available = available_memory_bytes();
  if (available < 0 || wanted <= available) return {};
  return unavailable(
      fmt::format("the packed layer needs {} bytes of memory, {} are available; free some or take a larger machine", wanted, available));
}

Result<void> check_count(const monomoe_layer& layer) {
  if (layer.num_experts >= 1 && layer.num_experts <= kMaxExperts) return {};
  return usage_error(fmt::format("layer->num_experts is {}, wanted 1..{}", layer.num_experts, kMaxExperts));
}

// Numbers of the experts that are true in held.
std::vector<int64_t> numbers(const std::vector<bool>& held) {
  std::vector<int64_t> list;
  for (size_t e = 0; e < held.size(); ++e) {
    if (held[e]) list.push_back(static_cast<int64_t>(e));
  }
  return list;
}

Result<std::vector<SourceExpert>> experts_from_abi(const monomoe_layer& layer, const std::vector<bool>& held) {
  const std::vector<int64_t> list = numbers(held);
  std::vector<SourceExpert> experts(held.size());
  if (list.empty()) return experts;
  if (auto given = require_pointer(layer.experts, "layer->experts"); !given) return given.error();
  for (const int64_t e : list) {
    auto expert = expert_from_abi(layer.experts[e], e);
    if (!expert) return expert.error();
    experts[e] = expert.value();
  }
  return experts;
}

// All experts of a layer have one format; a rank without experts needs none, so any stands for it.
WeightFormat format_of(std::span<const SourceExpert> experts, const std::vector<bool>& held) {
  const std::vector<int64_t> list = numbers(held);
  return list.empty() ? WeightFormat::kFp8 : experts[list.front()].gate.format;
}

// For each held expert; the caller's pack or check.
template <class Body>
Result<void> for_each_held(const monomoe_context& context, const std::vector<int64_t>& held, Body body) {
  return parallel_for(static_cast<int64_t>(held.size()), context.num_threads, [&](int64_t i) { return body(held[i]); });
}

Result<void> pack_for_cpu(const LayerSource& source, const std::vector<int64_t>& held, uint64_t tag, monomoe_weights& weights) {
  if (auto enough = check_memory(weights.problem, static_cast<int64_t>(held.size())); !enough) return enough;
  const int32_t only_rank = weights.context->only_rank;
  auto made = only_rank < 0 ? cpu::CpuWeights::create(weights.problem, weights.placement, weights.swiglu_limit)
                            : cpu::CpuWeights::create_for_rank(weights.problem, weights.placement, weights.swiglu_limit, only_rank, tag);
  if (!made) return made.error();
  weights.cpu.emplace(made.take());
  return for_each_held(*weights.context, held, [&](int64_t e) -> Result<void> {
    uint8_t* data = weights.cpu->expert_data(static_cast<int32_t>(e));
    if (source.packed.empty()) return pack_expert(source.experts[e], weights.problem, data);
    std::memcpy(data, source.packed[e], static_cast<size_t>(weights.cpu->layout().bytes));
    return {};
  });
}

// One expert's packed form is in host memory at a time, for each thread.
Result<void> pack_and_upload(const SourceExpert& expert, int64_t index, monomoe_weights& weights) {
  std::vector<uint8_t> packed(static_cast<size_t>(expert_layout(weights.problem).bytes));
  if (auto done = pack_expert(expert, weights.problem, packed.data()); !done) return done;
  return weights.cuda->upload(static_cast<int32_t>(index), packed.data());
}

Result<void> pack_for_cuda(const LayerSource& source, const std::vector<int64_t>& held, uint64_t tag, monomoe_weights& weights) {
  const uint64_t layer_tag = weights.context->only_rank < 0 ? unique_layer_tag() : tag;
  auto made = weights.context->cuda->make_weights(weights.problem, weights.placement, weights.swiglu_limit, layer_tag);
  if (!made) return made.error();
  weights.cuda = made.take();
  return for_each_held(*weights.context, held, [&](int64_t e) {
    if (source.packed.empty()) return pack_and_upload(source.experts[e], e, weights);
    return weights.cuda->upload(static_cast<int32_t>(e), source.packed[e]);
  });
}

Result<void> check_single_copies(const PlacementView& view, int32_t rank) {
  for (int32_t slot = view.slot_begin[rank]; slot < view.slot_begin[rank + 1]; ++slot) {
    const int32_t expert = view.slot_expert[slot];
    const int32_t copies = view.copy_begin[expert + 1] - view.copy_begin[expert];
    if (copies == 1) continue;
    return usage_error(
        fmt::format("expert {} of rank {} has {} copies, and bytes written to one would leave the others behind; number copies as "
                    "experts of their own, or replace the expert",
                    expert, rank, copies));
  }
  return {};
}

}  // namespace

Result<float> checked_limit(float swiglu_limit) {
  if (std::isnan(swiglu_limit) || swiglu_limit < 0) {
    return usage_error(fmt::format("swiglu_limit is {}, wanted a positive number, or 0 for no clamp", swiglu_limit));
  }
  return swiglu_limit == 0 ? std::numeric_limits<float>::infinity() : swiglu_limit;
}

Result<PlacementTable> make_placement(const monomoe_placement* placement, int64_t experts, int64_t ranks) {
  if (placement == nullptr) return PlacementTable::even(experts, ranks);
  if (auto count = PlacementTable::check_count(experts, ranks, placement->count); !count) return count.error();
  const std::pair<const int32_t*, std::string_view> arrays[] = {
      {placement->expert, "placement->expert"}, {placement->rank, "placement->rank"}, {placement->slot, "placement->slot"}};
  for (const auto& [array, argument] : arrays) {
    if (auto given = require_pointer(array, argument); !given) return given.error();
    if (auto aligned = require_aligned(array, alignof(int32_t), argument); !aligned) return aligned.error();
  }
  std::vector<PlacementEntry> entries;
  for (int64_t i = 0; i < placement->count; ++i) entries.push_back({placement->expert[i], placement->rank[i], placement->slot[i]});
  return PlacementTable::from_entries(experts, ranks, entries);
}

std::vector<bool> held_experts(const monomoe_context& context, const PlacementTable& placement) {
  std::vector<bool> held(static_cast<size_t>(placement.experts()), context.only_rank < 0);
  for (int32_t e = 0; e < placement.experts() && context.only_rank >= 0; ++e) held[e] = placement.view().has_copy(e, context.only_rank);
  return held;
}

Result<std::unique_ptr<monomoe_weights>> pack_weights(const monomoe_context& context, const LayerSource& source, PlacementTable placement) {
  Problem problem;
  problem.hidden = source.hidden;
  problem.intermediate = source.intermediate;
  problem.experts = static_cast<int64_t>(source.experts.size());
  problem.topk = 1;  // the workspace's business; any legal number stands for it here
  problem.ranks = context.num_ranks;
  problem.weights = source.format;
  if (auto legal = check(problem); !legal) return legal.error();
  auto limit = checked_limit(source.swiglu_limit);
  if (!limit) return limit.error();
  const std::vector<int64_t> held = numbers(held_experts(context, placement));
  const auto check_item = [&](int64_t e) { return check_and_scan(source.experts[e], problem, e, source.from_caller); };
  if (source.packed.empty()) {
    if (auto legal = for_each_held(context, held, check_item); !legal) return legal.error();
  }
  const uint64_t tag = world_layer_tag(problem, placement, limit.value(), source.tag);
  auto weights = std::make_unique<monomoe_weights>(monomoe_weights{&context, problem, std::move(placement), limit.value(), {}, {}});
  auto packed = context.cuda != nullptr ? pack_for_cuda(source, held, tag, *weights) : pack_for_cpu(source, held, tag, *weights);
  if (!packed) return packed.error();
  return weights;
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_weights_create(monomoe_context* context, const monomoe_layer* layer, monomoe_weights** weights) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    auto known = read_struct(layer, "layer");
    if (!known) return known.error();
    if (auto given = require_pointer(weights, "weights"); !given) return given;
    const monomoe_layer& given = known.value();
    if (auto legal = check_count(given); !legal) return legal;
    auto placement = make_placement(given.placement, given.num_experts, context->num_ranks);
    if (!placement) return placement.error();
    const std::vector<bool> held = held_experts(*context, placement.value());
    auto experts = experts_from_abi(given, held);
    if (!experts) return experts.error();
    const LayerSource source{given.hidden,         given.intermediate, format_of(experts.value(), held), experts.value(),
                             given.swiglu_limit, true,               given.tag};
    auto packed = pack_weights(*context, source, placement.take());
    if (!packed) return packed.error();
    *weights = packed.value().release();
    return {};
  });
}

void monomoe_weights_destroy(monomoe_weights* weights) { delete weights; }

monomoe_status monomoe_weights_replace_expert(monomoe_weights* weights, int32_t expert, const monomoe_expert* source) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(weights, "weights"); !given) return given;
    if (auto given = require_pointer(source, "source"); !given) return given;
    const Problem& problem = weights->problem;
    if (expert < 0 || expert >= problem.experts)
      return usage_error(fmt::format("expert is {}, the layer has experts 0..{}", expert, problem.experts - 1));
    if (!held_experts(*weights->context, weights->placement)[expert])
      return usage_error(fmt::format("expert {} is not placed on rank {}, which this context is; replace it on the ranks that hold it", expert,
                                     weights->context->only_rank));
    auto matrices = expert_from_abi(*source, expert);
    if (!matrices) return matrices.error();
    if (auto legal = check_and_scan(matrices.value(), problem, expert, true); !legal) return legal;
    // Packed aside first: whatever goes wrong, the old expert is whole.
    if (weights->cuda != nullptr) return pack_and_upload(matrices.value(), expert, *weights);
    const int64_t bytes = weights->cpu->layout().bytes;
    std::vector<uint8_t> packed(static_cast<size_t>(bytes));
    if (auto done = pack_expert(matrices.value(), problem, packed.data()); !done) return done;
    std::memcpy(weights->cpu->expert_data(expert), packed.data(), packed.size());
    return {};
  });
}

monomoe_status monomoe_weights_packed_experts(monomoe_weights* weights, int32_t rank, monomoe_packed_experts* packed) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(weights, "weights"); !given) return given;
    if (auto given = require_struct(packed, "packed"); !given) return given;
    if (auto local = require_local(*weights->context, rank); !local) return local;
    const PlacementView view = weights->placement.view();
    if (auto single = check_single_copies(view, rank); !single) return single;
    const bool on_gpu = weights->cuda != nullptr;
    packed->num_experts = view.num_slots(rank);
    packed->gpu = on_gpu ? weights->cuda->gpu(rank) : -1;
    packed->data = nullptr;
    if (packed->num_experts > 0) {
      const int32_t first = view.slot_expert[view.slot_begin[rank]];
      packed->data = on_gpu ? weights->cuda->slots(rank) : weights->cpu->expert_data(first);
    }
    packed->expert_bytes = expert_layout(weights->problem).bytes;
    return {};
  });
}

int32_t monomoe_weights_max_local_experts(const monomoe_weights* weights) {
  return weights == nullptr ? 0 : weights->placement.max_slots();
}

}  // extern "C"
