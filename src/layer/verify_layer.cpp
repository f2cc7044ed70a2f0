// The backend's tokens, intermediates, contributions and output against float64 with bounds; against the contract's scalar code bit for
// bit where that is affordable; and against exact dequantisation for information.
#include "layer/verify_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "cpu/executor.hpp"
#include "layer/backend_stages.hpp"
#include "layer/forward.hpp"
#include "layer/workspace.hpp"
#include "reference/compare.hpp"
#include "reference/contract_layer.hpp"
#include "reference/float64_layer.hpp"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

// The scalar contract makes some fifty million multiply-adds a second: more than this is left out, and the report says so.
constexpr double kBitwiseBudget = 1e8;

// All ranks' tokens in one piece, owned.
struct GatheredTokens {
  std::vector<int64_t> rows;  // per rank
  std::vector<uint16_t> x;
  std::vector<uint8_t> codes;
  std::vector<float> scales, weights;
  std::vector<int64_t> ids;
  std::vector<uint16_t> y;
  LayerInput input;
};

template <class T>
void append(std::vector<T>& out, const void* values, int64_t count) {
  const auto* typed = static_cast<const T*>(values);
  out.insert(out.end(), typed, typed + count);
}

Result<void> gather_rank(const cpu::RankCall& call, int64_t hidden, int64_t topk, GatheredTokens& out) {
  if (call.num_tokens == 0) return {};
  if (call.quantised) {
    append(out.codes, call.x, call.num_tokens * hidden);
    append(out.scales, call.x_scales, call.num_tokens * hidden / kBlockK);
  } else {
    append(out.x, call.x, call.num_tokens * hidden);
  }
  if (!out.x.empty() && !out.codes.empty())
    return usage_error("some ranks' x is bf16 and others' e4m3; verify wants one type on all ranks");
  for (int64_t i = 0; i < call.num_tokens * topk; ++i) {
    out.ids.push_back(call.wide_ids ? static_cast<const int64_t*>(call.topk_ids)[i] : static_cast<const int32_t*>(call.topk_ids)[i]);
  }
  append(out.weights, call.topk_weights, call.num_tokens * topk);
  return {};
}

struct Run {
  GatheredTokens tokens;
  BackendStages stages;
  cpu::StageTimes times;
  std::vector<uint16_t> cpu_y;  // the CPU backend's output, if another one was asked for
};

Result<std::unique_ptr<monomoe_workspace>> workspace_for(const VerifyRequest& request, int64_t capacity) {
  monomoe_workspace_options options{};
  options.struct_size = sizeof(options);
  options.topk = request.topk;
  options.hidden = request.weights.problem.hidden;
  options.max_intermediate = request.weights.problem.intermediate;
  options.max_experts = request.weights.placement.max_slots();
  options.capacity = capacity;
  return make_workspace(request.context, options);
}

// Runs the CPU backend on output memory of its own and collects what it did.
Result<Run> run_cpu(const VerifyRequest& request) {
  const Problem& problem = request.weights.problem;
  std::vector<cpu::RankCall> calls;
  Run run;
  int64_t most = 0, total = 0;
  for (int32_t rank = 0; rank < request.context.num_ranks; ++rank) {
    auto call = call_from_abi(request.tokens + rank, rank);
    if (!call) return call.error();
    calls.push_back(call.take());
    most = std::max(most, calls.back().num_tokens);
    if (calls.back().num_tokens < 0) return usage_error(fmt::format("rank {}: num_tokens is {}", rank, calls.back().num_tokens));
    run.tokens.rows.push_back(calls.back().num_tokens);
    total += calls.back().num_tokens;
  }
  auto workspace = workspace_for(request, request.capacity == 0 ? most : request.capacity);
  if (!workspace) return workspace.error();
  run.tokens.y.resize(total * problem.hidden);
  uint16_t* y = run.tokens.y.data();
  for (cpu::RankCall& call : calls) {
    call.y = y;
    y += call.num_tokens * problem.hidden;
  }
  if (auto ran = cpu::run_all(*request.weights.cpu, *workspace.value()->cpu, calls, run_options(request.context), &run.times); !ran)
    return ran.error();
  for (const cpu::RankCall& call : calls) {
    if (auto gathered = gather_rank(call, problem.hidden, request.topk, run.tokens); !gathered) return gathered.error();
  }
  run.stages = read_stages(*request.weights.cpu, *workspace.value()->cpu, run.tokens.rows);
  GatheredTokens& t = run.tokens;
  t.input = {problem.hidden,
             problem.intermediate,
             request.topk,
             total,
             t.x,
             t.codes,
             t.scales,
             t.ids,
             t.weights,
             request.weights.swiglu_limit};
  return run;
}

