// The JSON header of a safetensors file as plain data, before any of it is compared with the file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace monomoe {

struct HeaderTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // relative to the data section
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// `json` is the header's text alone. Refuses what is not exactly {name: {dtype, shape, data_offsets}, __metadata__: {string: string}}:
// duplicate or unknown keys, numbers that are negative or not whole, other than two offsets, anything nested deeper.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const uint8_t> json, std::string_view file);

}  // namespace monomoe
