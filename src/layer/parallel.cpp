// Threads share one counter; the calling thread works too, so one thread means no thread is started.
#include "layer/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace monomoe::layer {
namespace {

Result<void> call_item(const std::function<Result<void>(int64_t)>& body, int64_t item) {
  try {
    return body(item);
  } catch (const std::bad_alloc&) {
    return unavailable("out of memory: the machine has less free memory than this call needs");
  } catch (const std::exception& exception) {
    return internal_error(exception.what());
  }
}

}  // namespace

Result<void> parallel_for(int64_t count, int threads, const std::function<Result<void>(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  int64_t failed_item = count;
  Error error;
  const auto work = [&] {
    for (int64_t item = next++; item < count && !failed; item = next++) {
      const Result<void> result = call_item(body, item);
      if (result.ok()) continue;
      failed = true;
      const std::lock_guard lock(mutex);
      if (item < failed_item) {
        failed_item = item;
        error = result.error();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const int64_t wanted = std::min<int64_t>(threads, count);
    helpers.reserve(static_cast<size_t>(std::max<int64_t>(wanted, 1)));
    try {
      for (int64_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // The system has no more threads: fewer do the work.
    }
    work();
  }
  if (failed) return error;
  return {};
}

}  // namespace monomoe::layer
