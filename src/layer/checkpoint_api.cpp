// Checkpoints through the ABI: open, describe, pack and route a layer.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "layer/layer_rules.hpp"
#include "weights/router.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

std::string place(const LayerWeights& layer) {
  return fmt::format("{}, layer {}", printable(layer.files->directory()), layer.layer.label());
}

Result<void> check_layer_number(int32_t layer) {
  return layer < 0 ? Result<void>(usage_error(fmt::format("layer is {}, wanted 0 or more", layer))) : Result<void>{};
}

// scanned: the experts whose values are checked; null: all.
Result<LayerWeights> load(const monomoe_checkpoint& checkpoint, int32_t layer, bool scan_values, int threads,
                          const std::vector<bool>* scanned = nullptr) {
  if (auto legal = check_layer_number(layer); !legal) return legal.error();
  return checkpoint.files.load_layer(layer, {.scan_values = scan_values, .threads = threads, .scanned_experts = scanned});
}

// The layer with the values checked that this process will pack: all experts, or those of its rank of a world.
Result<LayerWeights> load_to_pack(const monomoe_context& context, const monomoe_checkpoint& checkpoint, int32_t layer,
                                  const monomoe_placement* placement) {
  if (context.only_rank < 0) return load(checkpoint, layer, true, context.num_threads);
  auto unread = load(checkpoint, layer, false, 1);
  if (!unread) return unread;
  auto table = make_placement(placement, static_cast<int64_t>(unread.value().experts.size()), context.num_ranks);
  if (!table) return table.error();
  const std::vector<bool> held = held_experts(context, table.value());
  return load(checkpoint, layer, true, context.num_threads, &held);
}

// Among the ranks of a world: equal for the same layer, and another for each.
uint64_t layer_number(const LayerWeights& layer, bool is_shared) {
  return static_cast<uint64_t>(layer.layer.index) << 2 | (layer.layer.mtp ? 2 : 0) | (is_shared ? 1 : 0);
}

monomoe_layer_info describe(const LayerWeights& layer, const ModelConfig& config) {
  monomoe_layer_info info{};
  info.struct_size = sizeof(info);
  info.format = format_to_abi(layer.format);
  info.hidden = layer.hidden;
  info.intermediate = layer.intermediate;
  info.num_experts = static_cast<int32_t>(layer.experts.size());
  info.topk = static_cast<int32_t>(config.topk.value_or(-1));
  info.has_router = layer.router.has_value();
  info.needs_token_ids = layer.router.has_value() && layer.router->table != nullptr;
  info.has_shared_expert = layer.shared.has_value();
  info.swiglu_limit = config.swiglu_limit.value_or(0.0f);
  info.routed_scaling_factor = config.routed_scaling_factor ? static_cast<float>(*config.routed_scaling_factor) : std::nanf("");
  info.shared_intermediate = layer.shared ? layer.shared->gate.rows : 0;
  return info;
}

Result<void> route_tokens(const monomoe_checkpoint& checkpoint, int32_t layer, const void* x, int64_t num_tokens, const int64_t* token_ids,
                          int64_t* topk_ids, float* topk_weights) {
  if (num_tokens < 0) return usage_error(fmt::format("num_tokens is {}, wanted 0 or more", num_tokens));
  auto loaded = load(checkpoint, layer, false, 1);
  if (!loaded) return loaded.error();
  if (!loaded.value().router) {
    return bad_input(fmt::format("{}: no router (gate.weight); give topk_ids and topk_weights", place(loaded.value())));
  }
  const bool is_hash = loaded.value().router->table != nullptr;
  if (is_hash && token_ids == nullptr && num_tokens != 0) {
    return usage_error(
        fmt::format("{} takes its experts from the token ids: token_ids is NULL, wanted I64 [{}]", place(loaded.value()), num_tokens));
  }
  auto config = checkpoint.files.router_config(loaded.value());
  if (!config) return config.error();
  if (num_tokens == 0) return {};
  if (auto given = require_pointer(x, "x"); !given) return given;
  if (auto given = require_aligned(x, 2, "x"); !given) return given;
  if (auto given = require_pointer(topk_ids, "topk_ids"); !given) return given;
  if (auto given = require_pointer(topk_weights, "topk_weights"); !given) return given;
  const std::span<const uint16_t> rows(static_cast<const uint16_t*>(x), static_cast<size_t>(num_tokens * loaded.value().hidden));
  const std::span<const int64_t> ids =
      is_hash ? std::span<const int64_t>(token_ids, static_cast<size_t>(num_tokens)) : std::span<const int64_t>{};
  auto routing = route(*loaded.value().router, config.value(), rows, num_tokens, ids);
  if (!routing) return Error{routing.error().status, fmt::format("{}: {}", place(loaded.value()), routing.error().message)};
  std::memcpy(topk_ids, routing.value().ids.data(), routing.value().ids.size() * sizeof(int64_t));
  std::memcpy(topk_weights, routing.value().weights.data(), routing.value().weights.size() * sizeof(float));
  return {};
}