// A GPU's intermediate values are not read back: with the CPU's output to the bit it stands on the CPU's stages. So the CPU backend runs the
// same layer, and the report holds the GPU's output, time and difference.
Result<Run> run_cuda(const VerifyRequest& request) {
  monomoe_context twin;
  twin.num_ranks = request.context.num_ranks;
  twin.num_threads = request.context.num_threads;
  twin.vector_bits = request.context.vector_bits;
  twin.timeout_ms = request.context.timeout_ms;
  const monomoe_weights& weights = request.weights;
  const LayerSource source{weights.problem.hidden, weights.problem.intermediate, weights.problem.weights, request.experts,
                           weights.swiglu_limit,   false};
  auto packed = pack_weights(twin, source, weights.placement);
  if (!packed) return packed.error();
  auto ran = run_cpu({twin, *packed.value(), request.experts, request.topk, request.capacity, request.tokens, {}});
  if (!ran) return ran.error();
  Run run = ran.take();
  run.cpu_y = run.tokens.y;
  const int64_t most = run.tokens.rows.empty() ? 0 : *std::ranges::max_element(run.tokens.rows);
  auto workspace = workspace_for(request, request.capacity == 0 ? most : request.capacity);
  if (!workspace) return workspace.error();
  std::vector<monomoe_tokens> tokens(request.tokens, request.tokens + request.context.num_ranks);
  int64_t first = 0;
  for (monomoe_tokens& one : tokens) {
    one.struct_size = sizeof(one);
    one.y = run.tokens.y.data() + first * weights.problem.hidden;
    first += one.num_tokens;
  }
  std::ranges::fill(run.tokens.y, uint16_t{0xAAAA});
  run.times = {};
  if (auto done = forward_all(weights, *workspace.value(), tokens.data(), &run.times); !done) return done.error();
  return run;
}

// An output computed elsewhere stands on the CPU's stages too, if it is the CPU's to the bit.
Result<Run> run_given(const VerifyRequest& request) {
  auto ran = run_cpu(request);
  if (!ran) return ran.error();
  Run run = ran.take();
  run.cpu_y = run.tokens.y;
  uint16_t* y = run.tokens.y.data();
  for (size_t rank = 0; rank < run.tokens.rows.size(); ++rank) {
    const int64_t values = run.tokens.rows[rank] * request.weights.problem.hidden;
    if (values > 0) std::memcpy(y, request.tokens[rank].y, static_cast<size_t>(values) * sizeof(uint16_t));
    y += values;
  }
  return run;
}

Result<Run> run_backend(const VerifyRequest& request) {
  if (!request.given_by.empty()) return run_given(request);
  return request.context.cuda != nullptr ? run_cuda(request) : run_cpu(request);
}

// Rows are routes (token and slot) or tokens (slot -1).
Json element(const WorstElement& worst, int64_t topk) {
  if (worst.row < 0) return nullptr;
  Json json = {{"token", topk > 0 ? worst.row / topk : worst.row}};
  if (topk > 0) json["slot"] = worst.row % topk;
  json["channel"] = worst.column;
  json["got"] = worst.got;
  json["want"] = worst.want;
  json["bound"] = worst.bound;
  return json;
}

