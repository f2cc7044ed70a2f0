// model.safetensors.index.json: which shard holds which tensor. Read as hostile input.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace monomoe {

struct IndexedTensor {
  std::string tensor, shard;
};

// Sorted by tensor. Duplicate names and shard names that are not plain file names are refused.
Result<std::vector<IndexedTensor>> parse_tensor_index(std::span<const uint8_t> json, std::string_view file);

}  // namespace monomoe
