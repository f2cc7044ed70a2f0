// Any bytes as a safetensors file: refused with a sentence, or every tensor inside the bytes with the size its shape says.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "weights/safetensors.hpp"

namespace {

void check(std::span<const uint8_t> bytes) {
  const monomoe::Result<monomoe::SafetensorsContent> content = monomoe::parse_safetensors(bytes, "fuzz");
  if (!content) {
    if (content.error().message.empty()) std::abort();
    return;
  }
  uint64_t sum = 0;
  for (const monomoe::TensorEntry& tensor : content.value().tensors) {
    if (tensor.file_offset > bytes.size() || tensor.bytes > bytes.size() - tensor.file_offset) std::abort();
    for (uint64_t i = 0; i < tensor.bytes; ++i) sum += tensor.data[i];
  }
  volatile uint64_t sink = sum;
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check({data, size});
  // The same bytes as a header with the right length before it, so that the fuzzer need not learn to count.
  std::vector<uint8_t> framed(8 + size);
  for (size_t i = 0; i < 8; ++i) framed[i] = static_cast<uint8_t>(size >> (8 * i));
  for (size_t i = 0; i < size; ++i) framed[8 + i] = data[i];
  check(framed);
  return 0;
}
