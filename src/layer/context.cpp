// Chooses the backend and resolves the numbers of the context.
#include "layer/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "cpu/kernels.hpp"
#include "layer/arguments.hpp"
#include "layer/cuda_probe.hpp"
#include "layer/error_state.hpp"
#include "layer/launch_choice.hpp"
#include "plan/problem.h"

namespace monomoe::layer {
namespace {

constexpr uint32_t kDefaultTimeoutMs = 30000;
constexpr int32_t kMaxThreads = 4096;

Result<int32_t> resolve_vector_bits(int32_t requested) {
  if (requested == 0) return static_cast<int32_t>(cpu::kernels(0).vector_bits);
  if (requested != 128 && requested != 256 && requested != 512) {
    return usage_error(fmt::format("options->vector_bits is {}, wanted 0 (widest), 128, 256 or 512", requested));
  }
  if (!cpu::has_vectors(requested)) {
    return unavailable(fmt::format("options->vector_bits is {}, but this CPU's widest vectors have {} bits; use 0 or at most that",
                                   requested, cpu::kernels(0).vector_bits));
  }
  return requested;
}

// The probe comes first: it can say what is missing where the CUDA runtime only knows that something is.
Result<std::unique_ptr<cuda::Backend>> make_cuda(int32_t ranks) {
  if (std::string reason = cuda_unavailable_reason(probe_cuda()); !reason.empty()) return unavailable(std::move(reason));
  return cuda::make_backend(ranks);
}

Result<void> choose_backend(monomoe_backend asked, monomoe_context& context) {
  context.backend = MONOMOE_BACKEND_CPU;
  context.asked = asked;
  context.why = "cpu was asked for";
  if (asked == MONOMOE_BACKEND_CPU) return {};
  auto made = make_cuda(context.num_ranks);
  if (made) {
    context.backend = MONOMOE_BACKEND_CUDA;
    context.cuda = made.take();
    context.why = fmt::format("{}: {}", asked == MONOMOE_BACKEND_CUDA ? "cuda was asked for" : "auto takes cuda", context.cuda->description());
    return {};
  }
  if (asked == MONOMOE_BACKEND_CUDA) {
    return Error{made.error().status, fmt::format("backend cuda: {}; use backend cpu or auto", made.error().message)};
  }
  context.why = "auto takes cpu: " + made.error().message;
  return {};
}

Result<std::unique_ptr<monomoe_context>> make_context(const monomoe_context_options& options) {
  const int backend = enum_number(options.backend);
  if (backend < MONOMOE_BACKEND_AUTO || backend > MONOMOE_BACKEND_CUDA) {
    return usage_error(fmt::format("options->backend is {}, wanted 0 auto, 1 cpu or 2 cuda", backend));
  }
  if (options.num_ranks < 0 || options.num_ranks > kMaxRanks) {
    return usage_error(fmt::format("options->num_ranks is {}, wanted 1..{} (0 = 1)", options.num_ranks, kMaxRanks));
  }
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return usage_error(fmt::format("options->num_threads is {}, wanted 1..{} (0 = one per core)", options.num_threads, kMaxThreads));
  }
  auto context = std::make_unique<monomoe_context>();
  auto bits = resolve_vector_bits(options.vector_bits);
  if (!bits) return bits.error();
  context->num_ranks = std::max(options.num_ranks, 1);
  if (auto chosen = choose_backend(static_cast<monomoe_backend>(backend), *context); !chosen) return chosen.error();
  auto launch = choose_launch(*context, options.launch, "options");
  if (!launch) return launch.error();
  context->launch = launch.value();
  const int32_t cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  context->num_threads = std::max(options.num_threads == 0 ? cores : options.num_threads, context->num_ranks);
  context->vector_bits = bits.value();
  context->timeout_ms = options.timeout_ms == 0 ? kDefaultTimeoutMs : options.timeout_ms;
  return context;
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_context_create(const monomoe_context_options* options, monomoe_context** context) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_struct(options, "options"); !given) return given;
    if (auto given = require_pointer(context, "context"); !given) return given;
    auto made = make_context(*options);
    if (!made) return made.error();
    *context = made.value().release();
    return {};
  });
}

void monomoe_context_destroy(monomoe_context* context) { delete context; }

monomoe_backend monomoe_context_backend(const monomoe_context* context, const char** why) {
  if (context == nullptr) {
    if (why != nullptr) *why = "context is NULL";
    return MONOMOE_BACKEND_AUTO;
  }
  if (why != nullptr) *why = context->why.c_str();
  return context->backend;
}

}  // extern "C"
