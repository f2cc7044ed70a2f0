// completion: a script that lets the shell complete commands, options and words with a fixed choice.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "command.hpp"
#include "output.hpp"

namespace monomoe::cli {
namespace {

// Long names of a command's options, e.g. "--layer --input --json --help".
std::string option_words(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += (words.empty() ? "--" : " --") + name;
  }
  return words;
}

// The words behind an option that takes one of a few: what its check calls "{a,b,c}".
std::string choice_words(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::string words = type.substr(begin + 1, end - begin - 1);
  for (char& letter : words) {
    if (letter == ',') letter = ' ';
  }
  return words;
}

std::string script(const CLI::App& app) {
  std::string commands, options, choices;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    options += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), option_words(*command));
    for (const CLI::Option* option : command->get_options()) {
      const std::string words = choice_words(*option);
      if (!words.empty() && !option->get_lnames().empty())
        choices += fmt::format("    {}:--{}) COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return ;;\n", command->get_name(),
                               option->get_lnames().front(), words);
    }
  }
  // File names are left to the shell's own completion (-o default), which knows how to quote them. bash splits --to=x at the "=".
  return fmt::format(
      "# bash: source <(monomoe completion)   zsh: autoload bashcompinit && bashcompinit first\n"
      "_monomoe() {{\n"
      "  local at=$COMP_CWORD command=\"${{COMP_WORDS[1]}}\" words=\"\"\n"
      "  local word=\"${{COMP_WORDS[at]}}\" before=\"${{COMP_WORDS[at - 1]}}\"\n"
      "  COMPREPLY=()\n"
      "  if [ \"$at\" -eq 1 ]; then COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$word\")); return; fi\n"
      "  if [ \"$word\" = = ]; then word=\"\"; elif [ \"$before\" = = ]; then before=\"${{COMP_WORDS[at - 2]}}\"; fi\n"
      "  case \"$command:$before\" in\n{}  esac\n"
      "  case \"$command\" in\n{}  esac\n"
      "  case \"$word\" in -*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;; esac\n"
      "}}\n"
      "complete -o default -F _monomoe monomoe\n",
      commands, choices, options);
}

}  // namespace

Command add_completion(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("completion", "Print a script for the shell's completion of commands and options");
  parser->footer("Example:\n  source <(monomoe completion)");
  return {parser, [&app] {
            print(script(app));
            return ExitCode::kOk;
          }};
}

}  // namespace monomoe::cli
