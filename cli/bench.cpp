// bench: the time of a layer with random weights on this machine, beside a plain read of its weights and a large product.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bench_rows.hpp"
#include "command.hpp"
#include "output.hpp"
#include "text_file.hpp"

namespace monomoe::cli {
namespace {

std::string rate_text(double value, double unit, const char* word) { return fmt::format("{:.4g} {}", value / unit, word); }

// What all rows of a group share.
std::string group_text(const Json& row) {
  std::string text = fmt::format("{} {}/{}, {} experts, top-{}, {} rank{}, capacity {}; {}, {}", row["format"].get<std::string>(),
                                 row["hidden"].get<int64_t>(), row["intermediate"].get<int64_t>(), row["experts"].get<int64_t>(),
                                 row["topk"].get<int64_t>(), row["ranks"].get<int64_t>(), row["ranks"] == 1 ? "" : "s",
                                 row["capacity"].get<int64_t>(), row["device"].get<std::string>(), row["backend"].get<std::string>());
  if (const Json& processes = row["processes"]; !processes.is_null())
    text += fmt::format("\n  each rank is a process ({}); they share {}", processes["why"].get<std::string>(), processes["memory"].get<std::string>());
  const Json& gemm = row["gemm"];
  text += gemm["flops_per_second"].is_null() ? fmt::format("\n  no rate of a product to compare with: {}\n", gemm["why_not"].get<std::string>())
                                             : fmt::format("\n  FP8 product of 8192^3: {} ({})\n", rate_text(gemm["flops_per_second"], 1e12, "TFLOP/s"),
                                                           gemm["library"].get<std::string>());
  return text + fmt::format("  {:>6} {:<8} {:<12} {:<10} {:>11} {:>11} {:>11} {:>11} {:>10} {:>11} {:>11}  {:>6} {}\n", "tokens", "launch", "mode",
                            "routing", "median", "min", "p10", "p90", "GFLOP/s", "read", "bound", "ratio", "bits");
}

std::string time_text(const Json& seconds) { return seconds.is_null() ? "-" : fmt::format("{:.1f} us", seconds.get<double>() * 1e6); }

// Of each rank, or one number if all have as many.
std::string tokens_text(const Json& row) {
  const auto counts = row["tokens_per_rank"].get<std::vector<int64_t>>();
  return std::ranges::min(counts) == std::ranges::max(counts) ? std::to_string(counts[0]) : fmt::format("{}", fmt::join(counts, "+"));
}

std::string row_text(const Json& row) {
  const std::string routing = row["routing"] == "uniform" ? "uniform" : fmt::format("{}:{:g}", row["routing"].get<std::string>(), row["routing_value"].get<double>());
  std::string text = fmt::format("  {:>6} {:<8} {:<12} {:<10} {:>11} {:>11} {:>11} {:>11} {:>10.1f} {:>11} {:>11}  {:>6} {}\n",
                                 tokens_text(row), row["launch"].get<std::string>(), row["mode"].get<std::string>(), routing,
                                 time_text(row["median"]), time_text(row["min"]), time_text(row["p10"]), time_text(row["p90"]),
                                 row["flops"].get<double>() / row["median"].get<double>() * 1e-9, time_text(row["read"]["median"]), time_text(row["bound"]),
                                 row["ratio"].is_null() ? "-" : fmt::format("{:.2f}", row["ratio"].get<double>()),
                                 row["checked"]["cpu"] == true ? "as backend cpu's" : "equal");
  std::string steps;
  for (const Json& step : row["steps"]) {
    steps += fmt::format("{}{} {}", steps.empty() ? "" : ", ", step["step"].get<std::string>(), time_text(step["median"]));
  }
  if (!steps.empty()) text += "         " + steps + "\n";
  if (row["processes"].is_null()) return text;
  std::string medians;
  for (const Json& median : row["processes"]["medians"]) medians += (medians.empty() ? "" : ", ") + time_text(median);
  return text + "         medians of the ranks " + medians + "\n";
}

std::string trace_text(const Json& trace) {
  std::string text = fmt::format("         {:<9} {:>6} {:>11} {:>11} | mean {:>10} {:>10} {:>10} {:>10}\n", "task", "count", "first", "last", "wait",
                                 "main", "after", "total");
  for (const Json& kind : trace["summary"]) {
    text += fmt::format("         {:<9} {:>6} {:>11} {:>11} |      {:>10} {:>10} {:>10} {:>10}\n", kind["kind"].get<std::string>(),
                        kind["tasks"].get<int64_t>(), time_text(kind["first"]), time_text(kind["last"]), time_text(kind["wait"]),
                        time_text(kind["main"]), time_text(kind["after"]), time_text(kind["total"]));
  }
  return text + fmt::format("         {} from the first task to the last; thread blocks busy {:.1f} % of it{}\n", time_text(trace["span"]),
                            trace["busy"].get<double>() * 100, trace["complete"] == true ? "" : "; more tasks than the trace holds");
}

// All rows' traces in one file: a row's ranks are processes of their own.
class TraceFile {
 public:
  void add(const Json& trace) {
    int64_t highest = 0;
    for (Json event : trace["traceEvents"]) {
      const auto rank = event["pid"].get<int64_t>();
      highest = std::max(highest, rank + 1);
      event["pid"] = first_process_ + rank;
      events_.push_back(std::move(event));
    }
    first_process_ += highest;
  }
  void write(const std::string& path) const { write_lines(path, Json{{"traceEvents", events_}, {"displayTimeUnit", "ns"}}.dump() + "\n"); }

