// monomoe: the command line over the C ABI. Parses, runs one subcommand and turns every failure into a sentence and an exit code.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "command.hpp"
#include "file_fault.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 a check failed, 2 bad usage, 3 bad input, 4 not possible on this machine, 5 internal.\n"
    "Example:\n"
    "  monomoe synth /tmp/m --geometry qwen3-235b --experts 8 --weights fp8 --seed 1\n"
    "  monomoe run /tmp/m --layer 0 --input /tmp/m/input.safetensors --output /tmp/y.safetensors --ranks 4";

ExitCode complain(ExitCode code, const std::string& sentence) {
  std::fprintf(stderr, "monomoe: %s\n", sentence.c_str());
  return code;
}

// Help and version are results; everything else the parser throws is bad usage.
ExitCode parse_error(const CLI::App& app, const CLI::ParseError& error, const char* first_word) {
  std::ostringstream out, ignored;
  if (app.exit(error, out, ignored) == 0) {
    print(out.str());
    return ExitCode::kOk;
  }
  std::string command;
  if (app.get_subcommands().empty() && first_word && *first_word != '-')
    return complain(ExitCode::kUsage, std::string("there is no command '") + first_word + "' (see monomoe --help)");
  for (const CLI::App* selected : app.get_subcommands()) command = " " + selected->get_name();
  return complain(ExitCode::kUsage, std::string(error.what()) + " (see monomoe" + command + " --help)");
}

ExitCode run_selected(int argc, char** argv) {
  CLI::App app("Runs one expert-parallel Mixture-of-Experts layer from a checkpoint: FP8 activations, FP8, NVFP4 or MXFP4 experts.",
               "monomoe");
  app.set_version_flag("--version", std::string("monomoe ") + monomoe_version());
  app.require_subcommand(1);
  app.footer(kExitCodes);
  const std::vector<Command> commands = {add_run(app),   add_verify(app), add_inspect(app), add_plan(app),
                                         add_synth(app), add_doctor(app), add_demo(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parse_error(app, error, argc > 1 ? argv[1] : nullptr);
  }
  for (const Command& command : commands)
    if (command.parser->parsed()) return command.run();
  return complain(ExitCode::kInternal, "no command ran");
}

ExitCode guarded(int argc, char** argv) {
  try {
    return run_selected(argc, argv);
  } catch (const Failure& failure) {
    return complain(failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(ExitCode::kUnavailable, "not enough memory for this run; fewer tokens, a smaller --capacity or fewer --ranks need less");
  } catch (const std::exception& error) {
    return complain(ExitCode::kInternal, std::string("unexpected: ") + error.what());
  }
}

}  // namespace
}  // namespace monomoe::cli

int main(int argc, char** argv) {
  monomoe::cli::report_file_faults();
  return static_cast<int>(monomoe::cli::guarded(argc, argv));
}
