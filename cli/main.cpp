// monomoe: the command line over the C ABI. Parses, runs one subcommand and turns every failure into a sentence and an exit code.
#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "command.hpp"
#include "file_fault.hpp"
#include "output.hpp"
#include "processes.hpp"

namespace monomoe::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 a check failed, 2 bad usage, 3 bad input, 4 not possible on this machine, 5 internal.\n"
    "Example:\n"
    "  monomoe synth /tmp/m --geometry qwen3-235b --experts 8 --weights fp8 --seed 1\n"
    "  monomoe run /tmp/m --layer 0 --input /tmp/m/input.safetensors --output /tmp/y.safetensors --ranks 4";

ExitCode complain(ExitCode code, const std::string& sentence) {
  std::fprintf(stderr, "monomoe: %s\n", printable(sentence).c_str());
  return code;
}

template <class Number>
bool is_number(const std::string& word) {
  Number number = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && stop == word.data() + word.size();
}

// The parser clips integers that do not fit, reads octal and takes an empty word for some value: nothing here is meant by such a word.
void check_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_size() == 0) continue;  // a flag
    const std::string type = option->get_type_name(), name = option->get_name();
    for (const std::string& word : option->results()) {
      if (word.empty()) usage_error(name + " is empty; give it a value (see monomoe " + command.get_name() + " --help)");
      if (type.starts_with("INT") && !is_number<int64_t>(word)) usage_error(name + " " + word + ": wanted a whole number that fits 64 bits");
      if (type.starts_with("UINT") && !is_number<uint64_t>(word)) usage_error(name + " " + word + ": wanted a whole number, 0 to 2^64 - 1");
      if (type.starts_with("FLOAT") && !std::isfinite(std::strtod(word.c_str(), nullptr))) usage_error(name + " " + word + ": wanted a finite number");
    }
  }
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
  const std::vector<Command> commands = {add_run(app),  add_verify(app), add_inspect(app), add_plan(app),
                                         add_bench(app), add_pack(app), add_synth(app), add_doctor(app),
                                         add_demo(app), add_completion(app), add_manual(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parse_error(app, error, argc > 1 ? argv[1] : nullptr);
  }
  for (const Command& command : commands) {
    if (!command.parser->parsed()) continue;
    check_values(*command.parser);
    return command.run();
  }
  return complain(ExitCode::kInternal, "no command ran");
}

ExitCode guarded(int argc, char** argv) {
  try {
    return run_selected(argc, argv);
  } catch (const Failure& failure) {
    return complain(failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return complain(ExitCode::kUnavailable, "not enough memory for this run; fewer tokens, a smaller --capacity or fewer --ranks need less");
  } catch (const std::system_error& error) {
    const bool no_threads = error.code() == std::errc::resource_unavailable_try_again;
    return complain(no_threads ? ExitCode::kUnavailable : ExitCode::kInternal, std::string("unexpected: ") + error.what());
  } catch (const std::exception& error) {
    return complain(ExitCode::kInternal, std::string("unexpected: ") + error.what());
  }
}

}  // namespace
}  // namespace monomoe::cli

int main(int argc, char** argv) {
  monomoe::cli::keep_standard_streams();
  monomoe::cli::report_file_faults();
  // A closed pipe and a file at the size limit are errors of the write that met them: a sentence, and temporaries are removed.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  monomoe::cli::remember_arguments(argc, argv);
  return static_cast<int>(monomoe::cli::guarded(argc, argv));
}
