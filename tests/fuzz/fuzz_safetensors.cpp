// Any bytes as a safetensors file: refused with a sentence, or every tensor inside the bytes with the size its shape says.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "custom_mutator.hpp"
#include "weights/safetensors.hpp"

namespace {

uint64_t wanted_bits(const monomoe::TensorEntry& tensor) {
  unsigned __int128 bits = static_cast<unsigned>(monomoe::dtype_bits(tensor.dtype));
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) std::abort();
    if (extent == 0) return 0;
  }
  for (const int64_t extent : tensor.shape) {
    bits *= static_cast<uint64_t>(extent);
    if (bits > UINT64_MAX) std::abort();
  }
  return static_cast<uint64_t>(bits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const monomoe::Result<monomoe::SafetensorsContent> content = monomoe::parse_safetensors({data, size}, "fuzz");
  if (!content) {
    if (!content.error().message.starts_with("fuzz: ") || content.error().message.size() > 20000) std::abort();
    return 0;
  }
  uint64_t sum = 0, end = 0;
  for (const monomoe::TensorEntry& tensor : content.value().tensors) {
    if (tensor.file_offset > size || tensor.bytes > size - tensor.file_offset || tensor.file_offset < end) std::abort();
    if (wanted_bits(tensor) != tensor.bytes * 8 || tensor.data != data + tensor.file_offset) std::abort();
    end = tensor.file_offset + tensor.bytes;
    for (uint64_t i = 0; i < tensor.bytes; ++i) sum += tensor.data[i];
  }
  volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return monomoe::fuzz::mutate_input(data, size, max_size, seed, monomoe::fuzz::change_shard);
}
