#include "cpu/executor_check.hpp"

#include <fmt/format.h>

#include <string>

namespace monomoe::cpu {
namespace {

Refusal bad_argument(int32_t rank, const std::string& text) {
  return {usage_error(fmt::format("rank {}: {}", rank, text)), RejectReason::kBadArgument, 0};
}

// The layer must fit the memory that was laid out for the largest one.
std::optional<Refusal> check_fit(const CallRoom& call_room, int32_t rank) {
  const Problem& layer = call_room.layer;
  const Problem& room = call_room.workspace;
  const auto differs = [&](const char* what, int64_t found, int64_t wanted) {
    return bad_argument(rank, fmt::format("the layer has {} {}, the workspace was made for {}; make one for this layer", what, found, wanted));
  };
  if (layer.hidden != room.hidden) return differs("hidden size", layer.hidden, room.hidden);
  if (layer.ranks != room.ranks) return differs("ranks:", layer.ranks, room.ranks);
  if (layer.intermediate > room.intermediate) return differs("intermediate size", layer.intermediate, room.intermediate);
  if (call_room.layer_slots > call_room.workspace_slots) {
    return differs("experts on one rank:", call_room.layer_slots, call_room.workspace_slots);
  }
  return std::nullopt;
}

bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

std::optional<Refusal> check_pointer(int32_t rank, const char* name, const void* pointer, size_t alignment) {
  if (pointer == nullptr) return bad_argument(rank, fmt::format("{} is null although there are tokens", name));
  if (!aligned(pointer, alignment)) return bad_argument(rank, fmt::format("{} is not aligned to its element of {} bytes", name, alignment));
  return std::nullopt;
}

std::optional<Refusal> check_pointers(int32_t rank, const RankCall& call) {
  if (auto refusal = check_pointer(rank, "x", call.x, call.quantised ? 1 : 2)) return refusal;
  if (call.quantised) {
    if (auto refusal = check_pointer(rank, "x_scales", call.x_scales, 4)) return refusal;
  }
  if (auto refusal = check_pointer(rank, "topk_ids", call.topk_ids, call.wide_ids ? 8 : 4)) return refusal;
  if (auto refusal = check_pointer(rank, "topk_weights", call.topk_weights, 4)) return refusal;
  return check_pointer(rank, "y", call.y, 2);
}

template <class Id>
std::optional<Refusal> check_ids(int32_t rank, const RankCall& call, int64_t topk, int64_t experts) {
  const Id* ids = static_cast<const Id*>(call.topk_ids);
  for (int64_t i = 0; i < call.num_tokens * topk; ++i) {
    if (static_cast<int64_t>(ids[i]) < experts) continue;
    const std::string text = fmt::format("rank {}: expert id {} of token {}, slot {} is not below {}; use a negative id to drop a slot",
                                         rank, ids[i], i / topk, i % topk, experts);
    return Refusal{usage_error(text), RejectReason::kBadExpertId, static_cast<uint64_t>(ids[i])};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_call(const CallRoom& call_room, int32_t rank, const RankCall& call, bool look_at_ids) {
  if (auto refusal = check_fit(call_room, rank)) return refusal;
  const Problem& room = call_room.workspace;
  if (call.num_tokens < 0) return bad_argument(rank, fmt::format("num_tokens is {}; it must not be negative", call.num_tokens));
  if (call.num_tokens > room.capacity) {
    const std::string text = fmt::format("rank {}: {} tokens exceed the capacity of {}; bring fewer or create the workspace with a larger one",
                                         rank, call.num_tokens, room.capacity);
    return Refusal{usage_error(text), RejectReason::kTooManyTokens, static_cast<uint64_t>(call.num_tokens)};
  }
  if (call.num_tokens == 0) return std::nullopt;
  if (auto refusal = check_pointers(rank, call)) return refusal;
  if (!look_at_ids) return std::nullopt;
  const int64_t experts = call_room.layer.experts;
  return call.wide_ids ? check_ids<int64_t>(rank, call, room.topk, experts) : check_ids<int32_t>(rank, call, room.topk, experts);
}

std::optional<Refusal> check_call(const CpuWeights& weights, const CpuWorkspace& workspace, int32_t rank, const RankCall& call,
                                  const RunOptions& options) {
  if (options.kernels == nullptr) return bad_argument(rank, "no kernels were given");
  return check_call({weights.problem(), weights.placement().max_slots(), workspace.problem(), workspace.max_slots()}, rank, call, true);
}

}  // namespace monomoe::cpu
