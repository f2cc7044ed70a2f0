// run: one MoE layer from a checkpoint and a file of hidden states to a file of outputs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <cmath>
#include <memory>

#include "command.hpp"
#include "layer_run.hpp"

namespace monomoe::cli {
namespace {

struct RunOptions {
  LayerOptions layer;
  std::string output;
  bool json = false;
};

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Nearest even; every NaN becomes 0x7FFF, as everywhere in the layer.
uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// y = bf16(routed + shared), both already bf16.
void add_rows(std::vector<uint16_t>& y, const std::vector<uint16_t>& shared) {
  for (size_t i = 0; i < y.size(); ++i) y[i] = to_bf16(from_bf16(y[i]) + from_bf16(shared[i]));
}

Json forward_json(const ForwardResult& result) {
  const monomoe_times& times = result.times;
  return {{"wall", times.wall},
          {"with_workspace", result.wall_seconds},
          {"thread_seconds",
           {{"dispatch", times.dispatch},
            {"routes", times.routes},
            {"gemm1", times.gemm1},
            {"gemm2", times.gemm2},
            {"combine", times.combine},
            {"wait", times.wait}}}};
}

Json bytes_per_rank(const LayerJob& job) {
  monomoe_problem problem = {};
  problem.struct_size = sizeof(problem);
  problem.format = job.info.format;
  problem.hidden = job.info.hidden;
  problem.intermediate = job.info.intermediate;
  problem.experts = job.info.num_experts;
  problem.topk = job.input.topk;
  problem.ranks = job.options.num_ranks;
  problem.capacity = job.capacity;
  char* json = nullptr;
  check(monomoe_plan(&problem, &json));
  const Text text(json);
  return parse_report(json).value("bytes_per_rank", Json::object());
}

std::string times_text(const Json& times) {
  std::string text = "time       ";
  for (const char* stage : {"load", "route", "pack", "forward", "shared", "write", "total"}) {
    if (!times.contains(stage)) continue;
    const Json& value = times[stage];
    text += fmt::format("{}{} {}", stage == std::string("load") ? "" : ", ", stage,
                        seconds_text(value.is_object() ? value["wall"].get<double>() : value.get<double>()));
  }
  text += "\n           forward's thread time: ";
  std::string parts;
  for (const auto& [stage, value] : times["forward"]["thread_seconds"].items())
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", stage, seconds_text(value.get<double>()));
  return text + parts + "\n";
}

// world: null if all ranks are in this process.
ExitCode run_layer(const RunOptions& options, RankWorld* world) {
  const Timer total;
  check_output_path(options.output, options.layer);
  const LayerJob job = prepare_layer(options.layer, world);
  ForwardResult routed = forward_routed(job);
  Json times = {{"load", job.load_seconds}, {"route", job.route_seconds}, {"pack", routed.pack_seconds}, {"forward", forward_json(routed)}};
  if (options.layer.shared_expert == "on") {
    const ForwardResult shared = forward_shared(job);
    times["shared"] = forward_json(shared);
    times["shared"]["pack"] = shared.pack_seconds;
    add_rows(routed.y, shared.y);
  }
  if (world != nullptr && world->rank() != 0) return ExitCode::kOk;
  if (world != nullptr) world->outlive_parent();
  const Timer write;
  const uint64_t output_bytes = write_output(options.output, job, routed.y);
  times["write"] = write.seconds();
  times["total"] = total.seconds();
  Json json = job_json(job, "run");
  json["output"] = options.output;
  if (world != nullptr) json["processes"] = {{"memory", routed.memory}};
  json["times"] = times;
  json["bytes"] = {{"input", job.input.bytes}, {"output", output_bytes}, {"per_rank", bytes_per_rank(job)}};
  if (options.json) {
    print_json(json, options.output);
    return ExitCode::kOk;
  }
  std::string text = job_text(job);
  if (world != nullptr) text += fmt::format("processes  one a rank, memory shared as {}\n", routed.memory);
  text += fmt::format("shared     {}\n", options.layer.shared_expert == "on" ? "added: y = bf16(routed + shared)" : "off: y is the routed experts' sum");
  text += times_text(times);
  text += fmt::format("memory     per rank: ");
  std::string regions;
  for (const auto& [region, bytes] : json["bytes"]["per_rank"].items())
    regions += fmt::format("{}{} {}", regions.empty() ? "" : ", ", region, bytes_text(bytes.get<double>()));
  text += regions + fmt::format("\noutput     {}: y BF16 {}, expert_counts, topk_ids, topk_weights\n", options.output,
                                shape_text(std::vector<int64_t>{job.input.tokens, job.info.hidden}));
  print(text, options.output);
  return ExitCode::kOk;
}

ExitCode run(const RunOptions& options) {
  const LayerOptions& layer = options.layer;
  require_one_launcher(layer.processes);
  if (layer.processes.is_rank())
    return as_rank(layer.processes, layer.num_ranks, layer.context, [&](RankWorld& world) { return run_layer(options, &world); });
  if (!layer.processes.processes) return run_layer(options, nullptr);
  check_output_path(options.output, layer);  // told once, not by every rank
  require_readable_again("--placement", layer.placement);
  return start_ranks(layer.num_ranks);
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* parser = app.add_subcommand("run", "Run one MoE layer of a checkpoint on a file of hidden states");
  parser->add_option("DIR", options->layer.directory, "checkpoint directory; expert tensors alone are enough when IN has ids")->required();
  parser->add_option("--layer", options->layer.layer, "number of the layer")->required()->check(whole_number_in(0, 1 << 20));
  parser->add_option("--input", options->layer.input, "IN.safetensors: x BF16 [T,H]; topk_ids and topk_weights, or neither; token_ids for hash layers")
      ->required();
  parser->add_option("--output", options->output, "OUT.safetensors: y, expert_counts, topk_ids, topk_weights; whole or not at all")->required();
  add_layer_options(*parser, options->layer);
  parser->add_option("--shared-expert", options->layer.shared_expert, "on adds the shared expert to y [off]")->check(CLI::IsMember({"on", "off"}));
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Example:\n  monomoe run examples/tiny-moe-nvfp4 --layer 0 --input examples/tiny-moe-capture/layer0.safetensors \\\n"
                 "    --output /tmp/y.safetensors --ranks 4 --json");
  return {parser, [options] { return run(*options); }};
}

}  // namespace monomoe::cli
