// synth: a checkpoint with random weights in a published model's geometry and naming, and an input file that fits it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "options.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

struct SynthOptions {
  std::string directory, geometry, weights;
  int32_t layers = 1, experts = 0;
  int64_t tokens = 64;
  uint64_t seed = 0;
  bool json = false;
};

std::vector<std::string> geometries() {
  std::vector<std::string> names;
  for (const char* const* name = monomoe_synth_geometries(); *name; ++name) names.emplace_back(*name);
  return names;
}

ExitCode synth(const SynthOptions& options) {
  monomoe_synth_options request = {};
  request.struct_size = sizeof(request);
  request.geometry = options.geometry.c_str();
  request.format = *format_from_word(options.weights);
  request.num_layers = options.layers;
  request.num_experts = options.experts;
  request.num_tokens = options.tokens;
  request.seed = options.seed;
  const Timer timer;
  check(monomoe_synth(options.directory.c_str(), &request));
  const double seconds = timer.seconds();
  const std::string input = options.directory + "/input.safetensors";
  const int32_t topk = layer_info(open_checkpoint(options.directory).get(), 0).topk, model_topk = monomoe_synth_topk(options.geometry.c_str());
  if (options.json) {
    print_json({{"command", "synth"},
                {"directory", options.directory},
                {"geometry", options.geometry},
                {"weights", options.weights},
                {"layers", options.layers},
                {"topk", topk},
                {"model_topk", model_topk},
                {"tokens", options.tokens},
                {"seed", options.seed},
                {"input", input},
                {"seconds", seconds}},
               options.directory);
  } else {
    std::string text = fmt::format("{}: {} in {}, {} layer{}, top-{}, seed {}; {} token{} in {}; {}\n", options.directory, options.geometry,
                                   options.weights, options.layers, options.layers == 1 ? "" : "s", topk, options.seed, options.tokens,
                                   options.tokens == 1 ? "" : "s", input, seconds_text(seconds));
    if (topk != model_topk)
      text += fmt::format("note: top-{} instead of the model's top-{}, for there are {} experts; --experts {} or more keeps it\n", topk, model_topk,
                          options.experts, model_topk);
    print(text, options.directory);
  }
  return ExitCode::kOk;
}

}  // namespace

Command add_synth(CLI::App& app) {
  auto options = std::make_shared<SynthOptions>();
  CLI::App* parser = app.add_subcommand("synth", "Write a checkpoint with random weights in a known geometry, and an input file");
  parser->add_option("OUT", options->directory, "directory to write: new or empty")->required();
  parser->add_option("--geometry", options->geometry, "model whose shapes and names to take")->required()->check(CLI::IsMember(geometries()));
  parser->add_option("--layers", options->layers, "MoE layers [1]")->check(whole_number_in(1, 1000));
  parser->add_option("--experts", options->experts, "experts a layer [the model's]")->check(whole_number_in(1, 1024));
  parser->add_option("--tokens", options->tokens, "rows of OUT/input.safetensors [64]")->check(whole_number_in(1, int64_t{1} << 24));
  parser->add_option("--weights", options->weights, "fp8, nvfp4 or mxfp4")->required()->check(CLI::IsMember({"fp8", "nvfp4", "mxfp4"}));
  parser->add_option("--seed", options->seed, "of the random weights and rows, 0 to 2^64 - 1")->required();
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Example:\n  monomoe synth /tmp/flash --geometry deepseek-v4-flash --experts 16 --tokens 32 --weights mxfp4 --seed 1");
  return {parser, [options] { return synth(*options); }};
}

}  // namespace monomoe::cli
