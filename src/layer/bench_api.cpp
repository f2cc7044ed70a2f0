// monomoe_bench_*: arguments checked, the layer made, one row measured.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layer/arguments.hpp"
#include "layer/bench.hpp"
#include "layer/error_state.hpp"
#include "layer/launch_choice.hpp"
#include "layer/machine.hpp"
#include "layer/parallel.hpp"
#include "plan/problem_text.hpp"
#include "reference/case_line.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

namespace monomoe::layer {
namespace {

constexpr int kDistinct = 2;
constexpr int kMaxRepeats = 10000;
constexpr double kCheckedFlops = 4e9;  // what the CPU backend does in a moment

Result<Problem> problem_of(const monomoe_context& context, const monomoe_bench_layer& layer) {
  auto format = format_from_abi(layer.format, "layer->format");
  if (!format) return format.error();
  const Problem problem{layer.hidden, layer.intermediate, layer.experts, layer.topk, context.num_ranks, layer.capacity, format.value()};
  if (auto legal = check(problem); !legal) return legal.error();
  if (layer.capacity < 1) return usage_error("layer->capacity is 0; a benchmark needs a token: give at least 1");
  if (layer.topk > layer.experts)
    return usage_error(fmt::format("layer->topk is {} and layer->experts {}; a benchmark's tokens have experts that differ: give at least as many", layer.topk, layer.experts));
  // Two experts are made on the host, by each process; backend cpu keeps all of them there.
  const auto expert = static_cast<double>(expert_layout(problem).bytes);
  const int32_t processes = context.only_rank < 0 ? 1 : context.num_ranks;
  const double wanted = 2 * kDistinct * expert * processes + (context.cuda == nullptr ? expert * static_cast<double>(problem.experts) : 0);
  const double there = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (wanted > there)
    return unavailable(fmt::format("the experts of this benchmark need about {:.0f} GB of host memory, the machine has {:.0f} GB; give fewer or smaller experts", wanted * 1e-9, there * 1e-9));
  return problem;
}

// Random experts in parallel over their matrices, which take longest.
Result<void> make_distinct(monomoe_bench& bench) {
  const Problem& p = bench.problem;
  std::vector<RandomMatrix> matrices(3 * kDistinct);
  const auto make = [&](int64_t i) -> Result<void> {
    const bool down = i % 3 == 2;
    matrices[i] = random_matrix(p.weights, down ? p.hidden : p.intermediate, down ? p.intermediate : p.hidden, bench.seed, static_cast<uint64_t>(i));
    return {};
  };
  if (auto done = parallel_for(3 * kDistinct, bench.context->num_threads, make); !done) return done;
  bench.distinct.resize(kDistinct);
  return parallel_for(kDistinct, bench.context->num_threads, [&](int64_t e) {
    bench.distinct[e].resize(expert_layout(p).bytes);
    return pack_expert({matrices[3 * e].matrix, matrices[3 * e + 1].matrix, matrices[3 * e + 2].matrix}, p, bench.distinct[e].data());
  });
}

Result<void> check_world(const monomoe_context& context, const monomoe_world* world) {
  if (world == nullptr && context.only_rank >= 0)
    return usage_error(fmt::format("monomoe_bench_create runs all ranks, but the context is rank {} of {}; call monomoe_world_bench_create", context.only_rank,
                                   context.num_ranks));
  if (world != nullptr && (context.only_rank != world->world->rank() || context.num_ranks != world->world->ranks()))
    return usage_error(fmt::format("the context is {}, but this is rank {} of {}; create it with the options that monomoe_world_place completed",
                                   context.only_rank < 0 ? "all ranks of a process" : fmt::format("rank {} of {}", context.only_rank, context.num_ranks),
                                   world->world->rank(), world->world->ranks()));
  return {};
}

Result<std::unique_ptr<monomoe_bench>> make_bench(const monomoe_context& context, const monomoe_bench_layer& layer, monomoe_world* world) {
  if (auto fits = check_world(context, world); !fits) return fits.error();
  if (world != nullptr) {
    if (auto same = require_same_layer(*world->world, layer); !same) return same.error();
  }
  auto problem = problem_of(context, layer);
  if (!problem) return problem.error();
  if (auto limit = checked_limit(layer.swiglu_limit); !limit) return limit.error();
  auto bench = std::make_unique<monomoe_bench>();
  bench->context = &context;
  bench->world = world;
  bench->problem = problem.value();
  bench->seed = layer.seed;
  if (auto made = make_distinct(*bench); !made) return made.error();
  auto placement = PlacementTable::even(layer.experts, context.num_ranks);
  if (!placement) return placement.error();
  const std::vector<SourceExpert> no_matrices(layer.experts);
  std::vector<const uint8_t*> packed;
  for (int64_t e = 0; e < layer.experts; ++e) packed.push_back(bench->distinct[e % kDistinct].data());
  LayerSource source;
  source.hidden = layer.hidden;
  source.intermediate = layer.intermediate;
  source.format = problem.value().weights;
  source.experts = no_matrices;
  source.swiglu_limit = layer.swiglu_limit;
  source.from_caller = false;
  source.packed = packed;
  auto weights = pack_weights(context, source, placement.take());
  if (!weights) return weights.error();
  bench->weights = weights.take();
  return bench;
}

Result<cuda::BenchMode> mode_of(const monomoe_context& context, const monomoe_bench_mode& field) {
  switch (const int number = enum_number(field); number) {
    case MONOMOE_BENCH_COLD:
      return cuda::BenchMode::kCold;
    case MONOMOE_BENCH_GRAPH: {
      if (context.cuda != nullptr) return cuda::BenchMode::kGraph;
      const std::string sentence = fmt::format("call->mode is graph, which backend cuda alone has ({}); use mode cold or back-to-back, or backend cuda", context.why);
      return context.asked == MONOMOE_BACKEND_CPU ? usage_error(sentence) : unavailable(sentence);
    }
    case MONOMOE_BENCH_BACK_TO_BACK:
      return cuda::BenchMode::kBackToBack;
    default:
      return usage_error(fmt::format("call->mode is {}, wanted a monomoe_bench_mode: 0 cold, 1 graph, 2 back-to-back", number));
  }
}

Result<Routing> routing_of(const Problem& p, const monomoe_bench_call& call) {
  const double value = call.routing_value;
  switch (const int number = enum_number(call.routing); number) {
    case MONOMOE_ROUTING_UNIFORM:
      if (value != 0) return usage_error(fmt::format("call->routing_value is {}, but uniform routing has none; set it 0", value));
      return Routing{RoutingKind::kUniform, 0};
    case MONOMOE_ROUTING_ZIPF:
      if (!(value >= 0) || std::isinf(value)) return usage_error(fmt::format("call->routing_value is {}, wanted Zipf's exponent, a number from 0", value));
      return Routing{RoutingKind::kZipf, value};
    case MONOMOE_ROUTING_HOT:
      if (!(value >= 0 && value <= 1)) return usage_error(fmt::format("call->routing_value is {}, wanted the hot expert's share of the tokens, 0 to 1", value));
      if (p.experts <= p.topk)
        return usage_error(fmt::format("hot routing keeps the other tokens off one expert; with {} experts and top-{} that cannot be: give more experts", p.experts, p.topk));
      return Routing{RoutingKind::kHot, value};
    default:
      return usage_error(fmt::format("call->routing is {}, wanted a monomoe_bench_routing: 0 uniform, 1 zipf, 2 hot", number));
  }
}

// Of each rank.
Result<std::vector<int64_t>> tokens_of(const Problem& p, const monomoe_bench_call& call) {
  if (call.tokens_per_rank == nullptr) {
    if (call.num_tokens < 1 || call.num_tokens > p.capacity)
      return usage_error(fmt::format("call->num_tokens is {}, wanted 1..{}, the capacity", call.num_tokens, p.capacity));
    return std::vector<int64_t>(p.ranks, call.num_tokens);
  }
  if (auto aligned = require_aligned(call.tokens_per_rank, alignof(int64_t), "call->tokens_per_rank"); !aligned) return aligned.error();
  if (call.num_tokens != 0) return usage_error(fmt::format("call->num_tokens is {}, but call->tokens_per_rank is set; leave it 0", call.num_tokens));
  const std::vector<int64_t> tokens(call.tokens_per_rank, call.tokens_per_rank + p.ranks);
  for (int32_t rank = 0; rank < p.ranks; ++rank) {
    if (tokens[rank] < 0 || tokens[rank] > p.capacity)
      return usage_error(fmt::format("call->tokens_per_rank[{}] is {}, wanted 0..{}, the capacity", rank, tokens[rank], p.capacity));
  }
  if (std::ranges::max(tokens) == 0) return usage_error("call->tokens_per_rank is 0 on all ranks; a benchmark needs a token");
  return tokens;
}

Result<BenchCall> call_of(const monomoe_bench& bench, const monomoe_bench_call& given) {
  BenchCall call;
  auto tokens = tokens_of(bench.problem, given);
  if (!tokens) return tokens.error();
  if (given.repeats < 0 || given.repeats > kMaxRepeats)
    return usage_error(fmt::format("call->repeats is {}, wanted 1..{} (0 = {})", given.repeats, kMaxRepeats, kDefaultRepeats));
  if (given.check != 0 && given.check != 1) return usage_error(fmt::format("call->check is {}, wanted 0 or 1", given.check));
  auto launch = choose_launch(*bench.context, given.launch, "call");
  if (!launch) return launch.error();
  auto mode = mode_of(*bench.context, given.mode);
  if (!mode) return mode.error();
  auto routing = routing_of(bench.problem, given);
  if (!routing) return routing.error();
  call.tokens = tokens.take();
  call.launch = launch.value();
  call.mode = mode.value();
  call.routing = routing.value();
  call.repeats = given.repeats == 0 ? kDefaultRepeats : given.repeats;
  call.check = given.check == 1;
  return call;
}

monomoe_launch to_abi(cuda::LaunchVariant launch) {
  switch (launch) {
    case cuda::LaunchVariant::kOne:
      return MONOMOE_LAUNCH_ONE;
    case cuda::LaunchVariant::kSplit:
      return MONOMOE_LAUNCH_SPLIT;
    case cuda::LaunchVariant::kUnfused:
      break;
  }
  return MONOMOE_LAUNCH_UNFUSED;
}

Result<void> prepare_workspace(monomoe_bench& bench, cuda::LaunchVariant launch) {
  if (bench.workspace != nullptr && bench.launch == launch) return {};
  bench.workspace.reset();  // before the next one takes its memory
  bench.memory.reset();
  monomoe_workspace_options options{};
  options.struct_size = sizeof(options);
  options.topk = static_cast<int32_t>(bench.problem.topk);
  options.hidden = bench.problem.hidden;
  options.max_intermediate = bench.problem.intermediate;
  options.max_experts = bench.weights->placement.max_slots();
  options.capacity = bench.problem.capacity;
  options.launch = to_abi(launch);
  if (bench.world != nullptr) {
    int64_t bytes = 0;
    if (const monomoe_status status = monomoe_symmetric_bytes(bench.context, &options, &bytes); status != MONOMOE_OK)
      return Error{static_cast<Status>(status), monomoe_last_error()};
    const bool is_gpu = bench.context->cuda != nullptr;
    auto memory = make_world_memory(*bench.world, is_gpu, is_gpu ? bench.context->cuda->gpu(bench.first_rank()) : -1, bytes);
    if (!memory) return memory.error();
    bench.memory = memory.take();
    options.peers = bench.memory->peers.data();
  }
  auto made = make_workspace(*bench.context, options);
  if (!made) return made.error();
  bench.workspace = made.take();
  bench.launch = launch;
  return {};
}

// Rows in and out of the first and the last run, of all ranks, who are on one machine.
Result<void> check_memory(const Problem& p, std::span<const int64_t> tokens) {
  const int64_t rows = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const double wanted = 3.0 * static_cast<double>(rows) * static_cast<double>(p.hidden) * sizeof(uint16_t);
  return require_memory(wanted, fmt::format("the rows of {} tokens", rows), "give fewer tokens or ranks");
}

Result<std::string> measure(monomoe_bench& bench, const BenchCall& call) {
  if (bench.world != nullptr) {
    if (auto same = require_same_call(*bench.world->world, call); !same) return same.error();
  }
  if (auto enough = check_memory(bench.problem, call.tokens); !enough) return enough.error();
  if (auto ready = prepare_workspace(bench, call.launch); !ready) return ready.error();
  const Problem& p = bench.problem;
  const BenchTokens tokens = bench_tokens(bench.weights->placement, call.routing, p.topk, call.tokens, bench.seed);
  const bool is_cuda = bench.context->cuda != nullptr;
  auto measured = is_cuda ? measure_cuda(bench, call, tokens) : measure_cpu(bench, call, tokens);
  if (!measured) {
    bench.workspace.reset();  // poisoned, perhaps
    return measured.error();
  }
  if (auto same = compare_runs(bench, measured.value()); !same) return same.error();
  const double flops = 2.0 * 3.0 * static_cast<double>(p.hidden) * static_cast<double>(p.intermediate) * static_cast<double>(tokens.routes());
  const bool against_cpu = is_cuda && (call.check || flops <= kCheckedFlops);
  if (against_cpu) {
    if (auto same = compare_with_cpu(bench, tokens, measured.value()); !same) return same.error();
  }
  if (bench.world != nullptr) {
    if (auto combined = combine_ranks(*bench.world->world, measured.value()); !combined) return combined.error();
  }
  return bench_report(bench, call, tokens, measured.value(), against_cpu);
}

Result<std::string> trace(monomoe_bench& bench, const BenchCall& call) {
  if (bench.world != nullptr) return usage_error("a trace shows ranks of one process, but this benchmark's ranks are a process each; create it without a world");
  if (bench.context->cuda == nullptr) return usage_error("a trace needs backend cuda: the CPU backend has no launches (" + bench.context->why + ")");
  if (call.launch == cuda::LaunchVariant::kUnfused)
    return usage_error("a trace needs launch one or split: the kernels of launch unfused have no tasks, and monomoe_bench_run times each of them");
  if (auto ready = prepare_workspace(bench, call.launch); !ready) return ready.error();
  const Problem& p = bench.problem;
  const BenchTokens tokens = bench_tokens(bench.weights->placement, call.routing, p.topk, call.tokens, bench.seed);
  auto traced = trace_cuda(bench, call, tokens);
  if (!traced) {
    bench.workspace.reset();
    return traced.error();
  }
  return trace_report(traced.value(), fmt::format("{}/{} {} {} tokens", p.hidden, p.intermediate, weight_format_text(p.weights), fmt::join(call.tokens, "+")));
}

// Runs an entry's body. If it fails in whatever way, the other ranks of the world, who wait for this one, are told why it does not come.
template <class Body>
monomoe_status guarded_in_world(monomoe_world* world, Body&& body) {
  const monomoe_status status = guarded(body);
  if (status == MONOMOE_OK || world == nullptr) return status;
  (void)guarded([&]() -> Result<void> {
    world->world->leave(monomoe_last_error());
    return {};
  });
  return status;
}

Result<void> create(monomoe_world* world, monomoe_context* context, const monomoe_bench_layer* layer, monomoe_bench** bench) {
  if (auto given = require_pointer(context, "context"); !given) return given;
  auto known = read_struct(layer, "layer");
  if (!known) return known.error();
  if (auto given = require_pointer(bench, "bench"); !given) return given;
  auto made = make_bench(*context, known.value(), world);
  if (!made) return made.error();
  *bench = made.value().release();
  return {};
}

// Both entries that measure: the same arguments, another report.
Result<std::string> report_of(monomoe_bench& bench, const monomoe_bench_call* call, char** json, Result<std::string> (*body)(monomoe_bench&, const BenchCall&)) {
  auto known = read_struct(call, "call");
  if (!known) return known.error();
  if (auto given = require_pointer(json, "json"); !given) return given.error();
  auto legal = call_of(bench, known.value());
  return legal ? body(bench, legal.value()) : Result<std::string>(legal.error());
}

monomoe_status with_call(monomoe_bench* bench, const monomoe_bench_call* call, char** json, Result<std::string> (*body)(monomoe_bench&, const BenchCall&)) {
  return guarded_in_world(bench == nullptr ? nullptr : bench->world, [&]() -> Result<void> {
    if (auto given = require_pointer(bench, "bench"); !given) return given;
    auto report = report_of(*bench, call, json, body);
    if (!report) return report.error();
    *json = caller_text(report.value());
    return {};
  });
}

// What a case has and a benchmark has not.
Result<void> check_case(const Case& c) {
  if (c.distribution != RouteDistribution::kUniform && c.distribution != RouteDistribution::kZipf)
    return usage_error("dist: a benchmark has uniform and zipf");
  if (c.placement != PlacementKind::kEven) return usage_error("placement: a benchmark has even alone");
  for (const int64_t rows : c.rows) {
    if (rows != c.rows[0] || rows < 1)
      return usage_error(fmt::format("tokens={} on {} ranks: a line of a benchmark has the same number on each, and at least one", c.tokens, c.problem.ranks));
  }
  return {};
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_bench_create(monomoe_context* context, const monomoe_bench_layer* layer, monomoe_bench** bench) {
  return guarded([&] { return create(nullptr, context, layer, bench); });
}

monomoe_status monomoe_world_bench_create(monomoe_world* world, monomoe_context* context, const monomoe_bench_layer* layer, monomoe_bench** bench) {
  return guarded_in_world(world, [&]() -> Result<void> {
    if (auto given = require_pointer(world, "world"); !given) return given;
    return create(world, context, layer, bench);
  });
}

void monomoe_bench_destroy(monomoe_bench* bench) { delete bench; }

monomoe_status monomoe_bench_run(monomoe_bench* bench, const monomoe_bench_call* call, char** json) { return with_call(bench, call, json, measure); }

monomoe_status monomoe_bench_trace(monomoe_bench* bench, const monomoe_bench_call* call, char** json) { return with_call(bench, call, json, trace); }

monomoe_status monomoe_bench_case(const char* line, monomoe_bench_layer* layer, monomoe_bench_call* call, int32_t* ranks) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(line, "line"); !given) return given;
    if (auto given = require_struct(layer, "layer"); !given) return given;
    if (auto given = require_struct(call, "call"); !given) return given;
    if (auto given = require_pointer(ranks, "ranks"); !given) return given;
    auto parsed = parse_case(line);
    if (!parsed) return parsed.error();
    const Case& c = parsed.value();
    if (auto fits = check_case(c); !fits) return fits;
    layer->format = format_to_abi(c.problem.weights);
    layer->hidden = c.problem.hidden;
    layer->intermediate = c.problem.intermediate;
    layer->experts = c.problem.experts;
    layer->topk = c.problem.topk;
    layer->capacity = c.problem.capacity;
    layer->swiglu_limit = std::isinf(c.limit) ? 0.0f : c.limit;
    layer->seed = c.seed;
    call->num_tokens = c.rows[0];
    call->routing = c.distribution == RouteDistribution::kZipf ? MONOMOE_ROUTING_ZIPF : MONOMOE_ROUTING_UNIFORM;
    call->routing_value = c.distribution == RouteDistribution::kZipf ? 1.0 : 0.0;
    *ranks = static_cast<int32_t>(c.problem.ranks);
    return {};
  });
}

}  // extern "C"
