// The calling thread's last failure, and the frame every entry of the ABI runs in: no exception leaves the library.
#pragma once

#include <utility>

#include "base/result.hpp"
#include "monomoe/monomoe.h"

namespace monomoe::layer {

// Stores the sentence for this thread and returns the status.
monomoe_status record_failure(const Error& error) noexcept;
// Inside a catch block: what the exception in flight means.
monomoe_status record_exception() noexcept;

// Runs body, which returns Result<void>. Out of memory and every other exception become a status with a sentence.
template <class Body>
monomoe_status guarded(Body&& body) noexcept {
  try {
    const Result<void> result = std::forward<Body>(body)();
    return result.ok() ? MONOMOE_OK : record_failure(result.error());
  } catch (...) {
    return record_exception();
  }
}

}  // namespace monomoe::layer
