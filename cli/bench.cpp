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
  const Json& gemm = row["gemm"];
  text += gemm["flops_per_second"].is_null() ? fmt::format("\n  no rate of a product to compare with: {}\n", gemm["why_not"].get<std::string>())
                                             : fmt::format("\n  FP8 product of 8192^3: {} ({})\n", rate_text(gemm["flops_per_second"], 1e12, "TFLOP/s"),
                                                           gemm["library"].get<std::string>());
  return text + fmt::format("  {:>6} {:<8} {:<12} {:<10} {:>11} {:>11} {:>11} {:>11} {:>10} {:>11} {:>11}  {:>6} {}\n", "tokens", "launch", "mode",
                            "routing", "median", "min", "p10", "p90", "GFLOP/s", "read", "bound", "ratio", "bits");
}

std::string time_text(const Json& seconds) { return seconds.is_null() ? "-" : fmt::format("{:.1f} us", seconds.get<double>() * 1e6); }

std::string row_text(const Json& row) {
  const std::string routing = row["routing"] == "uniform" ? "uniform" : fmt::format("{}:{:g}", row["routing"].get<std::string>(), row["routing_value"].get<double>());
  std::string text = fmt::format("  {:>6} {:<8} {:<12} {:<10} {:>11} {:>11} {:>11} {:>11} {:>10.1f} {:>11} {:>11}  {:>6} {}\n",
                                 row["tokens"].get<int64_t>(), row["launch"].get<std::string>(), row["mode"].get<std::string>(), routing,
                                 time_text(row["median"]), time_text(row["min"]), time_text(row["p10"]), time_text(row["p90"]),
                                 row["flops"].get<double>() / row["median"].get<double>() * 1e-9, time_text(row["read"]["median"]), time_text(row["bound"]),
                                 row["ratio"].is_null() ? "-" : fmt::format("{:.2f}", row["ratio"].get<double>()),
                                 row["checked"]["cpu"] == true ? "as backend cpu's" : "equal");
  std::string steps;
  for (const Json& step : row["steps"]) {
    steps += fmt::format("{}{} {}", steps.empty() ? "" : ", ", step["step"].get<std::string>(), time_text(step["median"]));
  }
  return steps.empty() ? text : text + "         " + steps + "\n";
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
  Json rows = Json::array();
  TraceFile traces;
  std::string group;

  void add(const Json& row, const Json& trace) {
    rows.push_back(row);
    if (!trace.is_null()) {
      traces.add(trace);
      rows.back()["trace"] = {{"summary", trace["summary"]}, {"span", trace["span"]}, {"busy", trace["busy"]}, {"complete", trace["complete"]}};
    }
    if (json) return;
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
void check_possible(const BenchOptions& options, const LayerRows& layer, const monomoe_context* context) {
  const char* why = "";
  if (monomoe_context_backend(context, &why) == MONOMOE_BACKEND_CUDA) return;
  const ExitCode code = options.context.backend == "cpu" ? ExitCode::kUsage : ExitCode::kUnavailable;
  const auto refuse = [&](const char* option, const char* what) {
    throw Failure(code, fmt::format("{} {}, which backend cuda alone has ({}); leave it out, or use backend cuda", option, what, why));
  };
  for (const monomoe_bench_call& call : layer.calls) {
    if (call.launch != MONOMOE_LAUNCH_ONE) refuse("--launch", call.launch == MONOMOE_LAUNCH_SPLIT ? "has split" : "has unfused");
    if (call.mode == MONOMOE_BENCH_GRAPH) refuse("--mode", "has graph");
  }
  if (!options.trace.empty()) refuse("--trace", "shows the launches of the kernel");
  if (options.check) refuse("--check", "compares another backend with cpu");
}

// Rows of one layer; the handles go before the next layer takes its memory.
void run_layer(const BenchOptions& options, const LayerRows& layer, Output& output) {
  const Context context = options.context.create(layer.ranks);
  check_possible(options, layer, context.get());
  monomoe_bench* handle = nullptr;
  check(monomoe_bench_create(context.get(), &layer.layer, &handle), layer.origin());
  const std::unique_ptr<monomoe_bench, Destroyer<monomoe_bench_destroy>> bench(handle);
  for (const monomoe_bench_call& call : layer.calls) {
    char* text = nullptr;
    monomoe_status status = monomoe_bench_run(bench.get(), &call, &text);
    const Json row = text_of(status, text);
    Json trace;
    if (output.trace) {
      status = monomoe_bench_trace(bench.get(), &call, &text);
      trace = text_of(status, text);
    }
    output.add(row, trace);
  }
}

ExitCode bench(const BenchOptions& options) {
  if (!options.trace.empty()) check_output_place("--trace", options.trace);
  if (!options.trace.empty() && std::ranges::find(options.launches, "unfused") != options.launches.end())
    usage_error("--trace shows the tasks of the fused kernel, and --launch has unfused, whose kernels have none; its rows time each of them");
  Output output;
  output.json = options.json;
  output.trace = !options.trace.empty();
  for (const LayerRows& layer : layers_of(options)) run_layer(options, layer, output);
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
                 "  monomoe bench --geometry flash --weights nvfp4 --tokens 4 --trace trace.json      (open in ui.perfetto.dev)\n"
                 "  monomoe bench --hidden 1024 --intermediate 512 --experts 8 --topk 2 --weights fp8 --tokens 64 --routing zipf:1 --backend cpu");
  return {parser, [options] { return bench(*options); }};
}

}  // namespace monomoe::cli
