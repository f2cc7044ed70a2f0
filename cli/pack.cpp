// pack: a checkpoint converted to another weight format, or to the kernel's own layout.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "options.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

struct PackOptions {
  std::string directory, out, to, layers, experts;
  int32_t threads = 0;
  bool round = false, json = false;
};

std::string layer_word(const char* layer) { return *layer == '\0' ? "tensors outside MoE layers" : fmt::format("layer {}", layer); }

// On standard error: a bar that is drawn over on a terminal, else one line a shard.
class Progress {
 public:
  explicit Progress(std::string out) : out_(std::move(out)), terminal_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }

  static void call(const monomoe_pack_progress* progress, void* user) { static_cast<Progress*>(user)->tell(*progress); }

 private:
  void tell(const monomoe_pack_progress& p) {
    if (p.shards_resumed > 0 && !began_) {
      line(fmt::format("pack {}: {} of {} shards are there from an earlier run", out_, p.shards_resumed, p.shards));
      last_done_ = p.shards_resumed;
    }
    began_ = true;
    const double share = p.bytes == 0 ? 1.0 : static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes);
    if (terminal_) return draw(p, share);
    if (p.shards_done <= last_done_) return;
    last_done_ = p.shards_done;
    line(fmt::format("pack {}: shard {} of {} ({}), {} of {}", out_, p.shards_done, p.shards, layer_word(p.layer),
                     bytes_text(static_cast<double>(p.bytes_done)), bytes_text(static_cast<double>(p.bytes))));
  }

  void draw(const monomoe_pack_progress& p, double share) {
    if (drawn_ && since_.seconds() < 0.1) return;
    since_ = Timer();
    constexpr size_t kWidth = 30;
    const auto filled = static_cast<size_t>(share * kWidth);
    const double left = share > 0.01 ? timer_.seconds() * (1 - share) / share : -1;
    std::fputs(fmt::format("\r[{:#<{}}{:.<{}}] {:3.0f}%  {} of {}, {}{}\x1b[K", "", filled, "", kWidth - filled, share * 100,
                           bytes_text(static_cast<double>(p.bytes_done)), bytes_text(static_cast<double>(p.bytes)), layer_word(p.layer),
                           left < 0 ? std::string() : fmt::format(", {} left", seconds_text(left)))
                   .c_str(),
               stderr);
    drawn_ = true;
  }

  void line(const std::string& text) const { std::fprintf(stderr, "%s\n", printable(text).c_str()); }

  std::string out_;
  bool terminal_, drawn_ = false, began_ = false;
  int64_t last_done_ = 0;
  Timer timer_, since_;
};

std::string report_text(const PackOptions& options, const Json& report, double seconds) {
  std::string text = fmt::format("{}: {} of {}, layers {}, {} experts each; {} in {} shards; {}\n", options.out, options.to,
                                 options.directory, inline_text(report.value("layers", Json())), report.value("experts", int64_t{0}),
                                 bytes_text(report.value("bytes", 0.0)), report.value("shards", int64_t{0}), seconds_text(seconds));
  if (report.contains("weights")) {
    const Json& weights = report["weights"];
    const int64_t changed = weights.value("changed", int64_t{0});
    text += changed == 0 ? "every weight keeps its value\n" : fmt::format("weights: {}\n", inline_text(weights));
  }
  for (const Json& note : report.value("notes", Json::array())) text += fmt::format("note: {}\n", inline_text(note));
  return text;
}

ExitCode pack(const PackOptions& options) {
  monomoe_pack_options request = {};
  request.struct_size = sizeof(request);
  request.to = options.to.c_str();
  request.layers = options.layers.empty() ? nullptr : options.layers.c_str();
  request.experts = options.experts.empty() ? nullptr : options.experts.c_str();
  request.allow_rounding = options.round ? 1 : 0;
  request.num_threads = options.threads;
  request.callback = Progress::call;
  const Timer timer;
  char* json = nullptr;
  {
    Progress progress(options.out);
    request.user = &progress;
    check(monomoe_pack(options.directory.c_str(), options.out.c_str(), &request, &json));
  }
  const Text owner(json);
  const Json report = parse_report(json);
  if (options.json) {
    Json all = {{"command", "pack"}};
    all.update(report);
    all["seconds"] = timer.seconds();
    print_json(all, options.out);
  } else {
    print(report_text(options, report, timer.seconds()), options.out);
  }
  return ExitCode::kOk;
}

}  // namespace

Command add_pack(CLI::App& app) {
  auto options = std::make_shared<PackOptions>();
  CLI::App* parser = app.add_subcommand("pack", "Convert a checkpoint to another weight format, or to the kernel's own layout");
  parser->add_option("DIR", options->directory, "checkpoint directory")->required();
  parser->add_option("OUT", options->out, "directory to write: new or empty; until the end everything is in OUT.partial")->required();
  parser
      ->add_option("--to", options->to,
                   "nvfp4, mxfp4 or fp8: a checkpoint in that format; packed: the kernel's own layout, loaded as it is")
      ->required()
      ->check(CLI::IsMember({"nvfp4", "mxfp4", "fp8", "packed"}));
  parser->add_option("--layers", options->layers, "these layers only, e.g. 0,3..5,mtp.0 [all]");
  parser->add_option("--experts", options->experts, "these experts only, numbered anew from 0, e.g. 0..15 [all]");
  parser->add_flag("--round", options->round, "let weights change their value where the target cannot hold it [refused]");
  parser->add_option("--threads", options->threads, "experts converted at the same time [one per core]")->check(whole_number_in(1, 4096));
  parser->add_flag("--json", options->json, "report as JSON on standard output");
  parser->footer(
      "A killed run is taken up by the same command. Exit code 1 when a weight would change its value and --round was not given.\n"
      "Example:\n  monomoe pack examples/tiny-moe-mxfp4 /tmp/tiny-nvfp4 --to nvfp4\n"
      "  monomoe pack examples/tiny-moe-fp8 /tmp/tiny-packed --to packed --layers 0,2");
  return {parser, [options] { return pack(*options); }};
}

}  // namespace monomoe::cli
