// The reports of a benchmark: one row's figures, and a launch's trace for Chrome's trace viewer and Perfetto.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "layer/bench.hpp"
#include "layer/launch_choice.hpp"
#include "layer/machine.hpp"
#include "plan/problem_text.hpp"
#include "plan/task_order.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

const char* mode_word(cuda::BenchMode mode) {
  switch (mode) {
    case cuda::BenchMode::kCold:
      return "cold";
    case cuda::BenchMode::kGraph:
      return "graph";
    case cuda::BenchMode::kBackToBack:
      break;
  }
  return "back-to-back";
}

const char* routing_word(RoutingKind kind) {
  switch (kind) {
    case RoutingKind::kUniform:
      return "uniform";
    case RoutingKind::kZipf:
      return "zipf";
    case RoutingKind::kHot:
      break;
  }
  return "hot";
}

const char* kind_word(int32_t kind) {
  constexpr const char* kWords[] = {"dispatch", "routes", "arrange", "gemm1", "gemm2", "combine"};
  static_assert(static_cast<size_t>(TaskKind::kNone) == std::size(kWords));
  return kind >= 0 && kind < static_cast<int32_t>(std::size(kWords)) ? kWords[kind] : "unknown";
}

double flops_of(const Problem& p, int64_t routes) {
  return 2.0 * 3.0 * static_cast<double>(p.hidden) * static_cast<double>(p.intermediate) * static_cast<double>(routes);
}

Json read_json(const Measured& measured) {
  // Of the GPU that takes longest.
  const WorkLimits& slowest = *std::ranges::max_element(measured.limits, {}, &WorkLimits::read_seconds);
  const double seconds = slowest.read_seconds;
  return {{"bytes", slowest.bytes}, {"median", seconds}, {"bytes_per_second", seconds > 0 ? static_cast<double>(slowest.bytes) / seconds : 0}};
}

Json gemm_json(const monomoe_bench& bench) {
  if (!bench.gemm) return {{"flops_per_second", nullptr}, {"why_not", "backend cpu is not compared with another library's product"}};
  if (!*bench.gemm) return {{"flops_per_second", nullptr}, {"why_not", bench.gemm->error().message}};
  return {{"flops_per_second", bench.gemm->value().flops_per_second}, {"library", bench.gemm->value().library}};
}

// The larger of read and products, on the GPU where it is largest.
void add_bound(const monomoe_bench& bench, const Measured& measured, double median, Json& report) {
  report.update({{"bound", nullptr}, {"bound_by", nullptr}, {"ratio", nullptr}});
  double bound = 0;
  const char* by = "read";
  for (const WorkLimits& limits : measured.limits) {
    if (limits.flops_per_second <= 0) return;
    const double products = flops_of(bench.problem, limits.routes) / limits.flops_per_second;
    if (std::max(products, limits.read_seconds) <= bound) continue;
    bound = std::max(products, limits.read_seconds);
    by = products > limits.read_seconds ? "products" : "read";
  }
  report.update({{"bound", bound}, {"bound_by", by}, {"ratio", median / bound}});
}

struct KindTimes {
  int64_t tasks = 0, split = 0;  // split: tasks that have all four times
  uint64_t first = UINT64_MAX, last = 0;
  double parts[3] = {}, total = 0;
};

Json event_json(const char* name, const cuda::TracedTask& task, uint64_t origin, uint64_t begin, uint64_t end) {
  const auto microseconds = [](uint64_t nanoseconds) { return static_cast<double>(static_cast<int64_t>(nanoseconds)) * 1e-3; };
  return {{"name", name},           {"ph", "X"}, {"pid", task.rank}, {"tid", task.thread_block}, {"ts", microseconds(begin - origin)},
          {"dur", microseconds(end - begin)}};
}

void add_events(const cuda::TracedTask& task, uint64_t origin, Json& events) {
  Json whole = event_json(kind_word(task.kind), task, origin, task.time[0], task.time[3]);
  whole["args"] = {{"block", task.block}, {"tile", task.tile}, {"count", task.count}};
  events.push_back(std::move(whole));
  if (task.time[1] == 0 || task.time[2] == 0) return;
  constexpr const char* kParts[] = {"wait", "main", "after"};
  for (int part = 0; part < 3; ++part) events.push_back(event_json(kParts[part], task, origin, task.time[part], task.time[part + 1]));
}

Json kind_json(int32_t kind, const KindTimes& times, uint64_t origin) {
  const auto seconds = [&](uint64_t at) { return static_cast<double>(at - origin) * 1e-9; };
  const auto mean = [](double sum, int64_t count) { return count > 0 ? Json(sum / static_cast<double>(count) * 1e-9) : Json(nullptr); };
  return {{"kind", kind_word(kind)},
          {"tasks", times.tasks},
          {"first", seconds(times.first)},
          {"last", seconds(times.last)},
          {"wait", mean(times.parts[0], times.split)},
          {"main", mean(times.parts[1], times.split)},
          {"after", mean(times.parts[2], times.split)},
          {"total", mean(times.total, times.tasks)}};
}

