// How a command ends without a result: an exit code and one sentence. Exceptions are used inside the command line only.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "monomoe/monomoe.h"

namespace monomoe::cli {

enum class ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kBadInput = 3,     // a file cannot be read or written, or what it holds is wrong
  kUnavailable = 4,  // this machine cannot: no such backend, not enough memory
  kInternal = 5,
};

// Control characters as \xNN, so that a sentence shows what a file or an argument holds and cannot steer the terminal. Newlines stay.
std::string printable(std::string_view text);

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& sentence) : std::runtime_error(printable(sentence)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

[[noreturn]] inline void usage_error(const std::string& sentence) { throw Failure(ExitCode::kUsage, sentence); }
[[noreturn]] inline void input_error(const std::string& sentence) { throw Failure(ExitCode::kBadInput, sentence); }

// Where the arguments of a library call came from: the same refusal is bad usage for a value typed on the command line and bad
// input for a value read from a file.
enum class Origin { kCommandLine, kFile };

ExitCode exit_code(monomoe_status status, Origin origin = Origin::kCommandLine);

// Throws the library's last error, in the words of the command line, unless the status is OK.
void check(monomoe_status status, Origin origin = Origin::kCommandLine);

}  // namespace monomoe::cli
