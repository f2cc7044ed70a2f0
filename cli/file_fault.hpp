// Checkpoint and input are mapped. If another program makes a mapped file shorter, touching the lost part raises SIGBUS: this ends the
// command with a sentence and exit code 3 instead. The library installs no handler; what to do is each program's own choice.
#pragma once

namespace monomoe::cli {

void report_file_faults();

}  // namespace monomoe::cli
