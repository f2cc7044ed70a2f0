// Sizes are checked by the plan's rules; memory is mapped, not touched, so a large capacity costs little until it is used.
#include "layer/workspace.hpp"

#include <fmt/format.h>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/launch_choice.hpp"
#include "plan/problem_text.hpp"

namespace monomoe::layer {
namespace {

// More copies than this on one rank no placement can have: every expert on every rank's share of a full table.
constexpr int64_t kMaxSlots = kMaxExperts * kMaxRanks;

}  // namespace

Result<std::unique_ptr<monomoe_workspace>> make_workspace(const monomoe_context& context, const monomoe_workspace_options& options) {
  Problem problem;
  problem.hidden = options.hidden;
  problem.intermediate = options.max_intermediate;
  problem.experts = 1;  // the layers' business
  problem.topk = options.topk;
  problem.ranks = context.num_ranks;
  problem.capacity = options.capacity;
  if (auto legal = check(problem); !legal) return legal.error();
  if (options.max_experts < 1 || options.max_experts > kMaxSlots) {
    return usage_error(fmt::format("options->max_experts is {}, wanted 1..{}; monomoe_weights_max_local_experts gives it",
                                   options.max_experts, kMaxSlots));
  }
  auto launch = choose_launch(context, options.launch, "options");
  if (!launch) return launch.error();
  auto workspace = std::make_unique<monomoe_workspace>(monomoe_workspace{&context, problem, options.max_experts, {}, {}, {}});
  if (context.cuda == nullptr) {
    auto cpu = cpu::CpuWorkspace::create(problem, options.max_experts);
    if (!cpu) return cpu.error();
    workspace->cpu = cpu.take();
    return workspace;
  }
  auto cuda = context.cuda->make_workspace(problem, options.max_experts, context.timeout_ms, launch.value());
  if (!cuda) return cuda.error();
  workspace->cuda = cuda.take();
  workspace->meeting = std::make_unique<RankMeeting>(context.num_ranks, context.timeout_ms);
  return workspace;
}

Result<void> check_condition(const monomoe_workspace& workspace) {
  std::string cause = workspace.cpu != nullptr ? workspace.cpu->poison_cause(0) : std::string();
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
    if (auto given = require_struct(options, "options"); !given) return given;
    if (auto given = require_pointer(workspace, "workspace"); !given) return given;
    auto made = make_workspace(*context, *options);
    if (!made) return made.error();
    *workspace = made.value().release();
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
