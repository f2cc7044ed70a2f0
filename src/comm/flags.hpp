// The verbs on flags: the only operations by which ranks and workers synchronise. Payloads are plain memory; a release verb
// on the writer's side and an acquire verb on the reader's order them. The GPU kernel has the same verbs at system scope.
#pragma once

#include <atomic>
#include <cstdint>

namespace monomoe {

// Release store: everything this thread wrote or acquired before is visible to whoever looks at the new value.
template <class T>
void publish(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

// Acquire load: the single look that an await repeats.
template <class T>
T look(T& word) {
  return std::atomic_ref<T>(word).load(std::memory_order_acquire);
}

// Counts up, acquire and release: who sees the sum sees what every counter did. Returns the value before.
template <class T>
T add(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_add(value, std::memory_order_acq_rel);
}

// Back to zero, where no other thread can touch the word: a later publish of its owner orders it.
template <class T>
void reset(T& word) {
  std::atomic_ref<T>(word).store(T{0}, std::memory_order_relaxed);
}

// First come, first served: sets a zero word to value; false if somebody else was first.
template <class T>
bool win(T& word, T value) {
  T expected = 0;
  return std::atomic_ref<T>(word).compare_exchange_strong(expected, value, std::memory_order_acq_rel, std::memory_order_acquire);
}

}  // namespace monomoe
