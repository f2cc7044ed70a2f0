// The frame of a libFuzzer custom mutator: libFuzzer's own byte mutations now and then, else the format's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "mutators.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace monomoe::fuzz {

inline size_t mutate_input(uint8_t* data, size_t size, size_t max_size, unsigned seed, Mutator mutator) {
  if (seed % 10 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string changed = mutator(data, size, seed / 10);
  if (changed.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}

}  // namespace monomoe::fuzz
