// The input file of `run` and `verify`: rows, and either their routing or what the checkpoint's router needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "handles.hpp"

namespace monomoe::cli {

// Copies, because tensors in the mapped file may be unaligned.
struct TokenInput {
  int64_t tokens = 0, hidden = 0, topk = 0;
  std::vector<uint16_t> x;         // bf16 [tokens, hidden]
  bool has_routing = false;        // ids and weights came with the file
  std::vector<int64_t> ids;        // [tokens, topk]
  std::vector<float> weights;      // [tokens, topk]
  std::vector<int64_t> token_ids;  // [tokens], hash layers only
  uint64_t bytes = 0;
};

// Reads and checks the file against the layer; `where` ("DIR, layer 3") names the layer in messages. Without routing in the file the ids
// and weights stay empty.
TokenInput load_tokens(const std::string& path, const monomoe_layer_info& layer, const std::string& where);

// A whole tensor as a vector after checking dtype and shape (-1 = any); used for captures as well.
template <class T>
std::vector<T> read_tensor(const std::string& path, const monomoe_tensor& tensor, const char* dtype, const std::vector<int64_t>& dims,
                           const std::string& meaning);

}  // namespace monomoe::cli
