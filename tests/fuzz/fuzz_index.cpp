// Any bytes as an index: an error, or tensors whose shards are plain file names.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "custom_mutator.hpp"
#include "weights/tensor_index.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = monomoe::parse_tensor_index({data, size}, "index");
  if (!index) {
    if (!index.error().message.starts_with("index: ")) std::abort();
    return 0;
  }
  for (const monomoe::IndexedTensor& item : index.value()) {
    if (item.shard.empty() || item.shard[0] == '.' || item.shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      std::abort();
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return monomoe::fuzz::mutate_input(data, size, max_size, seed, monomoe::fuzz::change_index);
}
