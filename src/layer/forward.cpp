// monomoe_forward and monomoe_forward_rank. Values and sizes are checked by the executor; here only what the C structs add.
#include "layer/forward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/executor.hpp"
#include "layer/arguments.hpp"
#include "layer/cuda_forward.hpp"
#include "layer/error_state.hpp"

namespace monomoe::layer {
namespace {

Result<void> check_handles(const monomoe_weights* weights, const monomoe_workspace* workspace) {
  if (auto given = require_pointer(weights, "weights"); !given) return given;
  if (auto given = require_pointer(workspace, "workspace"); !given) return given;
  if (weights->context != workspace->context)
    return usage_error("weights and workspace belong to different contexts; create both from one");
  return {};
}

Result<void> check_times(const monomoe_times* times) { return times == nullptr ? Result<void>{} : require_struct(times, "times"); }

void write_times(const cpu::StageTimes& times, monomoe_times* out) {
  if (out == nullptr) return;
  out->wall = times.wall;
  out->dispatch = times.dispatch;
  out->routes = times.routes;
  out->gemm1 = times.gemm1;
  out->gemm2 = times.gemm2;
  out->combine = times.combine;
  out->wait = times.wait;
}

Result<void> forward_rank_cpu(const monomoe_weights& weights, monomoe_workspace& workspace, int32_t rank, Result<cpu::RankCall> call,
                              const void* stream, cpu::StageTimes& times) {
  const monomoe_context& context = *workspace.context;
  cpu::RunOptions options = run_options(context);
  const int32_t ranks_here = context.only_rank < 0 ? context.num_ranks : 1;
  options.threads = std::max(1, context.num_threads / ranks_here + (rank % ranks_here < context.num_threads % ranks_here ? 1 : 0));
  if (call && stream != nullptr) call = usage_error("stream is not NULL; the CPU backend blocks and has no streams");
  if (call) return cpu::run_rank(*weights.cpu, *workspace.cpu, rank, call.value(), options, &times);
  // The other ranks are waiting for this one: a call that the executor refuses tells them.
  cpu::RankCall refused;
  refused.num_tokens = -1;
  const Result<void> told = cpu::run_rank(*weights.cpu, *workspace.cpu, rank, refused, options, nullptr);
  return !told && told.error().status == Status::kPoisoned ? told.error() : call.error();
}

Result<void> forward_rank_cuda(const monomoe_weights& weights, monomoe_workspace& workspace, int32_t rank, const Result<cpu::RankCall>& call,
                               void* stream, cpu::StageTimes& times) {
  const RankPart part = cuda_part(weights, workspace, rank, call);
  if (stream != nullptr) return cuda_enqueue(workspace, rank, part, stream);
  return workspace.context->only_rank < 0 ? cuda_forward_rank(workspace, rank, part, &times.wall)
                                          : cuda_forward_world(workspace, part, &times.wall);
}

// A count in GPU memory is read by a launch on a stream; a call that blocks knows its count.
Result<cpu::RankCall> blocking_call(Result<cpu::RankCall> call, int32_t rank) {
  if (!call || call.value().num_tokens_device == nullptr) return call;
  return usage_error(fmt::format("tokens of rank {}: num_tokens_device is set in a call that blocks; it needs backend cuda and a stream: give "
                                 "num_tokens instead", rank));
}

}  // namespace

Result<cpu::RankCall> call_from_abi(const monomoe_tokens* tokens, int32_t rank) {
  const std::string name = fmt::format("tokens of rank {}", rank);
  auto known = read_struct(tokens, name);
  if (!known) return known.error();
  tokens = &known.value();
  const int x_dtype = enum_number(tokens->x_dtype);
  const int ids_dtype = enum_number(tokens->ids_dtype);
  cpu::RankCall call;
  call.num_tokens = tokens->num_tokens;
  if (tokens->num_tokens != 0) {
    if (x_dtype != MONOMOE_DTYPE_BF16 && x_dtype != MONOMOE_DTYPE_E4M3) {
      return usage_error(fmt::format("{}: x_dtype is {}, wanted 0 (bf16) or 4 (e4m3 with x_scales)", name, x_dtype));
    }
    if (ids_dtype != MONOMOE_DTYPE_I32 && ids_dtype != MONOMOE_DTYPE_I64) {
      return usage_error(fmt::format("{}: ids_dtype is {}, wanted 2 (i32) or 3 (i64)", name, ids_dtype));
    }
  }
  call.x = tokens->x;
  call.quantised = x_dtype == MONOMOE_DTYPE_E4M3;
  call.x_scales = tokens->x_scales;
  call.topk_ids = tokens->topk_ids;
  call.wide_ids = ids_dtype == MONOMOE_DTYPE_I64;
  call.topk_weights = tokens->topk_weights;
  call.y = static_cast<uint16_t*>(tokens->y);
  call.num_tokens_device = tokens->num_tokens_device;
  return call;
}

cpu::RunOptions run_options(const monomoe_context& context) {
  return {&cpu::kernels(context.vector_bits), context.num_threads, context.timeout_ms};
}

Result<void> forward_all(const monomoe_weights& weights, monomoe_workspace& workspace, const monomoe_tokens* tokens,
                         cpu::StageTimes* times) {
  std::vector<cpu::RankCall> calls;
  std::vector<RankPart> parts;
  const auto* next = reinterpret_cast<const unsigned char*>(tokens);
  for (int32_t rank = 0; rank < workspace.context->num_ranks; ++rank) {
    const auto* one = reinterpret_cast<const monomoe_tokens*>(next);
    auto call = blocking_call(call_from_abi(one, rank), rank);
    if (!call) return call.error();
    if (one->struct_size % alignof(monomoe_tokens) != 0) {
      return usage_error(fmt::format("tokens of rank {}: struct_size is {}, wanted sizeof(monomoe_tokens)", rank, one->struct_size));
    }
    if (workspace.cuda != nullptr) parts.push_back(cuda_part(weights, workspace, rank, call));
    else calls.push_back(call.take());
    next += one->struct_size;  // a caller with a later header has longer elements
  }
  if (workspace.cuda != nullptr) return cuda_forward_all(workspace, parts, times != nullptr ? &times->wall : nullptr);
  return cpu::run_all(*weights.cpu, *workspace.cpu, calls, run_options(*workspace.context), times);
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_forward(const monomoe_weights* weights, monomoe_workspace* workspace, const monomoe_tokens* tokens,
                               monomoe_times* times) {
  return guarded([&]() -> Result<void> {
    if (auto given = check_handles(weights, workspace); !given) return given;
    if (auto given = require_pointer(tokens, "tokens"); !given) return given;
    if (auto given = check_times(times); !given) return given;
    if (const int32_t only = workspace->context->only_rank; only >= 0)
      return usage_error(fmt::format("monomoe_forward runs all ranks, but this context is rank {} of {}; call monomoe_forward_rank", only,
                                     workspace->context->num_ranks));
    cpu::StageTimes stage_times;
    if (auto ran = forward_all(*weights, *workspace, tokens, &stage_times); !ran) return ran;
    write_times(stage_times, times);
    return {};
  });
}

monomoe_status monomoe_forward_rank(const monomoe_weights* weights, monomoe_workspace* workspace, int32_t rank,
                                    const monomoe_tokens* tokens, void* stream, monomoe_times* times) {
  return guarded([&]() -> Result<void> {
    if (auto given = check_handles(weights, workspace); !given) return given;
    const monomoe_context& context = *workspace->context;
    if (auto local = require_local(context, rank); !local) return local;
    Result<cpu::RankCall> call = call_from_abi(tokens, rank);
    if (stream == nullptr || context.cuda == nullptr) call = blocking_call(std::move(call), rank);
    if (auto given = check_times(times); call && !given) call = given.error();
    cpu::StageTimes stage_times;
    const auto ran = context.cuda != nullptr ? forward_rank_cuda(*weights, *workspace, rank, call, stream, stage_times)
                                             : forward_rank_cpu(*weights, *workspace, rank, call, stream, stage_times);
    if (!ran) return ran;
    write_times(stage_times, times);
    return {};
  });
}

}  // extern "C"
