// manual: the manual page, made from the same words as --help, so that the two cannot differ.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "command.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

// Text for roff: backslashes and hyphens are escaped, and no line begins with a request.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
      if (c == ',' || c == '|') out += "\\:";  // long lists of words may be broken there
    }
  }
  return out;
}

// Examples and exit codes keep their lines.
std::string as_written(const std::string& text) { return text.empty() ? "" : fmt::format(".PP\n.nf\n{}\n.fi\n", escaped(text)); }

// "--backend TEXT:{auto,cpu,cuda}", or "DIR" of a word without a name.
std::string heading(const CLI::Option& option) {
  std::string type = option.get_type_size() == 0 ? "" : option.get_type_name();
  return escaped(option.get_positional() || type.empty() ? option.get_name() : option.get_name() + " " + type);
}

std::string options_text(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    text +=
        fmt::format(".TP\n.B {}\n{}\n", heading(*option), escaped(option->get_description() + (option->get_required() ? " (needed)" : "")));
  }
  return text;
}

std::string usage_text(const CLI::App& command) {
  std::string usage = "monomoe " + command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) usage += " " + (option->get_required() ? option->get_name() : "[" + option->get_name() + "]");
  }
  return usage + " [options]";
}

std::string page(const CLI::App& app) {
  std::string text = fmt::format(
      ".\\\" written by `monomoe manual`\n.TH MONOMOE 1 \"\" \"monomoe {}\" \"User Commands\"\n.ad l\n.SH NAME\nmonomoe \\- one expert\\-parallel "
      "Mixture\\-of\\-Experts "
      "layer on Hopper GPUs or the CPU\n.SH SYNOPSIS\n.B monomoe\ncommand [options]\n.SH DESCRIPTION\n{}\n",
      monomoe_version(), escaped(app.get_description()));
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format(".SH {}\n.B {}\n.PP\n{}.\n{}{}", escaped(command->get_name()), escaped(usage_text(*command)),
                        escaped(command->get_description()), options_text(*command), as_written(command->get_footer()));
  }
  return text + ".SH EXIT STATUS\n" + as_written(app.get_footer());
}

}  // namespace

Command add_manual(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("manual", "Print the manual page, for man");
  parser->footer("Example:\n  monomoe manual | man -l -");
  return {parser, [&app] {
            print(page(app));
            return ExitCode::kOk;
          }};
}

}  // namespace monomoe::cli
