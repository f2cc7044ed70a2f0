// Opens a layer, deals its rows to the ranks and calls the library.
#include "layer_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace monomoe::cli {
namespace {

// One call over all ranks with weights of one kind (routed experts or the shared one).
ForwardResult forward(const LayerJob& job, const Weights& weights, std::span<const int64_t> ids, std::span<const float> route_weights,
                      int64_t topk, int64_t intermediate) {
  ForwardResult result;
  result.max_local_experts = monomoe_weights_max_local_experts(weights.get());
  monomoe_workspace_options options = {};
  options.struct_size = sizeof(options);
  options.topk = static_cast<int32_t>(topk);
  options.hidden = job.info.hidden;
  options.max_intermediate = intermediate;
  options.max_experts = result.max_local_experts;
  options.capacity = job.capacity;
  if (job.world != nullptr) return forward_in_world(job, weights, options, ids, route_weights);
  const Timer timer;
  monomoe_workspace* handle = nullptr;
  check(monomoe_workspace_create(job.context.get(), &options, &handle), job.options.capacity >= 0 ? Origin::kCommandLine : Origin::kFile);
  const Workspace workspace(handle);
  result.y.resize(static_cast<size_t>(job.input.tokens * job.info.hidden));
  const std::vector<monomoe_tokens> tokens = job.tokens_view(ids, route_weights, topk, result.y.data());
  result.times.struct_size = sizeof(result.times);
  check(monomoe_forward(weights.get(), workspace.get(), tokens.data(), &result.times), Origin::kFile);
  result.wall_seconds = timer.seconds();
  return result;
}

// What must be the same on all ranks.
Settings settings_of(const LayerOptions& options) {
  return {{"the checkpoint", file_given(options.directory)},
          {"--layer", std::to_string(options.layer)},
          {"--input", file_given(options.input)},
          {"--tokens-per-rank", or_not_given(options.tokens_per_rank)},
          {"--placement", options.placement.empty() ? "not given" : file_given(options.placement)},
          {"--shared-expert", options.shared_expert},
          {"--swiglu-limit", or_not_given(options.swiglu_limit_word)},
          {"--launch", options.context.launch}};
}

Clamp clamp_in_force(const LayerOptions& options, const monomoe_layer_info& info) {
  const std::optional<float> limit = options.swiglu_limit();
  if (limit) return {*limit, "option", *limit};
  if (info.swiglu_limit > 0 && !std::isinf(info.swiglu_limit)) return {info.swiglu_limit, "config.json", -1};
  return {};
}

}  // namespace

std::vector<monomoe_tokens> LayerJob::tokens_view(std::span<const int64_t> ids, std::span<const float> weights, int64_t topk,
                                                  uint16_t* y) const {
  std::vector<monomoe_tokens> views;
  int64_t row = 0;
  for (const int64_t count : tokens_per_rank) {
    monomoe_tokens view = {};
    view.struct_size = sizeof(view);
    view.x_dtype = MONOMOE_DTYPE_BF16;
    view.ids_dtype = MONOMOE_DTYPE_I64;
    view.num_tokens = count;
    if (count > 0) {
      view.x = input.x.data() + row * info.hidden;
      view.topk_ids = ids.data() + row * topk;
      view.topk_weights = weights.data() + row * topk;
      view.y = y ? y + row * info.hidden : nullptr;
    }
    row += count;
    views.push_back(view);
  }
  return views;
}

// path: of the input, for messages.
void route_rows(const monomoe_checkpoint* checkpoint, int32_t layer, const std::string& path, TokenInput& input) {
  input.ids.resize(static_cast<size_t>(input.tokens * input.topk));
  input.weights.resize(input.ids.size());
  if (input.tokens == 0) return;
  const int64_t* token_ids = input.token_ids.empty() ? nullptr : input.token_ids.data();
  const monomoe_status status = monomoe_checkpoint_route(checkpoint, layer, input.x.data(), input.tokens, token_ids, input.ids.data(),
                                                         input.weights.data());
  if (status != MONOMOE_OK) throw Failure(exit_code(status, Origin::kFile), fmt::format("{}: {}", path, monomoe_last_error()));
}

