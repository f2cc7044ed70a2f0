// Chooses the backend and resolves the numbers of the context.
#include "layer/context.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

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
Result<std::unique_ptr<cuda::Backend>> make_cuda(const monomoe_context& context, const monomoe_context_options& options) {
  if (std::string reason = cuda_unavailable_reason(probe_cuda()); !reason.empty()) return unavailable(std::move(reason));
  if (context.only_rank < 0) return cuda::make_backend(context.num_ranks);
  return cuda::make_world_backend({context.num_ranks, context.only_rank, options.gpu - 1, std::max(options.ranks_per_gpu, 1)});
}

Result<void> choose_backend(const monomoe_context_options& options, monomoe_context& context) {
  const auto asked = static_cast<monomoe_backend>(enum_number(options.backend));
  context.backend = MONOMOE_BACKEND_CPU;
  context.asked = asked;
  context.why = "cpu was asked for";
  if (asked == MONOMOE_BACKEND_CPU) return {};
  auto made = make_cuda(context, options);
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

// The fields that make the context one rank of a world.
Result<void> check_world(const monomoe_context_options& options) {
  const std::pair<const char*, int32_t> fields[] = {{"rank", options.rank}, {"gpu", options.gpu}, {"ranks_per_gpu", options.ranks_per_gpu}};
  if (options.world_ranks < 0 || options.world_ranks > kMaxRanks) {
    return usage_error(fmt::format("options->world_ranks is {}, wanted 1..{}, or 0 if all ranks are in this process", options.world_ranks,
                                   kMaxRanks));
  }
  for (const auto& [name, value] : fields) {
    if (options.world_ranks == 0 && value != 0)
      return usage_error(fmt::format("options->{} is {}, but world_ranks is 0; set world_ranks for a context that is one rank of a world", name,
                                     value));
    if (value < 0) return usage_error(fmt::format("options->{} is {}, wanted 0 or more", name, value));
  }
  if (options.world_ranks == 0) return {};
  if (options.rank >= options.world_ranks)
    return usage_error(fmt::format("options->rank is {}, wanted 0..{}: world_ranks is {}", options.rank, options.world_ranks - 1,
                                   options.world_ranks));
  if (options.num_ranks > 1)
    return usage_error(fmt::format("options->num_ranks is {} and world_ranks is {}; a context of a world is one rank: leave num_ranks 0",
                                   options.num_ranks, options.world_ranks));
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
  if (auto legal = check_world(options); !legal) return legal.error();
  auto context = std::make_unique<monomoe_context>();
  auto bits = resolve_vector_bits(options.vector_bits);
  if (!bits) return bits.error();
  const bool is_world = options.world_ranks > 0;
  context->num_ranks = is_world ? options.world_ranks : std::max(options.num_ranks, 1);
  context->only_rank = is_world ? options.rank : -1;
  if (auto chosen = choose_backend(options, *context); !chosen) return chosen.error();
  auto launch = choose_launch(*context, options.launch, "options");
  if (!launch) return launch.error();
  context->launch = launch.value();
  const int32_t cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  context->num_threads = std::max(options.num_threads == 0 ? cores : options.num_threads, is_world ? 1 : context->num_ranks);
  context->vector_bits = bits.value();
  context->timeout_ms = options.timeout_ms == 0 ? kDefaultTimeoutMs : options.timeout_ms;
  return context;
}

}  // namespace

Result<void> require_local(const monomoe_context& context, int32_t rank) {
  if (rank < 0 || rank >= context.num_ranks)
    return usage_error(fmt::format("rank is {}, the context has ranks 0..{}", rank, context.num_ranks - 1));
  if (context.holds(rank)) return {};
  return usage_error(fmt::format("rank is {}, but this context is rank {} of {}", rank, context.only_rank, context.num_ranks));
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_context_create(const monomoe_context_options* options, monomoe_context** context) {
  return guarded([&]() -> Result<void> {
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (auto given = require_pointer(context, "context"); !given) return given;
    auto made = make_context(known.value());
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
