// See cuda_forward.hpp. A refused call is refused here, before any launch; the kernel only meets what is legal, but for ids in GPU memory.
#include "layer/cuda_forward.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "comm/error_record.hpp"
#include "layer/arguments.hpp"

namespace monomoe::layer {
namespace {

constexpr size_t kGpuRowAlignment = 16;

struct NamedPointer {
  const char* name;
  const void* pointer;
  bool is_row;  // read or written 16 bytes at a time
};

std::vector<NamedPointer> pointers_of(const cpu::RankCall& call) {
  return {{"x", call.x, true},
          {"x_scales", call.quantised ? call.x_scales : nullptr, false},
          {"topk_ids", call.topk_ids, false},
          {"topk_weights", call.topk_weights, false},
          {"y", call.y, true},
          {"num_tokens_device", call.num_tokens_device, false}};
}

// Without tokens nothing is read but their count.
bool is_used(const cpu::RankCall& call, const NamedPointer& named) {
  return named.pointer != nullptr && (call.num_tokens != 0 || named.pointer == call.num_tokens_device);
}

std::optional<cpu::Refusal> refuse(int32_t rank, const std::string& text) {
  return cpu::Refusal{usage_error(fmt::format("rank {}: {}", rank, text)), RejectReason::kBadArgument, 0};
}

bool is_gpu(const cuda::MemoryPlace& place) { return place.gpu >= 0 || place.managed; }

// GPU memory must be the rank's own and allow 16-byte accesses.
std::optional<cpu::Refusal> check_place(const monomoe_workspace& workspace, int32_t rank, const NamedPointer& named, bool* on_gpu) {
  auto place = workspace.context->cuda->place(named.pointer);
  if (!place) return cpu::Refusal{place.error(), RejectReason::kBadArgument, 0};
  *on_gpu = is_gpu(place.value());
  if (!*on_gpu) return std::nullopt;
  const int gpu = workspace.cuda->gpu(rank);
  if (place.value().gpu >= 0 && place.value().gpu != gpu) {
    return refuse(rank, fmt::format("{} is memory of GPU {}, the rank runs on GPU {}; copy it there", named.name, place.value().gpu, gpu));
  }
  if (named.is_row && reinterpret_cast<uintptr_t>(named.pointer) % kGpuRowAlignment != 0) {
    return refuse(rank, fmt::format("{} is GPU memory at {}, wanted a multiple of {} bytes; copy it to aligned memory", named.name, named.pointer,
                                    kGpuRowAlignment));
  }
  return std::nullopt;
}

cpu::CallRoom room_of(const monomoe_weights& weights, const monomoe_workspace& workspace) {
  return {weights.problem, weights.placement.max_slots(), workspace.problem, workspace.max_slots};
}

std::optional<cpu::Refusal> check_part(const monomoe_weights& weights, const monomoe_workspace& workspace, int32_t rank,
                                       const cpu::RankCall& call) {
  // Sizes, nulls and alignment to the element first: these need no question to the driver.
  if (auto refusal = cpu::check_call(room_of(weights, workspace), rank, call, false)) return refusal;
  if (reinterpret_cast<uintptr_t>(call.num_tokens_device) % alignof(int64_t) != 0) {
    return refuse(rank, fmt::format("num_tokens_device is not aligned to its element of {} bytes", alignof(int64_t)));
  }
  bool ids_on_gpu = false;
  for (const NamedPointer& named : pointers_of(call)) {
    bool on_gpu = false;
    if (!is_used(call, named)) continue;
    if (auto refusal = check_place(workspace, rank, named, &on_gpu)) return refusal;
    if (named.pointer == call.topk_ids) ids_on_gpu = on_gpu;
  }
  return ids_on_gpu ? std::nullopt : cpu::check_call(room_of(weights, workspace), rank, call, true);
}

cuda::RankCall to_cuda(const cpu::RankCall& call) {
  return {call.num_tokens,   call.x, call.quantised ? call.x_scales : nullptr, call.topk_ids, call.wide_ids,
          call.topk_weights, call.y, call.num_tokens_device};
}

std::vector<Result<void>> reject_all(const monomoe_workspace& workspace, std::span<const RankPart> parts, int32_t refusing) {
  const RankPart& one = parts[refusing];
  const std::string why =
      reject_sentence(one.refusal->reason, one.refusal->value, workspace.problem.capacity, one.weights->problem.experts);
  const Error rejected{Status::kRejected,
                       fmt::format("rank {} refused this call: {}; nothing was computed, the next call may succeed", refusing, why)};
  std::vector<Result<void>> results;
  for (const RankPart& part : parts) results.push_back(part.refusal ? part.refusal->error : rejected);
  return results;
}

Result<void> run_and_tell(monomoe_workspace& workspace, std::span<cuda::Weights* const> weights, std::span<const cuda::RankCall> calls,
                          double* wall) {
  auto ran = workspace.cuda->run(weights, calls, wall);
  if (ran || workspace.cuda->condition()) return ran;
  return Error{ran.error().status, ran.error().message + "; the workspace is poisoned: destroy it and create it anew"};
}

// All or none: if one rank refuses, nothing is launched.
std::vector<Result<void>> run_parts(monomoe_workspace& workspace, std::span<const RankPart> parts, double* wall) {
  std::vector<cuda::Weights*> weights;
  std::vector<cuda::RankCall> calls;
  for (const RankPart& part : parts) {
    if (part.refusal) return reject_all(workspace, parts, static_cast<int32_t>(&part - parts.data()));
    weights.push_back(part.weights->cuda.get());
    calls.push_back(to_cuda(part.call));
  }
  return std::vector<Result<void>>(parts.size(), run_and_tell(workspace, weights, calls, wall));
}

std::optional<cpu::Refusal> check_stream_pointers(const monomoe_workspace& workspace, int32_t rank, const RankPart& part) {
  for (const NamedPointer& named : pointers_of(part.call)) {
    if (!is_used(part.call, named)) continue;
    auto place = workspace.context->cuda->place(named.pointer);
    if (!place) return cpu::Refusal{place.error(), RejectReason::kBadArgument, 0};
    if (is_gpu(place.value())) continue;
    return refuse(rank, fmt::format("{} is host memory; on a stream every pointer must lead to memory of GPU {}: copy it there, or give stream "
                                    "NULL for a call that copies and blocks", named.name, workspace.cuda->gpu(rank)));
  }
  return std::nullopt;
}

}  // namespace

RankPart cuda_part(const monomoe_weights& weights, const monomoe_workspace& workspace, int32_t rank, const Result<cpu::RankCall>& call) {
  if (!call) return {&weights, {}, cpu::Refusal{call.error(), RejectReason::kBadArgument, 0}};
  return {&weights, call.value(), check_part(weights, workspace, rank, call.value())};
}

Result<void> cuda_forward_all(monomoe_workspace& workspace, std::span<const RankPart> parts, double* wall) {
  if (auto fine = check_condition(workspace); !fine) return fine;
  const auto run = [&](std::span<const RankPart> all) { return run_parts(workspace, all, wall); };
  const std::vector<Result<void>> results = workspace.meeting->attend_all(parts, run);
  const Result<void>* failed = nullptr;
  for (const Result<void>& result : results) {
    if (result.ok()) continue;
    if (failed == nullptr || (failed->error().status == Status::kRejected && result.error().status != Status::kRejected)) failed = &result;
  }
  return failed == nullptr ? Result<void>{} : *failed;
}

Result<void> cuda_forward_rank(monomoe_workspace& workspace, int32_t rank, const RankPart& part, double* wall) {
  if (auto fine = check_condition(workspace); !fine) return fine;
  const auto begin = std::chrono::steady_clock::now();
  const auto run = [&](std::span<const RankPart> all) { return run_parts(workspace, all, nullptr); };
  const auto give_up = [&](const Error& cause) { workspace.cuda->poison(cause); };
  auto result = workspace.meeting->attend(rank, part, run, give_up);
  if (wall != nullptr) *wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

namespace {

// A refused rank cannot call the others' launches back: it takes part with nothing, so that theirs are whole. Not if its layer does not fit the
// workspace at all.
bool can_join(const monomoe_workspace& workspace, int32_t rank, const RankPart& part) {
  return !cpu::check_call(room_of(*part.weights, workspace), rank, cpu::RankCall{}, false);
}

}  // namespace

Result<void> cuda_forward_world(monomoe_workspace& workspace, const RankPart& part, double* wall) {
  if (auto fine = check_condition(workspace); !fine) return fine;
  const int32_t rank = workspace.context->only_rank;
  std::vector<cuda::Weights*> weights(workspace.context->num_ranks);
  std::vector<cuda::RankCall> calls(workspace.context->num_ranks);
  weights[rank] = part.weights->cuda.get();
  if (!part.refusal) calls[rank] = to_cuda(part.call);
  if (!part.refusal || can_join(workspace, rank, part)) {
    if (auto ran = run_and_tell(workspace, weights, calls, wall); !ran) return ran;
  }
  return part.refusal ? Result<void>(part.refusal->error) : Result<void>{};
}

Result<void> cuda_enqueue(monomoe_workspace& workspace, int32_t rank, const RankPart& part, void* stream) {
  if (auto fine = check_condition(workspace); !fine) return fine;
  std::optional<cpu::Refusal> refusal = part.refusal ? part.refusal : check_stream_pointers(workspace, rank, part);
  if (!refusal) return workspace.cuda->enqueue(*part.weights->cuda, rank, to_cuda(part.call), stream);
  if (can_join(workspace, rank, part) && !workspace.cuda->is_capturing(rank, stream)) {
    if (auto joined = workspace.cuda->enqueue(*part.weights->cuda, rank, {}, stream); !joined) return joined;
  }
  return refusal->error;
}

}  // namespace monomoe::layer