// A measure of closeness: null where no element is finite on both sides.
Json measured(const Comparison& comparison, double value) { return comparison.elements > 0 && comparison.compared == 0 ? Json(nullptr) : Json(value); }

Json stage_report(const char* name, const Comparison& comparison, int64_t topk) {
  return {{"stage", name},
          {"elements", comparison.elements},
          {"outside_bound", comparison.outside_bound},
          {"unjudged", comparison.unjudged},
          {"worst", element(comparison.worst, topk)},
          {"cosine", measured(comparison, comparison.cosine)},
          {"rms_relative", measured(comparison, comparison.rms_relative)}};
}

// Codes and scales of tokens are exact: the reference has the very same ones. Rows no slot wants are not made by the backend.
Json token_stage(const Run& run, const StagedTokens& wanted) {
  const int64_t hidden = run.tokens.input.hidden, blocks = hidden / kBlockK;
  StagedTokens got = run.stages.tokens;
  for (int64_t token = 0; token < run.tokens.input.tokens; ++token) {
    if (run.stages.token_staged[token]) continue;
    std::copy_n(wanted.codes.data() + token * hidden, hidden, got.codes.data() + token * hidden);
    std::copy_n(wanted.scales.data() + token * blocks, blocks, got.scales.data() + token * blocks);
  }
  const BitDifference codes = compare_e4m3_bits(got.codes, wanted.codes, hidden);
  const BitDifference scales = compare_fp32_bits(got.scales, wanted.scales, blocks);
  Json report = {
      {"stage", "tokens"}, {"elements", codes.elements + scales.elements}, {"outside_bound", codes.different + scales.different}};
  const BitDifference& first = codes.ok() ? scales : codes;
  report["worst"] = first.ok() ? Json(nullptr)
                               : Json{{"token", first.row},
                                      {codes.ok() ? "group" : "channel", first.column},
                                      {"got", first.got_value},
                                      {"want", first.want_value},
                                      {"bound", 0}};
  return report;
}

Json bitwise_part(const char* name, const BitDifference& difference) {
  Json json = {{"stage", name}, {"elements", difference.elements}, {"different", difference.different}};
  if (!difference.ok()) json["first"] = describe(difference);
  return json;
}

Result<Json> bitwise_report(const Run& run, std::span<const SourceExpert> experts) {
  const LayerInput& input = run.tokens.input;
  const double work = 3.0 * static_cast<double>(input.hidden) * static_cast<double>(input.intermediate) *
                      std::max(static_cast<double>(input.routes()), static_cast<double>(experts.size()));
  if (work > kBitwiseBudget) {
    return Json{{"checked", false},
                {"why_not", fmt::format("{:.3g} multiply-adds, more than the {:.3g} that scalar code is given", work, kBitwiseBudget)}};
  }
  auto contract = contract_layer(input, experts);
  if (!contract) return contract.error();
  const ContractStages& want = contract.value().stages;
  const BitDifference parts[] = {compare_e4m3_bits(run.stages.mid_codes, want.mid_codes, round_up(input.intermediate, kBlockK)),
                                 compare_fp32_bits(run.stages.mid_scales, want.mid_scales, ceil_div(input.intermediate, kBlockK)),
                                 compare_bf16_bits(run.stages.contributions, want.contributions, input.hidden),
                                 compare_bf16_bits(run.tokens.y, contract.value().y, input.hidden)};
  constexpr const char* kNames[] = {"intermediate codes", "intermediate scales", "contributions", "output"};
  Json json = {{"checked", true}, {"equal", std::ranges::all_of(parts, [](const BitDifference& part) { return part.ok(); })}};
  for (int i = 0; i < 4; ++i) json["stages"].push_back(bitwise_part(kNames[i], parts[i]));
  return json;
}

