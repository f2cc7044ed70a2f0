// Library statuses as exit codes.
#include "failure.hpp"

namespace monomoe::cli {

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
  const std::string sentence = monomoe_last_error();
  throw Failure(exit_code(status, origin),
                sentence.empty() ? std::string("the library failed without a sentence: ") + monomoe_status_name(status) : sentence);
}

}  // namespace monomoe::cli
