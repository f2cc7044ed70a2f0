// Result<T>: a value or an Error. The library never throws across its ABI, prints or aborts; what goes wrong is a sentence.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace monomoe {

// One line of meaning each; the numbers are the public monomoe_status values.
enum class Status : int {
  kOk = 0,
  kCheckFailed = 1,   // a comparison or check did not hold
  kUsage = 2,         // the caller's arguments are wrong
  kBadInput = 3,      // a file or tensor is wrong
  kUnavailable = 4,   // not possible on this machine
  kInternal = 5,      // a fault of ours
  kTimeout = 6,       // a rank did not arrive in time; the workspace is poisoned
  kRejected = 7,      // another rank refused its arguments; nothing was computed, the workspace is fine
  kPoisoned = 8,      // an earlier call failed in the middle; rebuild the workspace
};

struct Error {
  Status status = Status::kInternal;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }
  T take() { return std::move(std::get<0>(state_)); }

 private:
  std::variant<T, Error> state_;
};

// Result<void> carries only success or the Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

inline Error bad_input(std::string message) { return {Status::kBadInput, std::move(message)}; }
inline Error usage_error(std::string message) { return {Status::kUsage, std::move(message)}; }
inline Error internal_error(std::string message) { return {Status::kInternal, std::move(message)}; }
inline Error unavailable(std::string message) { return {Status::kUnavailable, std::move(message)}; }

}  // namespace monomoe
