// demo: the example model's MoE layers, in every format, against the trained model's captured outputs and the float64 reference.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include "command.hpp"
#include "layer_run.hpp"

namespace monomoe::cli {
namespace {

constexpr int32_t kRanks = 4;
constexpr double kCapturedIdsWanted = 0.99;  // the capture's router summed in another order: near ties may differ

// What the weights' rounding leaves of the BF16 model's output; measured, with margin.
struct ExampleFormat {
  const char* name;
  double cosine_wanted;
};
constexpr ExampleFormat kFormats[] = {{"nvfp4", 0.985}, {"mxfp4", 0.985}, {"fp8", 0.999}};

struct DemoOptions {
  std::string directory;
  ContextOptions context;
  bool json = false;
};

struct Closeness {
  double relative_rms = 0, cosine = 0;
};

struct LayerOutcome {
  Json json;
  bool inside_bound = false, close = false, same_ids = false, same_bits = false;
  double cosine = 0;
  bool ok() const { return inside_bound && close && same_ids && same_bits; }
};

Closeness compare(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want) {
  double difference = 0, both = 0, got2 = 0, want2 = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = std::bit_cast<float>(uint32_t{got[i]} << 16), b = std::bit_cast<float>(uint32_t{want[i]} << 16);
    difference += (a - b) * (a - b);
    both += a * b;
    got2 += a * a;
    want2 += b * b;
  }
  return {std::sqrt(difference / want2), both / std::sqrt(got2 * want2)};
}

std::vector<uint16_t> captured_output(const std::string& path, int64_t tokens, int64_t hidden) {
  const TensorFile file = open_tensor_file(path);
  monomoe_tensor tensor = {};
  check(monomoe_tensor_file_find(file.get(), "y_bf16", &tensor), Origin::kFile);
  return read_tensor<uint16_t>(path, tensor, "BF16", {tokens, hidden}, "the BF16 model's output of each row of 'x'");
}

// Captured slots whose expert the checkpoint's router chose too.
int64_t ids_in_common(const std::vector<int64_t>& captured, const std::vector<int64_t>& chosen, int64_t topk) {
  int64_t common = 0;
  for (size_t i = 0; i < captured.size(); ++i) {
    const auto row = chosen.begin() + static_cast<std::ptrdiff_t>(i) / topk * topk;
    common += std::find(row, row + topk, captured[i]) != row + topk ? 1 : 0;
  }
  return common;
}

Json reference_report(const LayerJob& job) {
  const std::vector<monomoe_tokens> tokens = job.tokens_view(job.input.ids, job.input.weights, job.input.topk, nullptr);
  char* report = nullptr;
  check(monomoe_checkpoint_verify_run(job.context.get(), job.checkpoint.get(), job.options.layer, nullptr, job.clamp.argument,
                                      static_cast<int32_t>(job.input.topk), tokens.data(), &report),
        Origin::kFile);
  const Text owner(report);
  return parse_report(report);
}

// The job of one layer with routing by the checkpoint's own router.
LayerJob routed_job(const DemoOptions& options, const std::string& checkpoint, const std::string& capture, int32_t layer, int32_t ranks,
                    int64_t& common_ids) {
  LayerOptions layer_options;
  layer_options.directory = checkpoint;
  layer_options.input = capture;
  layer_options.layer = layer;
  layer_options.num_ranks = ranks;
  layer_options.context = options.context;
  LayerJob job = prepare_layer(layer_options);
  const std::vector<int64_t> captured = job.input.ids;
  if (!job.input.has_routing || job.input.topk != job.info.topk)
    input_error(fmt::format("{}: wanted 'topk_ids' and 'topk_weights' with {} slots a token, as {} routes", capture, job.info.topk,
                            layer_options.where()));
  job.input.has_routing = false;
  route_rows(job.checkpoint.get(), layer, capture, job.input);
  common_ids = ids_in_common(captured, job.input.ids, job.input.topk);
  return job;
}

LayerOutcome run_layer(const DemoOptions& options, const ExampleFormat& format, const std::string& capture, int32_t layer) {
  const std::string checkpoint = fmt::format("{}/tiny-moe-{}", options.directory, format.name);
  int64_t common = 0;
  const LayerJob job = routed_job(options, checkpoint, capture, layer, kRanks, common);
  const LayerJob alone = routed_job(options, checkpoint, capture, layer, 1, common);
  const ForwardResult result = forward_routed(job);
  const ForwardResult single = forward_routed(alone);
  const Closeness close = compare(result.y, captured_output(capture, job.input.tokens, job.info.hidden));
  const Json report = reference_report(job);
  const std::vector<int64_t> counts = count_experts(job.input.ids, job.info.num_experts);
  const auto slots = static_cast<int64_t>(job.input.ids.size());

  LayerOutcome outcome;
  outcome.cosine = close.cosine;
  outcome.inside_bound = report.value("ok", false);
  outcome.close = close.cosine >= format.cosine_wanted;  // false for NaN
  outcome.same_ids = static_cast<double>(common) >= kCapturedIdsWanted * static_cast<double>(slots);
  outcome.same_bits = result.y == single.y;
  outcome.json = {{"format", format.name},
                  {"layer", layer},
                  {"backend", backend_json(job)},
                  {"tokens", job.input.tokens},
                  {"ranks", kRanks},
                  {"experts", job.info.num_experts},
                  {"topk", job.input.topk},
                  {"tokens_per_expert", counts},
                  {"expert_counts", count_summary(counts, job.input.ids)},
                  {"captured_ids_chosen", common},
                  {"captured_ids", slots},
                  {"against_bf16_model", {{"relative_rms", close.relative_rms}, {"cosine", close.cosine}, {"cosine_wanted", format.cosine_wanted}}},
                  {"against_reference", report},
                  {"same_bits_on_one_rank", outcome.same_bits},
                  {"seconds", result.times.wall},
                  {"ok", outcome.ok()}};
  return outcome;
}

// The largest share of its bound that an element of any stage took; empty stages and exact ones (bound 0) have none.
double bound_share(const Json& report) {
  double share = 0;
  for (const Json& stage : report.value("stages", Json::array())) {
    const Json worst = stage.value("worst", Json());
    if (!worst.is_object() || !worst["bound"].is_number() || worst["bound"].get<double>() <= 0) continue;
    // A NaN is null in JSON: as far outside as can be.
    if (!worst["got"].is_number() || !worst["want"].is_number()) return INFINITY;
    share = std::max(share, std::abs(worst["got"].get<double>() - worst["want"].get<double>()) / worst["bound"].get<double>());
  }
  return share;
}

// One character an expert: height by tokens, a dot for none.
std::string bars(const Json& counts, int64_t most) {
  static const char* const kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string text;
  for (const Json& item : counts) {
    const int64_t count = item.get<int64_t>();
    text += count == 0 ? "·" : kHeights[std::min<int64_t>(7, count * 8 / (most + 1))];
  }
  return text;
}

std::string layer_line(const Json& layer) {
  const Json& counts = layer["expert_counts"];
  const int64_t most = counts["max"].get<int64_t>();
  const Json& reference = layer["against_reference"];
  return fmt::format("{:>5}  {} {:>2}/{:>2}/{:>3}  {:>8.4f} {:>9.6f}  {:>7.0f} % {:>10.2e}  {:>5.1f} %  {:>9}{}\n", layer["layer"].get<int>(),
                     bars(layer["tokens_per_expert"], most), counts["min"].get<int64_t>(), counts["median"].get<int64_t>(), most,
                     layer["against_bf16_model"]["relative_rms"].get<double>(), layer["against_bf16_model"]["cosine"].get<double>(),
                     100 * bound_share(reference), reference.value("calc_diff", NAN),
                     100.0 * layer["captured_ids_chosen"].get<double>() / std::max(1.0, layer["captured_ids"].get<double>()),
                     seconds_text(layer["seconds"].get<double>()), layer["ok"].get<bool>() ? "" : "  FAILED");
}

std::string backend_line(const Json& backend) {
  return fmt::format("backend {}: {}\n\n", backend["taken"].get<std::string>(), backend["why"].get<std::string>());
}

std::string heading(const std::string& directory, const ExampleFormat& format, const Json& layer) {
  const auto experts = layer["experts"].get<size_t>();
  return fmt::format("{}/tiny-moe-{}: {} tokens on {} ranks, top-{} of {} experts, routed by the checkpoint's router\n"
                     "layer  {:<{}}  {:<18}  {:<20}  {:>7}  {:>9}\n"
                     "       {:<{}}  {:>8} {:>9}  {:>9} {:>10}  {:>7}  {:>9}\n",
                     directory, format.name, layer["tokens"].get<int64_t>(), kRanks, layer["topk"].get<int64_t>(), experts,
                     "tokens per expert", experts + 10, "vs BF16 model", "vs float64 reference", "ids as", "time", "min/median/max",
                     experts + 10, "rms", "cosine", "of bound", "calc_diff", "trained", "");
}

std::vector<std::string> captures(const std::string& directory) {
  std::vector<std::string> paths;
  for (;;) {
    const std::string path = fmt::format("{}/tiny-moe-capture/layer{}.safetensors", directory, paths.size());
    if (!std::filesystem::exists(path)) break;
    paths.push_back(path);
  }
  if (paths.empty())
    input_error(fmt::format("{}: tiny-moe-capture/layer0.safetensors is missing; give the project's examples directory", directory));
  return paths;
}

struct Totals {
  int64_t layers = 0, inside = 0, close = 0, ids = 0, bits = 0;
  double worst_cosine = 2;
  bool ok() const { return inside == layers && close == layers && ids == layers && bits == layers; }
};

void add(Totals& totals, const LayerOutcome& outcome) {
  ++totals.layers;
  totals.inside += outcome.inside_bound;
  totals.close += outcome.close;
  totals.ids += outcome.same_ids;
  totals.bits += outcome.same_bits;
  totals.worst_cosine = std::min(totals.worst_cosine, outcome.cosine);
}

std::string verdict_text(const Totals& totals) {
  const auto share = [&](int64_t count) { return count == totals.layers ? std::string("all") : fmt::format("ONLY {} of {}", count, totals.layers); };
  return fmt::format("demo: {} layers in {} formats on {} ranks: {} inside the derived bound; {} as close to the BF16 model as the format "
                     "allows (worst cosine {:.5f}); {} routed as in training; {} with the same bits on 1 rank: {}\n",
                     totals.layers, std::size(kFormats), kRanks, share(totals.inside), share(totals.close), totals.worst_cosine,
                     share(totals.ids), share(totals.bits), totals.ok() ? "OK" : "FAILED");
}

ExitCode demo(const DemoOptions& options) {
  const std::vector<std::string> paths = captures(options.directory);
  Totals totals;
  Json layers = Json::array();
  for (const ExampleFormat& format : kFormats) {
    for (size_t layer = 0; layer < paths.size(); ++layer) {
      const LayerOutcome outcome = run_layer(options, format, paths[layer], static_cast<int32_t>(layer));
      add(totals, outcome);
      layers.push_back(outcome.json);
      if (options.json) continue;
      if (layers.size() == 1) print(backend_line(outcome.json["backend"]));
      if (layer == 0) print(heading(options.directory, format, outcome.json));
      print(layer_line(outcome.json));
    }
    if (!options.json) print("\n");
  }
  if (options.json) {
    print_json({{"command", "demo"}, {"ok", totals.ok()}, {"layers", layers}});
  } else {
    print(verdict_text(totals));
  }
  return totals.ok() ? ExitCode::kOk : ExitCode::kCheckFailed;
}

}  // namespace

Command add_demo(CLI::App& app) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* parser = app.add_subcommand("demo", "Run the example model's MoE layers in every format and judge them");
  parser->add_option("DIR", options->directory, "the project's examples directory")->required();
  add_context_options(*parser, options->context);
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer("./run demo builds the program and calls this. Exit code 1 when a layer is not as it should be.\n"
                 "Example:\n  monomoe demo examples");
  return {parser, [options] { return demo(*options); }};
}

}  // namespace monomoe::cli