 private:
  Json events_ = Json::array();
  int64_t first_process_ = 0;
};

struct Output {
  bool json = false;
  bool trace = false;
  bool is_silent = false;  // of another rank than the first
  Json rows = Json::array();
  TraceFile traces;
  std::string group;

  void add(const Json& row, const Json& trace) {
    rows.push_back(row);
    if (!trace.is_null()) {
      traces.add(trace);
      rows.back()["trace"] = {{"summary", trace["summary"]}, {"span", trace["span"]}, {"busy", trace["busy"]}, {"complete", trace["complete"]}};
    }
    if (json || is_silent) return;
    const std::string head = group_text(row);
    print((head == group ? "" : head) + row_text(row) + (trace.is_null() ? "" : trace_text(trace)));
    group = head;
  }
};

Json text_of(monomoe_status status, char* text) {
  check(status);
  const Text owner(text);
  return parse_report(text);
}

// What the backend taken does not have, before anything is measured.
void check_possible(const BenchOptions& options, const LayerRows& layer, const monomoe_context* context, const RankWorld* world) {
  const char* of_context = "";
  if (monomoe_context_backend(context, &of_context) == MONOMOE_BACKEND_CUDA) return;
  const std::string why = world != nullptr ? world->why() : of_context;
  const ExitCode code = options.context.backend == "cpu" ? ExitCode::kUsage : ExitCode::kUnavailable;
  const auto refuse = [&](const char* option, const char* what) {
    throw Failure(code, fmt::format("{} {}, which backend cuda alone has ({}); leave it out, or use backend cuda", option, what, why));
  };
  for (const RowCall& row : layer.calls) {
    if (row.call.launch != MONOMOE_LAUNCH_ONE) refuse("--launch", row.call.launch == MONOMOE_LAUNCH_SPLIT ? "has split" : "has unfused");
    if (row.call.mode == MONOMOE_BENCH_GRAPH) refuse("--mode", "has graph");
  }
  if (!options.trace.empty()) refuse("--trace", "shows the launches of the kernel");
  if (options.check) refuse("--check", "compares another backend with cpu");
}

// Rows of one layer; the handles go before the next layer takes its memory.
// world: null if all ranks are in this process.
void run_layer(const BenchOptions& options, const LayerRows& layer, const RankWorld* world, Output& output) {
  const Context context = world != nullptr ? world->create_context() : options.context.create(layer.ranks);
  check_possible(options, layer, context.get(), world);
  monomoe_bench* handle = nullptr;
  check(world != nullptr ? monomoe_world_bench_create(world->handle(), context.get(), &layer.layer, &handle)
                         : monomoe_bench_create(context.get(), &layer.layer, &handle),
        layer.origin());
  const std::unique_ptr<monomoe_bench, Destroyer<monomoe_bench_destroy>> bench(handle);
  for (const RowCall& asked : layer.calls) {
    const monomoe_bench_call call = asked.view();
    char* text = nullptr;
    monomoe_status status = monomoe_bench_run(bench.get(), &call, &text);
    Json row = text_of(status, text);
    if (world != nullptr) row["processes"]["why"] = world->why();
    Json trace;
    if (output.trace) {
      status = monomoe_bench_trace(bench.get(), &call, &text);
      trace = text_of(status, text);
    }
    output.add(row, trace);
  }
}

// The layers that this rank takes part in, each in a world of its own, as large as the layer has ranks.
void run_as_rank(const BenchOptions& options, const std::vector<LayerRows>& layers, Output& output) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (options.processes.rank >= layers[i].ranks) continue;
    ProcessOptions processes = options.processes;
    processes.world = world_of_part(options.processes.world, static_cast<int64_t>(i));
    as_rank(processes, layers[i].ranks, options.context, [&](RankWorld& world) {
      require_same_arguments(world, settings_of(options));
      run_layer(options, layers[i], &world, output);
      return ExitCode::kOk;
    });
  }
}

