// The subcommands: each file adds its options to the parser and hands back what runs once they are parsed.
#pragma once

#include <functional>

#include "failure.hpp"

namespace CLI {
class App;
}

namespace monomoe::cli {

struct Command {
  CLI::App* parser;
  std::function<ExitCode()> run;
};

Command add_run(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_pack(CLI::App& app);
Command add_synth(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_demo(CLI::App& app);
Command add_completion(CLI::App& app);
Command add_manual(CLI::App& app);

}  // namespace monomoe::cli
