// Events that destroy themselves, and the time between two of them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/result.hpp"
#include "cuda/status.hpp"

namespace monomoe::cuda {

struct DestroyEvent {
  void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

// Of the current GPU.
inline Result<Event> make_event() {
  cudaEvent_t event = nullptr;
  if (auto made = check(cudaEventCreate(&event), "creating an event"); !made) return made.error();
  return Event(event);
}

class EventPair {
 public:
  EventPair() = default;
  static Result<EventPair> make() {
    EventPair pair;
    auto begin = make_event(), end = make_event();
    if (!begin) return begin.error();
    if (!end) return end.error();
    pair.begin_ = begin.take();
    pair.end_ = end.take();
    return Result<EventPair>(std::move(pair));
  }

  Result<void> begin(cudaStream_t stream) const { return check(cudaEventRecord(begin_.get(), stream), "recording an event"); }
  Result<void> end(cudaStream_t stream) const { return check(cudaEventRecord(end_.get(), stream), "recording an event"); }
  // Waits for the end.
  Result<double> seconds() const {
    if (auto done = check(cudaEventSynchronize(end_.get()), "waiting for the GPU"); !done) return done.error();
    float milliseconds = 0;
    if (auto done = check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "reading the time between two events"); !done) {
      return done.error();
    }
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  Event begin_, end_;
};

}  // namespace monomoe::cuda
