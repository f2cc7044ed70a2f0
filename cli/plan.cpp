// plan: is this problem legal, and what memory does each rank need.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "options.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

constexpr int64_t kUnset = INT64_MIN;

struct PlanOptions {
  std::string directory, weights;
  int32_t layer = -1;
  int64_t hidden = kUnset, intermediate = kUnset, experts = kUnset, topk = kUnset, ranks = 1, capacity = 1024;
  bool json = false;
};

// The wanted layer, or the first number that is a MoE layer (models begin with dense layers).
monomoe_layer_info find_layer(const PlanOptions& options, int32_t& layer) {
  const Checkpoint checkpoint = open_checkpoint(options.directory);
  layer = options.layer;
  if (layer >= 0) return layer_info(checkpoint.get(), layer);
  constexpr int32_t kMostDenseLayers = 1024;
  monomoe_layer_info info = {};
  info.struct_size = sizeof(info);
  for (layer = 0; layer < kMostDenseLayers; ++layer) {
    const monomoe_status status = monomoe_checkpoint_layer_info(checkpoint.get(), layer, &info);
    if (status == MONOMOE_OK) return info;
    if (status != MONOMOE_USAGE) check(status, Origin::kFile);  // a layer that is there and broken, not one that has no experts
  }
  layer = 0;
  return layer_info(checkpoint.get(), layer);  // fails with the reason why layer 0 is none
}

void take(int64_t& field, int64_t value) {
  if (field == kUnset) field = value;
}

monomoe_problem problem_of(PlanOptions options, int32_t& layer) {
  monomoe_problem problem = {};
  problem.struct_size = sizeof(problem);
  if (!options.directory.empty()) {
    const monomoe_layer_info info = find_layer(options, layer);
    take(options.hidden, info.hidden);
    take(options.intermediate, info.intermediate);
    take(options.experts, info.num_experts);
    if (info.topk >= 0) take(options.topk, info.topk);
    problem.format = info.format;
  }
  if (!options.weights.empty()) problem.format = *format_from_word(options.weights);
  std::string missing;
  const std::pair<const char*, bool> needed[] = {{"--hidden", options.hidden == kUnset},
                                                 {"--intermediate", options.intermediate == kUnset},
                                                 {"--experts", options.experts == kUnset},
                                                 {"--topk", options.topk == kUnset},
                                                 {"--weights", options.directory.empty() && options.weights.empty()}};
  for (const auto& [name, is_missing] : needed)
    if (is_missing) missing += std::string(missing.empty() ? "" : ", ") + name;
  if (!missing.empty())
    usage_error(fmt::format("plan needs {}{}", missing,
                            options.directory.empty() ? ", or DIR, which says it" : ": " + options.directory + " does not say it"));
  problem.hidden = options.hidden;
  problem.intermediate = options.intermediate;
  problem.experts = options.experts;
  problem.topk = options.topk;
  problem.ranks = options.ranks;
  problem.capacity = options.capacity;
  return problem;
}

std::string bytes_table(const Json& regions) {
  std::string text;
  for (const auto& [region, bytes] : regions.items()) {
    if (bytes.is_number()) {
      text += fmt::format("  {:<28} {:>16} B {:>12}\n", region, bytes.get<int64_t>(), bytes_text(bytes.get<double>()));
    } else if (bytes.is_object()) {
      text += fmt::format("  {}\n{}", region, fields_text(bytes, 4));
    }
  }
  return text;
}

std::string plan_text(const monomoe_problem& problem, const Json& report) {
  std::string text = fmt::format("{} weights, hidden {}, intermediate {}, experts {}, top-{}, ranks {}, capacity {}: {}\n",
                                 format_word(problem.format), problem.hidden, problem.intermediate, problem.experts, problem.topk,
                                 problem.ranks, problem.capacity, report.value("legal", false) ? "legal" : "NOT LEGAL");
  if (!report.value("legal", false)) return text + fmt::format("rule broken: {}\n", inline_text(report.value("rule", Json())));
  text += fmt::format("bytes per rank\n{}", bytes_table(report.value("bytes_per_rank", Json::object())));
  if (report.contains("regions")) text += fmt::format("regions\n{}", bytes_table(report["regions"]));
  if (report.contains("tiles")) text += fmt::format("tiles\n{}", fields_text(report["tiles"]));
  return text;
}

ExitCode plan(const PlanOptions& options) {
  int32_t layer = -1;
  const monomoe_problem problem = problem_of(options, layer);
  char* json = nullptr;
  check(monomoe_plan(&problem, &json));
  const Text owner(json);
  const Json report = parse_report(json);
  if (options.json) {
    Json all = {{"command", "plan"}};
    if (!options.directory.empty()) all.update({{"directory", options.directory}, {"layer", layer}});
    all.update(report);
    print_json(all);
  } else {
    print((options.directory.empty() ? "" : fmt::format("{}, layer {}\n", options.directory, layer)) + plan_text(problem, report));
  }
  return report.value("legal", false) ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* parser = app.add_subcommand("plan", "Is a problem legal, and how much memory does each rank need");
  CLI::Option* directory = parser->add_option("DIR", options->directory, "checkpoint directory that says the geometry; options override it");
  parser->add_option("--layer", options->layer, "layer of DIR [the first MoE layer]")->check(CLI::Range(0, 1 << 20))->needs(directory);
  parser->add_option("--hidden", options->hidden, "channels of a token");
  parser->add_option("--intermediate", options->intermediate, "channels between the two GEMMs");
  parser->add_option("--experts", options->experts, "routed experts over all ranks");
  parser->add_option("--topk", options->topk, "slots of a token");
  parser->add_option("--ranks", options->ranks, "ranks [1]");
  parser->add_option("--capacity", options->capacity, "most tokens a rank may bring in one call [1024]");
  parser->add_option("--weights", options->weights, "fp8, nvfp4 or mxfp4")->check(CLI::IsMember({"fp8", "nvfp4", "mxfp4"}));
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Exit code 1 when the problem is not legal.\nExample:\n"
                 "  monomoe plan --hidden 4096 --intermediate 2048 --experts 256 --topk 6 --ranks 8 --capacity 512 --weights nvfp4\n"
                 "  monomoe plan examples/tiny-moe-mxfp4 --ranks 4 --capacity 64");
  return {parser, [options] { return plan(*options); }};
}

}  // namespace monomoe::cli
