// What `run`, `verify` and `demo` do before and around the forward call: open, route, deal the rows to ranks, pack, call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "handles.hpp"
#include "options.hpp"
#include "output.hpp"
#include "placement_file.hpp"
#include "processes.hpp"
#include "token_input.hpp"

namespace monomoe::cli {

// The clamp in force and who said so.
struct Clamp {
  float limit = 0;                // 0 = none
  std::string source = "none";    // "option", "config.json" or "none"
  float argument = -1;            // for the library: negative = config.json's
};

struct LayerJob {
  LayerOptions options;
  RankWorld* world = nullptr;  // this process is one rank of it; null: all ranks are here
  Context context;
  std::string backend_why;
  Checkpoint checkpoint;
  monomoe_layer_info info = {};
  TokenInput input;  // ids and weights are filled whoever decided them
  Clamp clamp;
  std::vector<int64_t> tokens_per_rank;
  int64_t capacity = 0;
  std::optional<PlacementTable> placement;  // empty = the library's default
  double load_seconds = 0, route_seconds = 0;

  // The ranks' shares of x with these ids and weights [tokens, topk]; y gets [tokens, hidden] and may be null.
  std::vector<monomoe_tokens> tokens_view(std::span<const int64_t> ids, std::span<const float> weights, int64_t topk, uint16_t* y) const;
};

// Fails with the exit code of what is wrong; nothing has been computed then. world: null if all ranks are in this process.
LayerJob prepare_layer(const LayerOptions& options, RankWorld* world = nullptr);
// The router's decision for rows that came without one.
void route_rows(const monomoe_checkpoint* checkpoint, int32_t layer, const std::string& path, TokenInput& input);

struct ForwardResult {
  std::vector<uint16_t> y;   // of a world: on rank 0 only
  std::string memory;        // how the ranks of a world share theirs; "" in one process
  monomoe_times times = {};
  double pack_seconds = 0, wall_seconds = 0;
  int32_t max_local_experts = 0;
};
ForwardResult forward_routed(const LayerJob& job);
ForwardResult forward_shared(const LayerJob& job);  // the layer's shared expert alone, every token with weight 1

// One call of this rank's part in job.world, with `intermediate` channels; collective. Defined in layer_world.cpp.
ForwardResult forward_in_world(const LayerJob& job, const Weights& weights, monomoe_workspace_options options, std::span<const int64_t> ids,
                               std::span<const float> route_weights);
// Each rank routes its rows, and all get all.
void route_in_world(LayerJob& job);

// Live slots of each expert.
std::vector<int64_t> count_experts(std::span<const int64_t> ids, int32_t num_experts);
// {"requested","taken","why"}
Json backend_json(const LayerJob& job);
// {"live_slots","dropped_slots","min","median","max","empty_experts"}
Json count_summary(const std::vector<int64_t>& counts, std::span<const int64_t> ids);

// y, expert_counts, topk_ids and topk_weights of the job as a file; returns its tensor bytes.
uint64_t write_output(const std::string& path, const LayerJob& job, const std::vector<uint16_t>& y);

// Fields every report of a layer run begins with.
Json job_json(const LayerJob& job, const char* command);
// The same for people.
std::string job_text(const LayerJob& job);

}  // namespace monomoe::cli
