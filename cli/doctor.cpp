// doctor: what this machine can run, and why not the rest.
#include <CLI/CLI.hpp>
#include <memory>

#include "command.hpp"
#include "handles.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

ExitCode doctor(bool as_json) {
  char* json = nullptr;
  check(monomoe_doctor(&json));
  const Text owner(json);
  const Json report = parse_report(json);
  if (as_json) {
    print_json(report);
  } else {
    print(fields_text(report, 0));
  }
  return ExitCode::kOk;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* parser = app.add_subcommand("doctor", "Say what this machine can run, and why not the rest");
  parser->add_flag("--json", *json, "report as JSON on standard output");
  parser->footer("Example:\n  monomoe doctor");
  return {parser, [json] { return doctor(*json); }};
}

}  // namespace monomoe::cli
