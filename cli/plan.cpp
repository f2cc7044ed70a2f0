// plan: is this problem legal, what memory does each rank need, and how long does a layer take.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "options.hpp"
#include "output.hpp"
#include "text_file.hpp"

namespace monomoe::cli {
namespace {

constexpr int64_t kUnset = INT64_MIN;

struct PlanOptions {
  std::string directory, weights;
  int32_t layer = -1;
  int64_t hidden = kUnset, intermediate = kUnset, experts = kUnset, topk = kUnset, ranks = 1, capacity = 1024;
  std::string tokens;
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

std::vector<int64_t> tokens_wanted(const PlanOptions& options) {
  std::vector<int64_t> tokens;
  if (options.tokens.empty()) {
    for (int64_t m = 1; m < options.capacity; m *= 8) tokens.push_back(m);
    if (options.capacity > 0) tokens.push_back(options.capacity);
    return tokens;
  }
  for (const std::string& word : split_at(options.tokens, ',')) {
    const std::optional<int64_t> count = whole_number(word);
    if (!count || *count < 0 || *count > options.capacity)
      usage_error(fmt::format("--tokens {}: '{}' must be a number of tokens of each rank, 0..{} (--capacity)", options.tokens, word, options.capacity));
    tokens.push_back(*count);
  }
  return tokens;
}

Json times_of(const monomoe_problem& problem, const std::vector<int64_t>& tokens) {
  Json times = Json::array();
  for (const int64_t count : tokens) {
    char* json = nullptr;
    check(monomoe_plan_time(&problem, count, &json));
    const Text owner(json);
    times.push_back(parse_report(json));
  }
  return times;
}

std::string plan_times_text(const Json& times) {
  std::string text =
      "time of a layer (uniform routing): expected, and in brackets the least that reading, multiplying and sending allow\n"
      "  tokens a rank  experts touched";
  for (const Json& gpu : times.empty() ? Json::array() : times[0]["gpus"])
    text += fmt::format("  {:>30}", gpu["gpu"].get<std::string>() + (gpu["measured_rates"].get<bool>() ? "" : " (predicted)"));
  text += "\n";
  for (const Json& time : times) {
    text += fmt::format("  {:>13}  {:>15.1f}", time["tokens"].get<int64_t>(), time["touched_experts"].get<double>());
    for (const Json& gpu : time["gpus"])
      text += fmt::format("  {:>30}", fmt::format("{} ({} {})", seconds_text(gpu["expected_seconds"].get<double>()),
                                                  seconds_text(gpu["bound_seconds"].get<double>()), gpu["bound_by"].get<std::string>()));
    text += "\n";
  }
  return text;
}

// What `run` would launch: the same for every number of tokens.
constexpr const char* kLaunch = "one: a single persistent launch a rank, one thread block a multiprocessor, tiles claimed from true counts";

ExitCode plan(const PlanOptions& options) {
  int32_t layer = -1;
  const monomoe_problem problem = problem_of(options, layer);
  char* json = nullptr;
  check(monomoe_plan(&problem, &json));
  const Text owner(json);
  const Json report = parse_report(json);
  const Json times = report.value("legal", false) ? times_of(problem, tokens_wanted(options)) : Json::array();
  if (options.json) {
    Json all = {{"command", "plan"}};
    if (!options.directory.empty()) all.update({{"directory", options.directory}, {"layer", layer}});
    all.update(report);
    all.update({{"launch", "one"}, {"times", times}});
    print_json(all);
  } else {
    print((options.directory.empty() ? "" : fmt::format("{}, layer {}\n", options.directory, layer)) + plan_text(problem, report) +
          (report.value("legal", false) ? fmt::format("launch\n  {}\n{}", kLaunch, plan_times_text(times)) : ""));
  }
  return report.value("legal", false) ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* parser = app.add_subcommand("plan", "Is a problem legal, what memory does each rank need, and how long does a layer take");
  CLI::Option* directory = parser->add_option("DIR", options->directory, "checkpoint directory that says the geometry; options override it");
  parser->add_option("--layer", options->layer, "layer of DIR [the first MoE layer]")->check(whole_number_in(0, 1 << 20))->needs(directory);
  parser->add_option("--hidden", options->hidden, "channels of a token");
  parser->add_option("--intermediate", options->intermediate, "channels between the two GEMMs");
  parser->add_option("--experts", options->experts, "routed experts over all ranks");
  parser->add_option("--topk", options->topk, "slots of a token");
  parser->add_option("--ranks", options->ranks, "ranks [1]");
  parser->add_option("--capacity", options->capacity, "most tokens a rank may bring in one call [1024]");
  parser->add_option("--tokens", options->tokens, "tokens of each rank for which to tell the time, a,b,.. [1,8,64,.. up to the capacity]");
  parser->add_option("--weights", options->weights, "fp8, nvfp4 or mxfp4")->check(CLI::IsMember({"fp8", "nvfp4", "mxfp4"}));
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Exit code 1 when the problem is not legal.\nExample:\n"
                 "  monomoe plan --hidden 4096 --intermediate 2048 --experts 256 --topk 6 --ranks 8 --capacity 512 --weights nvfp4\n"
                 "  monomoe plan examples/tiny-moe-mxfp4 --ranks 4 --capacity 64");
  return {parser, [options] { return plan(*options); }};
}

}  // namespace monomoe::cli
