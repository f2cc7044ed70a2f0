// A sound small file, and what must hold for any bytes that are taken for a file.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "unit/weights/checkpoint_builder.hpp"
#include "weights/safetensors.hpp"

namespace monomoe::test_support {

inline Bytes sound_file() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"layers.0.ffn.experts.0.w1.weight":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},)"
      R"("layers.0.ffn.experts.0.w1.scale":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},"f4":{"dtype":"F4","shape":[2,2],"data_offsets":[12,14]}})";
  Bytes data(14);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i);
  return raw_file(header, data);
}

// Refused with a sentence, or every tensor lies inside the bytes and has the size its shape says. Never anything else.
inline bool holds(std::span<const uint8_t> bytes) {
  const Result<SafetensorsContent> content = parse_safetensors(bytes, "hostile");
  if (!content)
    return content.error().status == Status::kBadInput && content.error().message.starts_with("hostile: ") &&
           content.error().message.size() < 20000;
  uint64_t total = 0;
  for (const TensorEntry& tensor : content.value().tensors) {
    unsigned __int128 bits = static_cast<unsigned>(dtype_bits(tensor.dtype));
    for (const int64_t extent : tensor.shape) bits *= static_cast<uint64_t>(extent);
    if (bits != static_cast<unsigned __int128>(tensor.bytes) * 8) return false;
    if (tensor.file_offset > bytes.size() || tensor.bytes > bytes.size() - tensor.file_offset) return false;
    if (tensor.data != bytes.data() + tensor.file_offset) return false;
    total += tensor.bytes;
  }
  return content.value().tensors.empty() || total + content.value().tensors.front().file_offset == bytes.size();
}

// A small generator whose numbers are the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t limit) { return static_cast<size_t>(next() % limit); }

 private:
  uint64_t state_;
};

// One random change: a bit, a byte, a piece removed or doubled, or a word that means something to a JSON or safetensors parser.
inline void mutate(Bytes& bytes, Random& random) {
  static constexpr std::string_view kWords[] = {"{",
                                                "}",
                                                "[",
                                                "]",
                                                "\"",
                                                ",",
                                                ":",
                                                "null",
                                                "-1",
                                                "1e9",
                                                "18446744073709551615",
                                                "9223372036854775808",
                                                "0.5",
                                                "\"dtype\"",
                                                "\"shape\"",
                                                "\"data_offsets\"",
                                                "\"__metadata__\"",
                                                "\"F9\"",
                                                "\"F4\"",
                                                "\\u0000",
                                                "[[[[",
                                                "\xff",
                                                "NaN"};
  const size_t at = bytes.empty() ? 0 : random.below(bytes.size());
  const auto position = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.below(5)) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1u << random.below(8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random.next());
      break;
    case 2:
      bytes.erase(position, position + static_cast<std::ptrdiff_t>(std::min(bytes.size() - at, random.below(9))));
      break;
    case 3: {
      const Bytes piece(position, position + static_cast<std::ptrdiff_t>(std::min(bytes.size() - at, random.below(40))));
      bytes.insert(position, piece.begin(), piece.end());
      break;
    }
    default: {
      const std::string_view word = kWords[random.below(std::size(kWords))];
      bytes.insert(position, word.begin(), word.end());
    }
  }
}

// Makes the header's length fit the bytes again, so that a mutated header is still parsed.
inline void repair_length(Bytes& bytes, size_t data_bytes) {
  if (bytes.size() < 8 + data_bytes) return;
  const uint64_t length = bytes.size() - 8 - data_bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(length >> (8 * i));
}

}  // namespace monomoe::test_support
