// verify: a checkpoint's files and values, one layer's arithmetic against the float64 reference, or a file of cases.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "command.hpp"
#include "layer_run.hpp"
#include "text_file.hpp"

namespace monomoe::cli {
namespace {

struct VerifyOptions {
  LayerOptions layer;
  std::string output, cases;
  bool structure = false, json = false;
  std::vector<const CLI::Option*> computing;  // options of a computation
};

ExitCode verdict(bool ok) { return ok ? ExitCode::kOk : ExitCode::kCheckFailed; }

// "where: file: tensor: what" without empty parts and without what the sentence names anyway; a note may also be a plain sentence.
std::string problem_text(const Json& problem) {
  if (!problem.is_object()) return inline_text(problem);
  const std::string what = inline_text(problem.value("what", Json("")));
  std::string text;
  for (const char* part : {"where", "file", "tensor"}) {
    const std::string value = inline_text(problem.value(part, Json("")));
    if (!value.empty() && what.find(value) == std::string::npos) text += value + ": ";
  }
  return text + what;
}

// What is no problem of the checkpoint but of what was asked: a directory that cannot be read, a layer that it does not have.
void check_there(const LayerOptions& options) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(options.directory, error);
  if (error)
    input_error(fmt::format("{}: cannot be read: {}; wanted a checkpoint directory", options.directory, error.message()));
  if (options.layer < 0) return;
  monomoe_checkpoint* handle = nullptr;
  if (monomoe_checkpoint_open(options.directory.c_str(), &handle) != MONOMOE_OK) return;  // the report says why
  const Checkpoint checkpoint(handle);
  monomoe_layer_info info = {};
  info.struct_size = sizeof(info);
  const monomoe_status status = monomoe_checkpoint_layer_info(checkpoint.get(), options.layer, &info);
  if (status == MONOMOE_USAGE) check(status);
}

ExitCode verify_files(const VerifyOptions& options) {
  check_there(options.layer);
  char* report = nullptr;
  check(monomoe_checkpoint_verify(options.layer.directory.c_str(), options.layer.layer, options.structure ? 0 : 1, &report));
  const Text owner(report);
  const Json json = parse_report(report);
  const bool ok = json.value("ok", false);
  if (options.json) {
    print_json(json);
    return verdict(ok);
  }
  const Json problems = json.value("problems", Json::array());
  // A shard that is missing is a problem of each of its tensors: the first of a file are told here, all in JSON.
  constexpr int64_t kToldOfFile = 20;
  std::map<std::string, int64_t> of_file;
  std::string text;
  for (const Json& problem : problems) {
    const std::string file = problem.value("file", "");
    if (const int64_t told = of_file[file]++; file.empty() || told < kToldOfFile) text += fmt::format("problem: {}\n", problem_text(problem));
  }
  for (const auto& [file, count] : of_file) {
    if (!file.empty() && count > kToldOfFile) text += fmt::format("problem: {}: and {} more problems of this file; --json lists them\n", file, count - kToldOfFile);
  }
  for (const Json& note : json.value("notes", Json::array())) text += fmt::format("note: {}\n", problem_text(note));
  print(text + fmt::format("verify {}{}: {}\n", options.layer.directory, options.structure ? " (structure, no values)" : "",
                           ok ? "no problems" : fmt::format("{} problem{}", problems.size(), problems.size() == 1 ? "" : "s")));
  return verdict(ok);
}

std::string stages_text(const Json& report) {
  std::string text = fmt::format("{:<16} {:>12} {:>14}  worst\n", "stage", "elements", "outside bound");
  for (const Json& stage : report.value("stages", Json::array()))
    text += fmt::format("{:<16} {:>12} {:>14}  {}\n", stage.value("stage", "?"), stage.value("elements", int64_t{0}),
                        stage.value("outside_bound", int64_t{0}), inline_text(stage.value("worst", Json())));
  return text;
}

std::string bitwise_text(const Json& bitwise) {
  if (!bitwise.value("checked", false)) return fmt::format("not compared: {}", inline_text(bitwise.value("why_not", Json())));
  return bitwise.value("equal", false) ? std::string("equal in every stage") : fmt::format("DIFFERENT: {}", inline_text(bitwise.value("stages", Json())));
}

std::string report_text(const Json& report) {
  std::string text = stages_text(report);
  const auto line = [&](const char* label, const char* key) {
    text += fmt::format("{:<22}{}\n", label, inline_text(report.value(key, Json())));
  };
  line("worst element", "worst");
  line("cosine", "cosine");
  line("calc_diff", "calc_diff");
  if (report.value("first_diverging_stage", Json()).is_null()) {
    text += fmt::format("{:<22}none\n", "first diverging stage");
  } else {
    line("first diverging stage", "first_diverging_stage");
  }
  if (report.contains("against_cpu")) line("against the CPU", "against_cpu");
  if (report.contains("bitwise")) text += fmt::format("{:<22}{}\n", "bits of the contract", bitwise_text(report["bitwise"]));
  line("exact dequantisation", "exact_dequantisation");  // for information: not part of the verdict
  line("times, s", "times");
  return text;
}

std::string verdict_text(const Json& report, bool ok) {
  const int64_t unjudged = report.value("unjudged", int64_t{0});
  const std::string without = unjudged == 0 ? "" : fmt::format("; {} elements of the output have none, since a value before them is not finite or may overflow", unjudged);
  return fmt::format("verify: {} the derived bound{}\n", ok ? "inside" : "OUTSIDE", without);
}

// The library's report; y gets, or in a world holds, the output.
Json checked_layer(const LayerJob& job, std::vector<uint16_t>& y) {
  const std::vector<monomoe_tokens> tokens = job.tokens_view(job.input.ids, job.input.weights, job.input.topk, y.data());
  const monomoe_placement placement = job.placement ? job.placement->view() : monomoe_placement{};
  const monomoe_placement* where = job.placement ? &placement : nullptr;
  const auto topk = static_cast<int32_t>(job.input.topk);
  char* report = nullptr;
  if (job.world == nullptr) {
    check(monomoe_checkpoint_verify_run(job.context.get(), job.checkpoint.get(), job.options.layer, where, job.clamp.argument, topk, tokens.data(), &report),
          Origin::kFile);
  } else {
    ContextOptions cpu = job.options.context;
    cpu.backend = "cpu";
    cpu.launch = "auto";
    const Context all_ranks = cpu.create(job.options.num_ranks);
    check(monomoe_checkpoint_verify_output(all_ranks.get(), job.checkpoint.get(), job.options.layer, where, job.clamp.argument, topk, tokens.data(),
                                           monomoe_context_backend(job.context.get(), nullptr), &report),
          Origin::kFile);
  }
  const Text owner(report);
  return parse_report(report);
}

// world: null if all ranks are in this process.
ExitCode verify_layer(const VerifyOptions& options, RankWorld* world) {
  if (!options.output.empty()) check_output_path(options.output, options.layer);
  const LayerJob job = prepare_layer(options.layer, world);
  ForwardResult computed;
  if (world != nullptr) computed = forward_routed(job);
  if (world != nullptr && world->rank() != 0) return ExitCode::kOk;
  std::vector<uint16_t> y = std::move(computed.y);
  y.resize(job.input.x.size());
  const Json json = checked_layer(job, y);
  const bool ok = json.value("ok", false);
  if (world != nullptr) world->outlive_parent();
  if (!options.output.empty()) write_output(options.output, job, y);
  if (options.json) {
    Json all = job_json(job, "verify");
    if (world != nullptr) all["processes"] = {{"memory", computed.memory}};
    all.update(json);
    print_json(all, options.output);
  } else {
    print(job_text(job) + report_text(json) + verdict_text(json, ok),
          options.output);
  }
  return verdict(ok);
}

// The "ranks=" of a case, 1 if it has none or one that the library will refuse.
int32_t ranks_of_case(const TextLine& line) {
  for (const std::string& word : split_at(line.text, ' ')) {
    if (!word.starts_with("ranks=")) continue;
    const std::optional<int64_t> ranks = whole_number(word.substr(6));
    return ranks && *ranks >= 1 && *ranks <= 64 ? static_cast<int32_t>(*ranks) : 1;
  }
  return 1;
}

int32_t most_ranks(const std::vector<TextLine>& lines) {
  int32_t most = 1;
  for (const TextLine& line : lines) most = std::max(most, ranks_of_case(line));
  return most;
}

// In a world of as many ranks as the case has; the other processes of the run pass it over.
monomoe_status run_case_in_world(const VerifyOptions& options, const TextLine& line, char** report) {
  const int32_t ranks = ranks_of_case(line);
  RankWorld world(world_of_part(options.layer.processes.world, line.number), ranks, options.layer.processes.rank, options.layer.context);
  return monomoe_world_verify_case(world.handle(), &world.context_options(), line.text.c_str(), report);
}

// One line of the file; a line that is no case is bad input at its place.
Json run_case(const VerifyOptions& options, const TextLine& line) {
  const monomoe_context_options context = options.layer.context.view(0);
  char* report = nullptr;
  const monomoe_status status = options.layer.processes.is_rank() ? run_case_in_world(options, line, &report)
                                                                  : monomoe_verify_case(&context, line.text.c_str(), &report);
  if (status != MONOMOE_OK)
    throw Failure(exit_code(status, Origin::kFile),
                  fmt::format("{}:{}: {}: {}", options.cases, line.number, line.text, monomoe_last_error()));
  const Text owner(report);
  Json json = parse_report(report);
  json["line"] = line.number;
  return json;
}

std::string case_text(const TextLine& line, const Json& report) {
  const bool ok = report.value("ok", false);
  std::string text = fmt::format("{:<6} {}  cosine {}, calc_diff {}", ok ? "ok" : "FAILED", line.text,
                                 inline_text(report.value("cosine", Json())), inline_text(report.value("calc_diff", Json())));
  if (!ok)
    text += fmt::format(", first diverging stage {}, worst {}", inline_text(report.value("first_diverging_stage", Json())),
                        inline_text(report.value("worst", Json())));
  return text + "\n";
}

std::vector<TextLine> read_cases(const VerifyOptions& options) {
  const std::vector<TextLine> lines = read_lines("--cases", options.cases);
  if (lines.empty()) input_error(fmt::format("{}: holds no case", options.cases));
  return lines;
}

// This rank's part of each case that has as many ranks; rank 0 alone reports.
ExitCode verify_cases_as_rank(const VerifyOptions& options, const std::vector<TextLine>& lines) {
  for (const TextLine& line : lines) {
    if (options.layer.processes.rank < ranks_of_case(line)) (void)run_case(options, line);
  }
  return ExitCode::kOk;
}

ExitCode verify_cases(const VerifyOptions& options) {
  const std::vector<TextLine> lines = read_cases(options);
  if (options.layer.processes.is_rank()) (void)world_of_part(options.layer.processes.world, lines.back().number);  // the longest
  if (options.layer.processes.rank > 0) return verify_cases_as_rank(options, lines);
  if (!options.layer.processes.is_rank()) options.layer.context.create(1);  // what the machine cannot do is no line's fault
  Json reports = Json::array();
  int64_t passed = 0;
  for (const TextLine& line : lines) {
    reports.push_back(run_case(options, line));
    passed += reports.back().value("ok", false) ? 1 : 0;
    if (!options.json) print(case_text(line, reports.back()));
  }
  const int64_t failed = static_cast<int64_t>(lines.size()) - passed;
  if (options.json) {
    print_json({{"command", "verify"}, {"ok", failed == 0}, {"passed", passed}, {"failed", failed}, {"cases", reports}});
  } else {
    print(fmt::format("{} passed, {} failed\n", passed, failed));
  }
  return verdict(failed == 0);
}

ExitCode verify(const VerifyOptions& options) {
  const LayerOptions& layer = options.layer;
  const ProcessOptions& processes = layer.processes;
  require_one_launcher(processes);
  if (!options.cases.empty()) {
    if (!processes.starts_ranks()) return verify_cases(options);
    require_readable_again("--cases", options.cases);
    return start_ranks(most_ranks(read_cases(options)));
  }
  if (layer.directory.empty()) usage_error("verify needs DIR or --cases FILE (see monomoe verify --help)");
  if (layer.input.empty() && (processes.processes || processes.is_rank()))
    usage_error("verify of a checkpoint's files runs no ranks; leave out --processes, or give --input or --cases");
  for (const CLI::Option* option : options.computing) {
    if (option->count() > 0 && layer.input.empty())
      usage_error(fmt::format("{} says how to compute, and verify DIR computes nothing without --input; leave it out, or add --layer L --input IN", option->get_name()));
  }
  if (layer.input.empty()) return verify_files(options);
  if (layer.layer < 0) usage_error("verify with --input checks one layer; give --layer L");
  if (processes.is_rank()) return as_rank(processes, layer.num_ranks, layer.context, [&](RankWorld& world) { return verify_layer(options, &world); });
  if (!processes.processes) return verify_layer(options, nullptr);
  if (!options.output.empty()) check_output_path(options.output, layer);
  require_readable_again("--placement", layer.placement);
  return start_ranks(layer.num_ranks);
}

}  // namespace