Json exact_report(const Run& run, const std::vector<double>& exact) {
  const Comparison comparison = compare_values(values_of_bf16(run.tokens.y), exact, {}, run.tokens.input.hidden);
  Json worst = element(comparison.worst, 0);
  if (worst.is_object()) worst.erase("bound");  // the rounding of the weights has none
  return {{"cosine", measured(comparison, comparison.cosine)},
          {"calc_diff", measured(comparison, comparison.calc_diff)},
          {"rms_relative", measured(comparison, comparison.rms_relative)},
          {"worst", worst}};
}

Json times_report(const cpu::StageTimes& t) {
  return {{"wall", t.wall},   {"dispatch", t.dispatch}, {"routes", t.routes}, {"gemm1", t.gemm1},
          {"gemm2", t.gemm2}, {"combine", t.combine},   {"wait", t.wait}};
}

void copy_outputs(const VerifyRequest& request, const Run& run) {
  const uint16_t* y = run.tokens.y.data();
  for (size_t rank = 0; rank < run.tokens.rows.size(); ++rank) {
    const int64_t count = run.tokens.rows[rank] * run.tokens.input.hidden;
    if (request.tokens[rank].y != nullptr && count > 0)
      std::memcpy(request.tokens[rank].y, y, static_cast<size_t>(count) * sizeof(uint16_t));
    y += count;
  }
}

}  // namespace

Result<std::string> verify_layer(const VerifyRequest& request) {
  auto ran = run_backend(request);
  if (!ran) return ran.error();
  const Run& run = ran.value();
  const LayerInput& input = run.tokens.input;
  auto reference = float64_layer(input, request.experts, request.context.num_threads);
  if (!reference) return reference.error();
  const Float64Result& want = reference.value();
  const Comparison middle = compare_values(values_of_groups(run.stages.mid_codes, run.stages.mid_scales, input.intermediate),
                                           want.intermediate.values, want.intermediate.bounds, input.intermediate);
  const Comparison parts =
      compare_values(values_of_bf16(run.stages.contributions), want.contributions.values, want.contributions.bounds, input.hidden);
  const Comparison output = compare_values(values_of_bf16(run.tokens.y), want.output.values, want.output.bounds, input.hidden);
  const Json stages = {token_stage(run, want.tokens), stage_report("intermediate", middle, input.topk),
                       stage_report("contributions", parts, input.topk), stage_report("output", output, 0)};
  auto bitwise = bitwise_report(run, request.experts);
  if (!bitwise) return bitwise.error();
  auto exact = exact_layer(input, request.experts, request.context.num_threads);
  if (!exact) return exact.error();
  const auto diverging = std::ranges::find_if(stages, [](const Json& stage) { return stage["outside_bound"] != 0; });
  const bool bits_hold = !bitwise.value()["checked"].get<bool>() || bitwise.value()["equal"].get<bool>();
  const bool has_twin = request.context.cuda != nullptr || !request.given_by.empty();
  const BitDifference cpu_difference = has_twin ? compare_bf16_bits(run.tokens.y, run.cpu_y, input.hidden) : BitDifference{};
  Json report;
  if (!request.case_line.empty()) report["case"] = request.case_line;
  report["backend"] = !request.given_by.empty() ? request.given_by : request.context.cuda != nullptr ? "cuda" : "cpu";
  report["ok"] = diverging == stages.end() && bits_hold && cpu_difference.ok();
  if (has_twin) {
    report["against_cpu"] = bitwise_part("output", cpu_difference);
    report["stages_of"] = "cpu";  // all but the output
  }
  report["stages"] = stages;
  report["first_diverging_stage"] = diverging == stages.end() ? Json(nullptr) : (*diverging)["stage"];
  report["unjudged"] = output.unjudged;
  report["cosine"] = measured(output, output.cosine);
  report["calc_diff"] = measured(output, output.calc_diff);
  report["worst"] = element(output.worst, 0);
  report["bitwise"] = bitwise.take();
  report["exact_dequantisation"] = exact_report(run, exact.value());
  report["times"] = times_report(run.times);
  copy_outputs(request, run);
  return report.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace monomoe::layer
