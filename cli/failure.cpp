// Library statuses as exit codes, its sentences in the words of the command line.
#include "failure.hpp"

#include <fmt/format.h>

namespace monomoe::cli {
namespace {

// What a program that calls the library would do, and what someone at the command line can do instead.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"options->vector_bits", "--vector-bits"},
    {"options->backend", "--backend"},
    {"options->num_ranks", "--ranks"},
    {"options->num_threads", "--threads"},
    {"set options->allow_rounding", "give --round"},
    {"options->layers", "--layers"},
    {"options->experts", "--experts"},
    {"options->launch", "--launch"},
    {"options->timeout_ms", "--timeout in ms"},
    {"options->geometry", "--geometry"},
    {"options->format", "--weights"},
    {"options->num_layers", "--layers"},
    {"options->num_experts", "--experts"},
    {"options->num_tokens", "--tokens"},
    {"call->launch", "--launch"},
    {"call->mode", "--mode"},
    {"; monomoe_plan says how much", "; `monomoe plan` says how much"},
    {"use fewer threads or ranks,", "use fewer threads or ranks (--threads, --ranks),"},
    {"use fewer ranks or threads,", "use fewer ranks or threads (--ranks, --threads),"},
    {"lower the capacity or the number of ranks", "lower --capacity or --ranks"},
    {"; the workspace is poisoned: destroy it and create it anew", ""},
    {"; destroy it and create it anew", ""},
    {"; form a new world under another name", ""},
    {"start each rank once, and give each world a name of its own", "start each --rank once, and give each run a --world of its own"},
};

std::string in_command_line_words(std::string sentence, monomoe_status status) {
  for (const auto& [library, command_line] : kWords) {
    for (size_t at = 0; (at = sentence.find(library, at)) != std::string::npos; at += command_line.size())
      sentence.replace(at, library.size(), command_line);
  }
  if (status == MONOMOE_TIMEOUT && sentence.find("has ended") == std::string::npos) sentence += "; run it again with a longer --timeout";
  return sentence;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if ((byte < 0x20 && letter != '\n') || byte == 0x7F) {
      safe += fmt::format("\\x{:02x}", byte);
    } else {
      safe += letter;
    }
  }
  return safe;
}

ExitCode exit_code(monomoe_status status, Origin origin) {
  switch (status) {
    case MONOMOE_OK: return ExitCode::kOk;
    case MONOMOE_CHECK_FAILED: return ExitCode::kCheckFailed;
    case MONOMOE_USAGE: return origin == Origin::kFile ? ExitCode::kBadInput : ExitCode::kUsage;
    case MONOMOE_BAD_INPUT: return ExitCode::kBadInput;
    case MONOMOE_UNAVAILABLE: return ExitCode::kUnavailable;
    case MONOMOE_INTERNAL:
    case MONOMOE_TIMEOUT:
    case MONOMOE_REJECTED:
    case MONOMOE_POISONED: break;
  }
  return ExitCode::kInternal;
}

void check(monomoe_status status, Origin origin) {
  if (status == MONOMOE_OK) return;
  const std::string sentence = in_command_line_words(monomoe_last_error(), status);
  throw Failure(exit_code(status, origin),
                sentence.empty() ? std::string("the library failed without a sentence: ") + monomoe_status_name(status) : sentence);
}

}  // namespace monomoe::cli
