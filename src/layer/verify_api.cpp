// monomoe_checkpoint_verify_run and monomoe_verify_case: the same checks on a checkpoint's layer and on a random one.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "layer/machine.hpp"
#include "layer/parallel.hpp"
#include "layer/verify_layer.hpp"
#include "layer/workspace.hpp"
#include "layer/world.hpp"
#include "reference/case_line.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

namespace monomoe::layer {
namespace {

struct ContextCloser {
  void operator()(monomoe_context* context) const { monomoe_context_destroy(context); }
};
using ContextHolder = std::unique_ptr<monomoe_context, ContextCloser>;

Result<ContextHolder> create_context(const monomoe_context_options& options) {
  monomoe_context* raw = nullptr;
  if (const monomoe_status status = monomoe_context_create(&options, &raw); status != MONOMOE_OK) {
    return Error{static_cast<Status>(status), monomoe_last_error()};
  }
  return ContextHolder(raw);
}

// Tokens of each rank of a case, in order.
std::vector<monomoe_tokens> case_tokens(const Case& c, const RandomLayer& random) {
  std::vector<monomoe_tokens> tokens;
  int64_t first = 0;
  for (const int64_t rows : c.rows) {
    monomoe_tokens one{};
    one.struct_size = sizeof(one);
    one.x_dtype = MONOMOE_DTYPE_BF16;
    one.num_tokens = rows;
    one.x = random.x.data() + first * c.problem.hidden;
    one.ids_dtype = MONOMOE_DTYPE_I64;
    one.topk_ids = random.ids.data() + first * c.problem.topk;
    one.topk_weights = random.weights.data() + first * c.problem.topk;
    tokens.push_back(one);
    first += rows;
  }
  return tokens;
}

// The experts as random checkpoint tensors and packed.
Result<void> check_memory(const Case& c) {
  const double wanted = 2.0 * static_cast<double>(c.problem.experts) * static_cast<double>(expert_layout(c.problem).bytes);
  return require_memory(wanted, "the experts of this case", "give fewer or smaller experts");
}

Result<std::string> verify_case(const monomoe_context_options& options, const std::string& line) {
  auto parsed = parse_case(line);
  if (!parsed) return parsed.error();
  const Case& c = parsed.value();
  if (auto fits = check_memory(c); !fits) return fits.error();
  monomoe_context_options own = options;
  own.struct_size = sizeof(own);
  own.num_ranks = static_cast<int32_t>(c.problem.ranks);
  auto made = create_context(own);
  if (!made) return made.error();
  const ContextHolder context = made.take();
  const RandomLayer random = random_layer(c);
  const std::vector<SourceExpert> experts = random.sources();
  auto placement = placement_of(c);
  if (!placement) return placement.error();
  const LayerSource source{c.problem.hidden, c.problem.intermediate, c.problem.weights, experts, c.limit, true};
  auto weights = pack_weights(*context, source, placement.take());
  if (!weights) return weights.error();
  const std::vector<monomoe_tokens> tokens = case_tokens(c, random);
  const auto topk = static_cast<int32_t>(c.problem.topk);
  return verify_layer(VerifyRequest{*context, *weights.value(), experts, topk, c.problem.capacity, tokens.data(), line});
}

// One rank's part of a case in a world: its own tokens, with y [tokens, hidden] in memory of rank 0 that all ranks write.
Result<void> run_rank_of_case(monomoe_world& world, const monomoe_context_options& options, const Case& c, const RandomLayer& random,
                              std::span<monomoe_tokens> tokens) {
  auto made = create_context(options);
  if (!made) return made.error();
  const ContextHolder context = made.take();
  auto placement = placement_of(c);
  if (!placement) return placement.error();
  const std::vector<SourceExpert> experts = random.sources();
  auto weights = pack_weights(*context, {c.problem.hidden, c.problem.intermediate, c.problem.weights, experts, c.limit, true}, placement.take());
  if (!weights) return weights.error();
  monomoe_workspace_options sizes{};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = static_cast<int32_t>(c.problem.topk);
  sizes.hidden = c.problem.hidden;
  sizes.max_intermediate = c.problem.intermediate;
  sizes.max_experts = weights.value()->placement.max_slots();
  sizes.capacity = c.problem.capacity;
  int64_t bytes = 0;
  if (const monomoe_status status = monomoe_symmetric_bytes(context.get(), &sizes, &bytes); status != MONOMOE_OK)
    return Error{static_cast<Status>(status), monomoe_last_error()};
  const bool is_gpu = context->cuda != nullptr;
  auto memory = make_world_memory(world, is_gpu, is_gpu ? options.gpu - 1 : -1, bytes);
  if (!memory) return memory.error();
  sizes.peers = memory.value()->peers.data();
  auto workspace = make_workspace(*context, sizes);
  if (!workspace) return workspace.error();
  const int32_t rank = world.world->rank();
  const monomoe_status ran = monomoe_forward_rank(weights.value().get(), workspace.value().get(), rank, &tokens[static_cast<size_t>(rank)], nullptr, nullptr);
  if (ran != MONOMOE_OK) return Error{static_cast<Status>(ran), monomoe_last_error()};
  return world.world->gather(WorldStep::kVerify, {}, {});  // y is whole, and nobody writes to this rank's memory any more
}

Result<std::string> verify_case_in_world(monomoe_world& world, const monomoe_context_options& options, const std::string& line) {
  auto parsed = parse_case(line);
  if (!parsed) return parsed.error();
  const Case& c = parsed.value();
  if (c.problem.ranks != world.world->ranks())
    return usage_error(fmt::format("the case has ranks={} and world '{}' {} ranks; they must be the same", c.problem.ranks, world.world->name(),
                                   world.world->ranks()));
  if (options.world_ranks != world.world->ranks() || options.rank != world.world->rank())
    return usage_error(fmt::format("options are of rank {} of {}, but this is rank {} of {}; complete them with monomoe_world_place", options.rank,
                                   options.world_ranks, world.world->rank(), world.world->ranks()));
  if (auto fits = check_memory(c); !fits) return fits.error();
  auto output = make_world_memory(world, false, -1, c.tokens * c.problem.hidden * 2);
  if (!output) return output.error();
  const RandomLayer random = random_layer(c);
  std::vector<monomoe_tokens> tokens = case_tokens(c, random);
  auto* y = static_cast<uint16_t*>(output.value()->peers[0]);
  for (monomoe_tokens& one : tokens) {
    one.y = y;
    y += one.num_tokens * c.problem.hidden;
  }
  if (auto ran = run_rank_of_case(world, options, c, random, tokens); !ran) return ran.error();
  if (options.rank != 0) return nlohmann::ordered_json{{"case", line}, {"rank", options.rank}}.dump();
  monomoe_context_options own{};
  own.struct_size = sizeof(own);
  own.backend = MONOMOE_BACKEND_CPU;
  own.num_ranks = options.world_ranks;
  own.num_threads = options.num_threads;
  own.vector_bits = options.vector_bits;
  auto twin = create_context(own);
  if (!twin) return twin.error();
  const std::vector<SourceExpert> experts = random.sources();
  auto placement = placement_of(c);
  if (!placement) return placement.error();
  const LayerSource source{c.problem.hidden, c.problem.intermediate, c.problem.weights, experts, c.limit, true};
  auto weights = pack_weights(*twin.value(), source, placement.take());
  if (!weights) return weights.error();
  return verify_layer(VerifyRequest{*twin.value(), *weights.value(), experts, static_cast<int32_t>(c.problem.topk), c.problem.capacity, tokens.data(), line,
                                    options.backend == MONOMOE_BACKEND_CUDA ? "cuda" : "cpu"});
}

// A packed layer's experts as matrices again, for the reference; empty for any other.
struct UnpackedLayer {
  std::vector<UnpackedExpert> experts;
  std::vector<SourceExpert> matrices;
  std::span<const SourceExpert> sources(const LayerWeights& layer) const { return matrices.empty() ? std::span(layer.experts) : std::span(matrices); }
};

Result<UnpackedLayer> unpack_layer(const LayerWeights& layer, int threads) {
  UnpackedLayer out;
  Problem problem;
  problem.hidden = layer.hidden;
  problem.intermediate = layer.intermediate;
  problem.weights = layer.format;
  out.experts.resize(layer.packed.size());
  const auto unpack_one = [&](int64_t e) -> Result<void> {
    out.experts[static_cast<size_t>(e)] = unpack_expert(layer.packed[static_cast<size_t>(e)], problem);
    return {};
  };
  if (auto done = parallel_for(static_cast<int64_t>(layer.packed.size()), threads, unpack_one); !done) return done.error();
  for (const UnpackedExpert& expert : out.experts) out.matrices.push_back({expert.gate.matrix, expert.up.matrix, expert.down.matrix});
  return out;
}

// given_by: "", or which backend computed the tokens' y, see VerifyRequest.
Result<void> verify_checkpoint_layer(const monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer, const monomoe_placement* placement,
                               float swiglu_limit, int32_t topk, const monomoe_tokens* tokens, const std::string& given_by, char** json) {
  if (auto given = require_pointer(context, "context"); !given) return given;
  if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
  if (auto given = require_pointer(tokens, "tokens"); !given) return given;
  if (auto given = require_pointer(json, "json"); !given) return given;
  if (context->only_rank >= 0)
    return usage_error(fmt::format("verify runs all ranks, but this context is rank {} of {}; create one without world_ranks", context->only_rank,
                                   context->num_ranks));
  if (layer < 0) return usage_error(fmt::format("layer is {}, wanted 0 or more", layer));
  for (int32_t rank = 0; !given_by.empty() && rank < context->num_ranks; ++rank) {
    if (tokens[rank].num_tokens <= 0) continue;
    if (auto given = require_pointer(tokens[rank].y, fmt::format("y of rank {}", rank)); !given) return given;
  }
  auto loaded = checkpoint->files.load_layer(layer, {.scan_values = true, .threads = context->num_threads});
  if (!loaded) return loaded.error();
  auto weights = pack_routed(*context, loaded.value(), checkpoint->files.config(), placement, swiglu_limit);
  if (!weights) return weights.error();
  auto unpacked = unpack_layer(loaded.value(), context->num_threads);
  if (!unpacked) return unpacked.error();
  auto report = verify_layer(VerifyRequest{*context, *weights.value(), unpacked.value().sources(loaded.value()), topk, 0, tokens, {}, given_by});
  if (!report) return report.error();
  *json = caller_text(report.value());
  return {};
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_checkpoint_verify_run(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                             const monomoe_placement* placement, float swiglu_limit, int32_t topk,
                                             const monomoe_tokens* tokens, char** json) {
  return guarded([&]() -> Result<void> { return verify_checkpoint_layer(context, checkpoint, layer, placement, swiglu_limit, topk, tokens, {}, json); });
}

monomoe_status monomoe_checkpoint_verify_output(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                                const monomoe_placement* placement, float swiglu_limit, int32_t topk,
                                                const monomoe_tokens* tokens, monomoe_backend computed_by, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    if (context->cuda != nullptr) return usage_error("context is of backend cuda; an output that is given is held against a context of backend cpu");
    const std::string by = enum_number(computed_by) == MONOMOE_BACKEND_CUDA ? "cuda" : "cpu";
    return verify_checkpoint_layer(context, checkpoint, layer, placement, swiglu_limit, topk, tokens, by, json);
  });
}

monomoe_status monomoe_verify_case(const monomoe_context_options* options, const char* line, char** json) {
  return guarded([&]() -> Result<void> {
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (known.value().world_ranks != 0) return usage_error("options->world_ranks is set, but verify runs all ranks; leave it 0");
    if (auto given = require_pointer(line, "line"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    auto report = verify_case(known.value(), line);
    if (!report) return report.error();
    *json = caller_text(report.value());
    return {};
  });
}

monomoe_status monomoe_world_verify_case(monomoe_world* world, const monomoe_context_options* options, const char* line, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(world, "world"); !given) return given;
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (auto given = require_pointer(line, "line"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    auto report = verify_case_in_world(*world, known.value(), line);
    if (!report) {
      world->world->leave(report.error().message);  // the others wait for this rank, and would not know why
      return report.error();
    }
    *json = caller_text(report.value());
    return {};
  });
}

}  // extern "C"
