// What one call of the layer is given, for all reference layers: plain views, no ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "plan/source_matrix.h"

namespace monomoe {

struct LayerInput {
  int64_t hidden = 0, intermediate = 0, topk = 0, tokens = 0;
  std::span<const uint16_t> x;     // bf16 [tokens, hidden]; or, where it is empty, rows that are quantised already:
  std::span<const uint8_t> codes;  //   e4m3 [tokens, hidden], logical order
  std::span<const float> scales;   //   [tokens, hidden / 128]
  std::span<const int64_t> ids;    // [tokens, topk]; negative: dropped
  std::span<const float> weights;  // [tokens, topk]
  float limit = std::numeric_limits<float>::infinity();

  int64_t routes() const { return tokens * topk; }
};

// Sizes, span lengths, ids and limit against each other and the experts; the error names what was found and wanted.
Result<void> check_layer(const LayerInput& input, std::span<const SourceExpert> experts);

// The tokens as the layer computes with them (contract N1), in logical order.
struct StagedTokens {
  std::vector<uint8_t> codes;  // [tokens, hidden]
  std::vector<float> scales;   // [tokens, hidden / 128]
};
StagedTokens stage_tokens(const LayerInput& input);

}  // namespace monomoe
