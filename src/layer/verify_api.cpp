// monomoe_checkpoint_verify_run and monomoe_verify_case: the same checks on a checkpoint's layer and on a random one.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/checkpoint.hpp"
#include "layer/error_state.hpp"
#include "layer/parallel.hpp"
#include "layer/verify_layer.hpp"
#include "reference/case_line.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

namespace monomoe::layer {
namespace {

struct ContextCloser {
  void operator()(monomoe_context* context) const { monomoe_context_destroy(context); }
};

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

Result<std::string> verify_case(const monomoe_context_options& options, const std::string& line) {
  auto parsed = parse_case(line);
  if (!parsed) return parsed.error();
  const Case& c = parsed.value();
  monomoe_context_options own = options;
  own.struct_size = sizeof(own);
  own.num_ranks = static_cast<int32_t>(c.problem.ranks);
  monomoe_context* raw = nullptr;
  if (const monomoe_status status = monomoe_context_create(&own, &raw); status != MONOMOE_OK) {
    return Error{static_cast<Status>(status), monomoe_last_error()};
  }
  const std::unique_ptr<monomoe_context, ContextCloser> context(raw);
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

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_checkpoint_verify_run(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                             const monomoe_placement* placement, float swiglu_limit, int32_t topk,
                                             const monomoe_tokens* tokens, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    if (auto given = require_pointer(checkpoint, "checkpoint"); !given) return given;
    if (auto given = require_pointer(tokens, "tokens"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    if (context->only_rank >= 0)
      return usage_error(fmt::format("verify runs all ranks, but this context is rank {} of {}; create one without world_ranks", context->only_rank,
                                     context->num_ranks));
    if (layer < 0) return usage_error(fmt::format("layer is {}, wanted 0 or more", layer));
    auto loaded = checkpoint->files.load_layer(layer, {.scan_values = true, .threads = context->num_threads});
    if (!loaded) return loaded.error();
    auto weights = pack_routed(*context, loaded.value(), checkpoint->files.config(), placement, swiglu_limit);
    if (!weights) return weights.error();
    auto unpacked = unpack_layer(loaded.value(), context->num_threads);
    if (!unpacked) return unpacked.error();
    auto report = verify_layer({*context, *weights.value(), unpacked.value().sources(loaded.value()), topk, 0, tokens, {}});
    if (!report) return report.error();
    *json = caller_text(report.value());
    return {};
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

}  // extern "C"
