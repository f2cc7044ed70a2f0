// inspect: the MoE layers of a checkpoint, and on request what converting each matrix to the kernel's codes costs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

struct InspectOptions {
  std::string directory;
  int32_t layer = -1;
  bool costs = false, json = false;
};

// Fields of a matrix that are worth a word only when they are not zero or empty.
std::string matrix_text(const Json& matrix) {
  std::string text = fmt::format("    {:<56} {:<8}", matrix.value("tensor", "?"), matrix.value("conversion", ""));
  Json rest = Json::object();
  for (const auto& [key, value] : matrix.items())
    if (key != "tensor" && key != "conversion" && !says_nothing(value)) rest[key] = value;
  return text + inline_text(rest) + "\n";
}

std::string summary_text(const Json& matrices) {
  int64_t exact = 0;
  double worst = 0;
  for (const Json& matrix : matrices) {
    exact += matrix.value("conversion", "") == "exact" ? 1 : 0;
    const Json error = matrix.value("worst_relative_error", Json());
    if (error.is_number()) worst = std::max(worst, error.get<double>());
  }
  return fmt::format("  {:<14} {}, of these {} exact; worst relative error of a weight {:.3g}\n", "matrices", matrices.size(), exact, worst);
}

// Its weights were converted when it was packed: there are no matrices to list.
bool is_packed(const Json& layer) { return layer.value("packed", false); }

std::string matrices_text(const Json& layer, const Json& matrices, bool costs) {
  if (is_packed(layer)) return fmt::format("  {:<14} packed; what converting them cost is told by `inspect --costs` of the checkpoint they were packed from\n", "matrices");
  return costs ? summary_text(matrices) : fmt::format("  {:<14} {}\n", "matrices", layer.value("num_matrices", int64_t{0}));
}

std::string layer_text(const Json& layer, const InspectOptions& options) {
  const Json matrices = layer.value("matrices", Json::array());
  std::string text = fmt::format("layer {}\n", inline_text(layer.value("layer", Json())));
  for (const auto& [key, value] : layer.items())
    if (key != "layer" && key != "matrices" && key != "num_matrices" && !says_nothing(value))
      text += fmt::format("  {:<14} {}\n", key, inline_text(value));
  text += matrices_text(layer, matrices, options.costs);
  if (options.layer >= 0)
    for (const Json& matrix : matrices) text += matrix_text(matrix);
  return text;
}

ExitCode inspect(const InspectOptions& options) {
  char* json = nullptr;
  check(monomoe_checkpoint_inspect(options.directory.c_str(), options.layer, options.costs ? 1 : 0, &json));
  const Text owner(json);
  const Json report = parse_report(json);
  if (options.json) {
    print_json(report);
    return ExitCode::kOk;
  }
  Json rest = report;
  rest.erase("layers");
  std::string text = fields_text(rest, 0);
  const Json layers = report.value("layers", Json::array());
  for (const Json& layer : layers) text += layer_text(layer, options);
  const bool all_packed = std::ranges::all_of(layers, is_packed);
  if (!options.costs && !all_packed) text += "weights were not read: --costs tells what converting them costs, `monomoe verify` whether their values are sound\n";
  if (options.layer < 0 && !all_packed) text += "each matrix: add --layer L\n";
  print(text);
  return ExitCode::kOk;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* parser = app.add_subcommand("inspect", "Show layers, formats and router, and with --costs what each matrix's conversion costs");
  parser->add_option("DIR", options->directory, "checkpoint directory")->required();
  parser->add_option("--layer", options->layer, "this layer only, with a line for each matrix [all]")->check(whole_number_in(0, 1 << 20));
  parser->add_flag("--costs", options->costs, "read all weights too, and tell what converting each matrix costs");
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("Example:\n  monomoe inspect examples/tiny-moe-nvfp4\n  monomoe inspect examples/tiny-moe-nvfp4 --layer 0 --costs");
  return {parser, [options] { return inspect(*options); }};
}

}  // namespace monomoe::cli
