// Sizes are checked by the plan's rules; memory is mapped, not touched, so a large capacity costs little until it is used.
#include "layer/workspace.hpp"

#include <fmt/format.h>

#include "comm/memory_overlap.hpp"
#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/launch_choice.hpp"
#include "plan/memory_layout.h"
#include "plan/problem_text.hpp"

namespace monomoe::layer {
namespace {

// More copies than this on one rank no placement can have: every expert on every rank's share of a full table.
constexpr int64_t kMaxSlots = kMaxExperts * kMaxRanks;
constexpr size_t kPeerAlignment = 256;  // what every allocator of GPU memory gives

// Peers' addresses: one for each rank of a world, none for ranks that are all here.
Result<void> check_peers(const monomoe_context& context, void* const* peers, int64_t bytes) {
  if (context.only_rank < 0) {
    return peers == nullptr ? Result<void>{} : usage_error("options->peers is set, but all ranks of the context are in this process, which has its "
                                                           "own memory for them; leave it NULL, or create the context with world_ranks");
  }
  if (auto given = require_pointer(peers, "options->peers"); !given) return given;
  for (int32_t rank = 0; rank < context.num_ranks; ++rank) {
    const std::string name = fmt::format("options->peers[{}]", rank);
    if (auto given = require_pointer(peers[rank], name); !given) return given;
    if (auto aligned = require_aligned(peers[rank], kPeerAlignment, name); !aligned) return aligned;
    for (int32_t other = 0; other < rank; ++other) {
      if (peers[other] == peers[rank])
        return usage_error(fmt::format("options->peers[{}] and [{}] are the same address; each rank has memory of its own", other, rank));
    }
  }
  const std::string overlap = overlap_of({peers, static_cast<size_t>(context.num_ranks)}, bytes);
  return overlap.empty() ? Result<void>{} : usage_error(overlap + "; each rank has memory of its own");
}

Result<Problem> problem_of(const monomoe_context& context, const monomoe_workspace_options& options) {
  Problem problem;
  problem.hidden = options.hidden;
  problem.intermediate = options.max_intermediate;
  problem.experts = 1;  // the layers' business
  problem.topk = options.topk;
  problem.ranks = context.num_ranks;
  problem.capacity = options.capacity;
  if (auto legal = check(problem); !legal) return legal.error();
  return problem;
}

}  // namespace

Result<std::unique_ptr<monomoe_workspace>> make_workspace(const monomoe_context& context, const monomoe_workspace_options& options) {
  auto legal = problem_of(context, options);
  if (!legal) return legal.error();
  const Problem& problem = legal.value();
  if (auto fine = check_peers(context, options.peers, symmetric_layout(problem).bytes); !fine) return fine.error();
  if (options.max_experts < 1 || options.max_experts > kMaxSlots) {
    return usage_error(fmt::format("options->max_experts is {}, wanted 1..{}; monomoe_weights_max_local_experts gives it",
                                   options.max_experts, kMaxSlots));
  }
  auto launch = choose_launch(context, options.launch, "options");
  if (!launch) return launch.error();
  auto workspace = std::make_unique<monomoe_workspace>(monomoe_workspace{&context, problem, options.max_experts, {}, {}, {}});
  const bool is_world = context.only_rank >= 0;
  const size_t num_peers = is_world ? static_cast<size_t>(context.num_ranks) : 0;
  const WorldRank world{context.only_rank, {options.peers, num_peers}, monomoe_version(), context.timeout_ms, static_cast<uint64_t>(launch.value())};
  if (context.cuda == nullptr) {
    auto cpu = is_world ? cpu::CpuWorkspace::create(problem, options.max_experts, world) : cpu::CpuWorkspace::create(problem, options.max_experts);
    if (!cpu) return cpu.error();
    workspace->cpu = cpu.take();
    return workspace;
  }
  auto cuda = context.cuda->make_workspace(problem, options.max_experts, context.timeout_ms, launch.value(), is_world ? &world : nullptr);
  if (!cuda) return cuda.error();
  workspace->cuda = cuda.take();
  if (is_world) return workspace;
  workspace->meeting = std::make_unique<RankMeeting>(context.num_ranks, context.timeout_ms);
  return workspace;
}

Result<void> check_condition(const monomoe_workspace& workspace) {
  std::string cause = workspace.cpu != nullptr ? workspace.cpu->poison_cause(workspace.cpu->first_rank()) : std::string();
  if (workspace.cuda != nullptr) {
    if (auto fine = workspace.cuda->condition(); !fine) cause = fine.error().message;
  }
  if (cause.empty()) return {};
  return Error{Status::kPoisoned, "an earlier call failed and left the workspace poisoned: " + cause + "; destroy it and create it anew"};
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_workspace_create(monomoe_context* context, const monomoe_workspace_options* options, monomoe_workspace** workspace) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (auto given = require_pointer(workspace, "workspace"); !given) return given;
    auto made = make_workspace(*context, known.value());
    if (!made) return made.error();
    *workspace = made.value().release();
    return {};
  });
}

monomoe_status monomoe_symmetric_bytes(const monomoe_context* context, const monomoe_workspace_options* options, int64_t* bytes) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(context, "context"); !given) return given;
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (auto given = require_pointer(bytes, "bytes"); !given) return given;
    auto problem = problem_of(*context, known.value());
    if (!problem) return problem.error();
    *bytes = symmetric_layout(problem.value()).bytes;
    return {};
  });
}

void monomoe_workspace_destroy(monomoe_workspace* workspace) { delete workspace; }

monomoe_status monomoe_workspace_poison(monomoe_workspace* workspace, uint8_t byte) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(workspace, "workspace"); !given) return given;
    if (workspace->cuda != nullptr) return workspace->cuda->fill(byte);
    workspace->cpu->poison_bytes(byte);
    return {};
  });
}

monomoe_status monomoe_workspace_status(const monomoe_workspace* workspace) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(workspace, "workspace"); !given) return given;
    return check_condition(*workspace);
  });
}

}  // extern "C"
