// Last error of each thread. Storing one must not fail itself: without memory for the sentence a static one stands in.
#include "layer/error_state.hpp"

#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace monomoe::layer {
namespace {

struct ThreadError {
  std::string text;
  const char* fixed = nullptr;  // wins over text: a sentence that needed no memory
};

ThreadError& thread_error() {
  thread_local ThreadError error;
  return error;
}

monomoe_status record_fixed(monomoe_status status, const char* sentence) noexcept {
  thread_error().fixed = sentence;
  return status;
}

}  // namespace

monomoe_status record_failure(const Error& error) noexcept {
  const auto status = static_cast<monomoe_status>(error.status);
  try {
    thread_error().text = error.message;
    thread_error().fixed = nullptr;
  } catch (...) {
    return record_fixed(status, "the call failed, and there was no memory left to say why");
  }
  return status;
}

namespace {

monomoe_status record_unexpected(const std::exception& exception) noexcept {
  try {
    return record_failure(internal_error(std::string("unexpected fault inside the library: ") + exception.what()));
  } catch (...) {
    return record_fixed(MONOMOE_INTERNAL, "unexpected fault inside the library");
  }
}

}  // namespace

monomoe_status record_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return record_fixed(MONOMOE_UNAVAILABLE,
                        "out of memory: the machine has less free memory than this call needs; monomoe_plan says how much");
  } catch (const std::system_error& error) {
    // A thread could not be started: too many of them, or no address space for their stacks.
    if (error.code() == std::errc::resource_unavailable_try_again)
      return record_fixed(MONOMOE_UNAVAILABLE,
                          "the system gives this process no more threads, or no memory for their stacks; use fewer threads or ranks, or "
                          "raise its limits (ulimit -u, ulimit -v)");
    return record_unexpected(error);
  } catch (const std::exception& exception) {
    return record_unexpected(exception);
  } catch (...) {
    return record_fixed(MONOMOE_INTERNAL, "unexpected fault inside the library");
  }
}

}  // namespace monomoe::layer

extern "C" {

const char* monomoe_last_error(void) {
  const auto& error = monomoe::layer::thread_error();
  return error.fixed != nullptr ? error.fixed : error.text.c_str();
}

const char* monomoe_status_name(monomoe_status status) {
  switch (status) {
    case MONOMOE_OK:
      return "ok";
    case MONOMOE_CHECK_FAILED:
      return "check failed";
    case MONOMOE_USAGE:
      return "usage";
    case MONOMOE_BAD_INPUT:
      return "bad input";
    case MONOMOE_UNAVAILABLE:
      return "unavailable";
    case MONOMOE_INTERNAL:
      return "internal";
    case MONOMOE_TIMEOUT:
      return "timeout";
    case MONOMOE_REJECTED:
      return "rejected";
    case MONOMOE_POISONED:
      return "poisoned";
  }
  return "unknown";
}

const char* monomoe_version(void) { return "0.1.0"; }
uint32_t monomoe_abi_version(void) { return MONOMOE_ABI_VERSION; }

}  // extern "C"