void add_names(const cuda::LaunchTrace& trace, const std::string& name, Json& events) {
  std::map<int32_t, int32_t> blocks;  // of each rank, the highest seen
  for (const cuda::TracedTask& task : trace.tasks) blocks[task.rank] = std::max(blocks[task.rank], task.thread_block);
  for (const auto& [rank, last] : blocks) {
    events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", name + ", rank " + std::to_string(rank)}}}});
    for (int32_t block = 0; block <= last; ++block) {
      events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", block}, {"args", {{"name", "block " + std::to_string(block)}}}});
    }
  }
}

}  // namespace

double median_of(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

double quantile_of(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(samples.size())));
  return samples[std::clamp<size_t>(rank, 1, samples.size()) - 1];
}

std::string bench_report(const monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens, const Measured& measured, bool checked_with_cpu) {
  const Problem& p = bench.problem;
  const bool is_cuda = bench.context->cuda != nullptr;
  const std::vector<double>& seconds = measured.samples.seconds;
  const double median = median_of(seconds);
  Json report = {{"backend", is_cuda ? "cuda" : "cpu"},
                 {"device", is_cuda ? bench.cuda->device() : cpu_model()},
                 {"format", weight_format_text(p.weights)},
                 {"hidden", p.hidden},
                 {"intermediate", p.intermediate},
                 {"experts", p.experts},
                 {"topk", p.topk},
                 {"ranks", p.ranks},
                 {"capacity", p.capacity},
                 {"tokens", std::ranges::max(call.tokens)},
                 {"tokens_per_rank", call.tokens},
                 {"launch", launch_word(call.launch)},
                 {"mode", mode_word(call.mode)},
                 {"routing", routing_word(call.routing.kind)},
                 {"routing_value", call.routing.value},
                 {"seed", bench.seed},
                 {"routes", tokens.routes()},
                 {"touched_experts", tokens.touched_experts()},
                 {"largest_expert", tokens.largest_expert},
                 {"repeats", seconds.size()},
                 {"calls_per_sample", call.mode == cuda::BenchMode::kBackToBack ? cuda::kBackToBackCalls : 1},
                 {"median", median},
                 {"min", quantile_of(seconds, 0)},
                 {"p10", quantile_of(seconds, 0.1)},
                 {"p90", quantile_of(seconds, 0.9)},
                 {"samples", seconds},
                 {"steps", Json::array()},
                 {"flops", flops_of(p, tokens.routes())},
                 {"read", read_json(measured)},
                 {"gemm", gemm_json(bench)}};
  for (const cuda::BenchStep& step : measured.samples.steps) report["steps"].push_back({{"step", step.name}, {"median", median_of(step.seconds)}});
  add_bound(bench, measured, median, report);
  report["checked"] = {{"runs_equal", true}, {"cpu", checked_with_cpu}};
  report["processes"] = bench.world == nullptr ? Json(nullptr) : Json{{"memory", bench.memory->how}, {"medians", measured.medians}};
  return report.dump();
}

std::string trace_report(const cuda::LaunchTrace& trace, const std::string& name) {
  uint64_t origin = UINT64_MAX, last = 0;
  for (const cuda::TracedTask& task : trace.tasks) {
    origin = std::min(origin, task.time[0]);
    last = std::max(last, task.time[3]);
  }
  Json events = Json::array();
  add_names(trace, name, events);
  std::map<int32_t, KindTimes> kinds;
  double busy = 0;
  for (const cuda::TracedTask& task : trace.tasks) {
    add_events(task, origin, events);
    KindTimes& times = kinds[task.kind];
    ++times.tasks;
    times.first = std::min(times.first, task.time[0]);
    times.last = std::max(times.last, task.time[3]);
    times.total += static_cast<double>(task.time[3] - task.time[0]);
    busy += static_cast<double>(task.time[3] - task.time[0]);
    if (task.time[1] == 0 || task.time[2] == 0) continue;
    ++times.split;
    for (int part = 0; part < 3; ++part) times.parts[part] += static_cast<double>(task.time[part + 1] - task.time[part]);
  }
  const double span = trace.tasks.empty() ? 0 : static_cast<double>(last - origin);
  Json report = {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}, {"summary", Json::array()}, {"span", span * 1e-9},
                 {"busy", span > 0 && trace.thread_blocks > 0 ? busy / span / trace.thread_blocks : 0.0}, {"complete", trace.complete}};
  for (const auto& [kind, times] : kinds) report["summary"].push_back(kind_json(kind, times, origin));
  return report.dump();
}

}  // namespace monomoe::layer