Result<void> pack_shared(const monomoe_context& context, const monomoe_checkpoint& checkpoint, int32_t layer, float swiglu_limit,
                         monomoe_weights** weights) {
  auto limit = limit_or_config(swiglu_limit, checkpoint.files.config());
  if (!limit) return limit.error();
  const std::vector<bool> none;
  auto loaded = load(checkpoint, layer, true, context.num_threads, context.only_rank < 0 ? nullptr : &none);
  if (!loaded) return loaded.error();
  if (!loaded.value().shared) {
    return bad_input(fmt::format("{}: has no shared expert; run it without one", place(loaded.value())));
  }
  if (const std::string refusal = shared_expert_refusal(loaded.value()); !refusal.empty()) {
    return bad_input(fmt::format("{}, shared expert: {}", place(loaded.value()), refusal));
  }
  const SourceExpert& shared = *loaded.value().shared;
  auto placement = PlacementTable::even(1, context.num_ranks);
  if (!placement) return placement.error();
  LayerSource source{loaded.value().hidden, shared.gate.rows, loaded.value().shared_format, {&shared, 1}, limit.value(),
                           false,                 layer_number(loaded.value(), true)};
  if (loaded.value().packed_shared != nullptr) source.packed = {&loaded.value().packed_shared, 1};
  auto packed = pack_weights(context, source, placement.take());
  if (!packed) return Error{packed.error().status, fmt::format("{}, shared expert: {}", place(loaded.value()), packed.error().message)};
  if (auto same = loaded.value().files->check_unchanged(); !same) return same.error();
  *weights = packed.value().release();
  return {};
}

}  // namespace

Result<float> limit_or_config(float swiglu_limit, const ModelConfig& config) {
  if (swiglu_limit < 0) return config.swiglu_limit.value_or(0.0f);
  if (auto legal = checked_limit(swiglu_limit); !legal) return legal.error();
  return swiglu_limit;
}

Result<std::unique_ptr<monomoe_weights>> pack_routed(const monomoe_context& context, const LayerWeights& layer, const ModelConfig& config,
                                                     const monomoe_placement* placement, float swiglu_limit) {
  auto limit = limit_or_config(swiglu_limit, config);
  if (!limit) return limit.error();
  if (auto legal = check_rules(layer); !legal) return legal.error();
  auto table = make_placement(placement, static_cast<int64_t>(layer.experts.size()), context.num_ranks);
  if (!table) return table.error();
  const LayerSource source{layer.hidden, layer.intermediate, layer.format, layer.experts, limit.value(), false, layer_number(layer, false), layer.packed};
  auto packed = pack_weights(context, source, table.take());
  if (!packed) return Error{packed.error().status, fmt::format("{}: {}", place(layer), packed.error().message)};
  if (auto same = layer.files->check_unchanged(); !same) return same.error();
  return packed;
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_checkpoint_open(const char* directory, monomoe_checkpoint** checkpoint) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    auto opened = Checkpoint::open(directory);
    if (!opened) return opened.error();
    *checkpoint = new monomoe_checkpoint{opened.take()};
    return {};
  });
}

void monomoe_checkpoint_close(monomoe_checkpoint* checkpoint) { delete checkpoint; }

monomoe_status monomoe_checkpoint_layer_info(const monomoe_checkpoint* checkpoint, int32_t layer, monomoe_layer_info* info) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    if (auto given = require_struct(info, "info"); !given) return given;
    auto loaded = load(*checkpoint, layer, false, 1);
    if (!loaded) return loaded.error();
    const uint32_t struct_size = info->struct_size;
    *info = describe(loaded.value(), checkpoint->files.config());
    info->struct_size = struct_size;
    return {};
  });
}

monomoe_status monomoe_checkpoint_weights(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                          const monomoe_placement* placement, float swiglu_limit, monomoe_weights** weights) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    if (auto given = require_pointer(weights, "weights"); !given) return given;
    auto loaded = load_to_pack(*context, *checkpoint, layer, placement);
    if (!loaded) return loaded.error();
    auto packed = pack_routed(*context, loaded.value(), checkpoint->files.config(), placement, swiglu_limit);
    if (!packed) return packed.error();
    *weights = packed.value().release();
    return {};
  });
}

monomoe_status monomoe_checkpoint_shared_weights(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                                 float swiglu_limit, monomoe_weights** weights) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    if (auto given = require_pointer(weights, "weights"); !given) return given;
    return pack_shared(*context, *checkpoint, layer, swiglu_limit, weights);
  });
}

monomoe_status monomoe_checkpoint_route(const monomoe_checkpoint* checkpoint, int32_t layer, const void* x, int64_t num_tokens,
                                        const int64_t* token_ids, int64_t* topk_ids, float* topk_weights) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    return route_tokens(*checkpoint, layer, x, num_tokens, token_ids, topk_ids, topk_weights);
  });
}

}  // extern "C"