LayerJob prepare_layer(const LayerOptions& options, RankWorld* world) {
  LayerJob job;
  job.options = options;
  job.world = world;
  options.swiglu_limit();  // bad usage is reported before any file is read
  if (world != nullptr) require_same_arguments(*world, settings_of(options));
  job.context = world != nullptr ? world->create_context() : options.context.create(options.num_ranks);
  const char* why = nullptr;
  monomoe_context_backend(job.context.get(), &why);
  job.backend_why = world != nullptr ? world->why() : why ? why : "";
  const Timer load;
  job.checkpoint = open_checkpoint(options.directory);
  job.info = layer_info(job.checkpoint.get(), options.layer);
  job.clamp = clamp_in_force(options, job.info);
  if (options.shared_expert == "on" && !job.info.has_shared_expert)
    input_error(fmt::format("{} has no shared expert; leave out --shared-expert on", options.where()));
  job.input = load_tokens(options.input, job.info, options.where());
  job.tokens_per_rank = options.dealt(job.input.tokens);
  job.capacity = options.capacity_for(job.tokens_per_rank);
  if (!options.placement.empty()) job.placement = load_placement(options.placement, job.info.num_experts, options.num_ranks);
  job.load_seconds = load.seconds();
  const Timer route;
  if (!job.input.has_routing && world != nullptr) route_in_world(job);
  else if (!job.input.has_routing) route_rows(job.checkpoint.get(), options.layer, options.input, job.input);
  job.route_seconds = route.seconds();
  return job;
}

ForwardResult forward_routed(const LayerJob& job) {
  const Timer pack;
  const monomoe_placement placement = job.placement ? job.placement->view() : monomoe_placement{};
  monomoe_weights* handle = nullptr;
  check(monomoe_checkpoint_weights(job.context.get(), job.checkpoint.get(), job.options.layer, job.placement ? &placement : nullptr,
                                   job.clamp.argument, &handle),
        Origin::kFile);
  const Weights weights(handle);
  const double pack_seconds = pack.seconds();
  ForwardResult result = forward(job, weights, job.input.ids, job.input.weights, job.input.topk, job.info.intermediate);
  result.pack_seconds = pack_seconds;
  return result;
}

ForwardResult forward_shared(const LayerJob& job) {
  const Timer pack;
  monomoe_weights* handle = nullptr;
  check(monomoe_checkpoint_shared_weights(job.context.get(), job.checkpoint.get(), job.options.layer, job.clamp.argument, &handle),
        Origin::kFile);
  const Weights weights(handle);
  const double pack_seconds = pack.seconds();
  const std::vector<int64_t> ids(static_cast<size_t>(job.input.tokens), 0);
  const std::vector<float> ones(ids.size(), 1.0f);
  ForwardResult result = forward(job, weights, ids, ones, 1, job.info.shared_intermediate);
  result.pack_seconds = pack_seconds;
  return result;
}

std::vector<int64_t> count_experts(std::span<const int64_t> ids, int32_t num_experts) {
  std::vector<int64_t> counts(static_cast<size_t>(num_experts), 0);
  for (const int64_t id : ids)
    if (id >= 0) ++counts.at(static_cast<size_t>(id));
  return counts;
}

uint64_t write_output(const std::string& path, const LayerJob& job, const std::vector<uint16_t>& y) {
  const std::vector<int64_t> counts = count_experts(job.input.ids, job.info.num_experts);
  const auto tensor = [](const char* name, const char* dtype, std::vector<int64_t> dims, const void* data, uint64_t bytes) {
    monomoe_tensor view = {name, dtype, static_cast<int32_t>(dims.size()), {}, data, bytes};
    std::copy(dims.begin(), dims.end(), view.dims);
    return view;
  };
  const TokenInput& in = job.input;
  const std::vector<monomoe_tensor> tensors = {
      tensor("y", "BF16", {in.tokens, job.info.hidden}, y.data(), y.size() * 2),
      tensor("expert_counts", "I64", {job.info.num_experts}, counts.data(), counts.size() * 8),
      tensor("topk_ids", "I64", {in.tokens, in.topk}, in.ids.data(), in.ids.size() * 8),
      tensor("topk_weights", "F32", {in.tokens, in.topk}, in.weights.data(), in.weights.size() * 4),
  };
  check(monomoe_tensor_file_write(path.c_str(), tensors.data(), static_cast<int64_t>(tensors.size())));
  uint64_t bytes = 0;
  for (const monomoe_tensor& item : tensors) bytes += item.bytes;
  return bytes;
}

}  // namespace monomoe::cli