void check_processes(const BenchOptions& options, int32_t ranks) {
  const ProcessOptions& processes = options.processes;
  if (!processes.processes && !processes.is_rank()) return;
  if (processes.rank >= ranks) usage_error(fmt::format("--rank {} of {} ranks: wanted 0 to {}", processes.rank, ranks, ranks - 1));
  if (!options.trace.empty())
    usage_error(fmt::format("--trace shows the ranks of one process, and {} makes each a process of its own; leave one of them out",
                            processes.starts_ranks() ? "--processes" : "--rank"));
}

ExitCode bench(const BenchOptions& options) {
  require_one_launcher(options.processes);
  if (!options.trace.empty()) check_output_place("--trace", options.trace);
  if (!options.trace.empty() && std::ranges::find(options.launches, "unfused") != options.launches.end())
    usage_error("--trace shows the tasks of the fused kernel, and --launch has unfused, whose kernels have none; its rows time each of them");
  if (options.processes.starts_ranks()) require_readable_again("--cases", options.cases);
  const std::vector<LayerRows> layers = layers_of(options);
  const int32_t ranks = std::ranges::max_element(layers, {}, &LayerRows::ranks)->ranks;
  check_processes(options, ranks);
  if (options.processes.is_rank()) (void)world_of_part(options.processes.world, static_cast<int64_t>(layers.size()) - 1);  // the longest
  if (options.processes.starts_ranks()) return start_ranks(ranks);
  Output output;
  output.json = options.json;
  output.trace = !options.trace.empty();
  output.is_silent = options.processes.rank > 0;
  if (options.processes.is_rank()) run_as_rank(options, layers, output);
  for (const LayerRows& layer : layers) {
    if (!options.processes.is_rank()) run_layer(options, layer, nullptr, output);
  }
  if (output.is_silent) return ExitCode::kOk;
  if (output.trace) output.traces.write(options.trace);
  if (options.json) print_json({{"command", "bench"}, {"version", monomoe_version()}, {"rows", output.rows}}, options.trace);
  return ExitCode::kOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* parser = app.add_subcommand("bench", "Time a layer with random weights, beside a plain read of its weights and a large product");
  add_bench_options(*parser, *options);
  parser->footer("Exit code 1 when runs do not give the same bits.\nExample:\n"
                 "  monomoe bench --geometry flash --weights nvfp4,fp8 --tokens 1,16,256,4096\n"
                 "  monomoe bench --geometry pro --weights nvfp4 --tokens 4 --capacity 8192 --launch one,split,unfused --mode cold,graph\n"
                 "  monomoe bench --geometry flash --weights nvfp4 --tokens 8,64,32+128 --ranks 2 --processes      (each rank on a GPU of its own)\n"
                 "  monomoe bench --geometry flash --weights nvfp4 --tokens 4 --trace trace.json      (open in ui.perfetto.dev)\n"
                 "  monomoe bench --hidden 1024 --intermediate 512 --experts 8 --topk 2 --weights fp8 --tokens 64 --routing zipf:1 --backend cpu");
  return {parser, [options] { return bench(*options); }};
}

}  // namespace monomoe::cli
