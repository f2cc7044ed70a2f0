// The handler may only use what is safe in any state of the program: write and _exit. Nothing is left behind: the output's temporary
// is written from memory only, after the last mapped byte was read.
#include "file_fault.hpp"

#include <unistd.h>

#include <csignal>

#include "failure.hpp"

namespace monomoe::cli {
namespace {

void on_bus_error(int signal, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) {  // a fault of another kind ends the program as it would have without this handler
    std::signal(signal, SIG_DFL);
    return;
  }
  static constexpr char kSentence[] =
      "monomoe: a file of the checkpoint, or the input, became shorter while it was read (or its disk failed); no output was put in place: "
      "fetch or copy it again, and run when no other program changes it\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
  ::_exit(static_cast<int>(ExitCode::kBadInput));
}

}  // namespace

void report_file_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace monomoe::cli