Command add_verify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* parser = app.add_subcommand("verify", "Check a checkpoint's files, a layer's arithmetic, or a file of cases");
  CLI::Option* directory = parser->add_option("DIR", options->layer.directory, "checkpoint directory");
  CLI::Option* layer = parser->add_option("--layer", options->layer.layer, "this layer only [all]")->check(whole_number_in(0, 1 << 20));
  CLI::Option* input =
      parser->add_option("--input", options->layer.input, "tokens as for run: compare the layer with the float64 reference")->needs(directory);
  CLI::Option* output = parser->add_option("--output", options->output, "also write what run would write")->needs(input);
  CLI::Option* cases = parser->add_option("--cases", options->cases, "file of cases, one a line; # starts a comment")
      ->excludes(directory)->excludes(layer)->excludes(input)->excludes(output);
  CLI::Option* structure =
      parser->add_flag("--structure", options->structure, "headers, index and settings alone: seconds, whatever the size; no values are read")
          ->needs(directory)->excludes(input);
  for (CLI::Option* option : add_layer_options(*parser, options->layer)) {
    const std::string name = option->get_name();
    const bool is_layers = name == "--ranks" || name == "--tokens-per-rank" || name == "--capacity" || name == "--placement" || name == "--swiglu-limit";
    if (is_layers) option->needs(input);
    options->computing.push_back(option);
  }
  cases->excludes(structure);
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Exit code 1 when a problem or an element outside the bound was found, 3 when DIR cannot be read at all.\nExample:\n"
                 "  monomoe verify examples/tiny-moe-fp8\n"
                 "  monomoe verify examples/tiny-moe-fp8 --structure\n"
                 "  monomoe verify examples/tiny-moe-fp8 --layer 0 --input examples/tiny-moe-capture/layer0.safetensors --ranks 4\n"
                 "  monomoe verify --cases tests/cases/contract.txt");
  return {parser, [options] { return verify(*options); }};
}

}  // namespace monomoe::cli
