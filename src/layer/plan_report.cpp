// monomoe_plan: what a problem needs, or the rule it breaks.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cpu/executor_workspace.hpp"
#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/plan_report.hpp"
#include "numerics/activation_quant.h"
#include "plan/memory_layout.h"
#include "plan/problem_text.hpp"
#include "plan/task_order.h"
#include "plan/weight_packing.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

// Regions as (name, begin) in order; a region ends where the next begins.
Json region_sizes(std::initializer_list<std::pair<const char*, int64_t>> begins, int64_t total) {
  Json sizes = Json::object();
  for (auto region = begins.begin(); region != begins.end(); ++region) {
    const auto next = std::next(region);
    sizes[region->first] = (next == begins.end() ? total : next->second) - region->second;
  }
  return sizes;
}

Json symmetric_regions(const SymmetricLayout& s) {
  return region_sizes({{"flags", s.flags},
                       {"arrivals", s.arrivals},
                       {"route_ids", s.route_ids},
                       {"route_weights", s.route_weights},
                       {"row_scales", s.row_scales},
                       {"row_codes", s.row_codes},
                       {"contributions", s.contributions}},
                      s.bytes);
}

Json workspace_regions(const WorkspaceLayout& w) {
  return region_sizes({{"flags", w.flags},
                       {"own_scales", w.own_scales},
                       {"own_codes", w.own_codes},
                       {"expert_begin", w.expert_begin},
                       {"block_begin", w.block_begin},
                       {"block_done", w.block_done},
                       {"routes", w.routes},
                       {"mid_scales", w.mid_scales},
                       {"mid_codes", w.mid_codes}},
                      w.bytes);
}

Json tiles(const Problem& p) {
  return {{"weight_rows", kTileRows},
          {"k", kBlockK},
          {"token_block", cpu::kTokenBlock},
          {"token_chunk", kTokenChunk},
          {"hidden_blocks", p.hidden_blocks()},
          {"intermediate_blocks", p.intermediate_blocks()},
          {"gemm1_tiles_per_block", p.intermediate_blocks()},
          {"gemm2_tiles_per_block", gemm2_tiles(p.hidden)}};
}

}  // namespace

std::string plan_report(const Problem& problem) {
  Json report;
  const Result<void> legal = check(problem);
  report["legal"] = legal.ok();
  report["problem"] = {{"hidden", problem.hidden},
                       {"intermediate", problem.intermediate},
                       {"experts", problem.experts},
                       {"topk", problem.topk},
                       {"ranks", problem.ranks},
                       {"capacity", problem.capacity},
                       {"weights", weight_format_text(problem.weights)}};
  report["multiples"] = {
      {"hidden", kBlockK},          {"intermediate", 32},   {"max_hidden", kMaxHidden}, {"max_intermediate", kMaxIntermediate},
      {"max_experts", kMaxExperts}, {"max_topk", kMaxTopk}, {"max_ranks", kMaxRanks},   {"max_capacity", kMaxCapacity}};
  if (!legal) {
    report["rule"] = legal.error().message;
    return report.dump();
  }
  // A rank may hold every copy a placement gives it; this is the even one, as monomoe_layer without a placement has it.
  const int64_t slots = ceil_div(problem.experts, problem.ranks);
  const ExpertLayout expert = expert_layout(problem);
  const SymmetricLayout symmetric = symmetric_layout(problem);
  const WorkspaceLayout workspace = workspace_layout(problem, slots, cpu::kTokenBlock);
  const int64_t weights = slots * expert.bytes;
  report["bytes_per_rank"] = {{"symmetric", symmetric.bytes},
                              {"workspace", workspace.bytes},
                              {"weights", weights},
                              {"total", symmetric.bytes + workspace.bytes + weights}};
  report["regions"] = {{"symmetric", symmetric_regions(symmetric)},
                       {"workspace", workspace_regions(workspace)},
                       {"weights", {{"expert", expert.bytes}, {"experts_of_the_fullest_rank", slots}}}};
  report["tiles"] = tiles(problem);
  report["padding"] = {{"intermediate", problem.padded_intermediate()},
                       {"zero_channels", problem.padded_intermediate() - problem.intermediate}};
  return report.dump();
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_plan(const monomoe_problem* problem, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_struct(problem, "problem"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    auto format = format_from_abi(problem->format, "problem->format");
    if (!format) return format.error();
    *json = caller_text(plan_report(
        {problem->hidden, problem->intermediate, problem->experts, problem->topk, problem->ranks, problem->capacity, format.value()}));
    return {};
  });
}
