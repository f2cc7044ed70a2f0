// Random weights, tokens and routes of a case: the same bits on every platform, from a counter-based generator, so that any element
// can be made alone and in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/source_matrix.h"
#include "reference/case_line.hpp"
#include "reference/layer_input.hpp"

namespace monomoe {

// A 64-bit value for (seed, stream, counter): the finaliser of SplitMix64 over their sum, twice.
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter);
// Uniform in [0, 1), a multiple of 2^-24.
float random_uniform(uint64_t seed, uint64_t stream, uint64_t counter);
// Sum of four uniforms, centred and scaled to variance 1: bell-shaped, below 3.5 in magnitude, free of library functions.
float random_bell(uint64_t seed, uint64_t stream, uint64_t counter);

struct RandomMatrix {
  std::vector<uint8_t> codes, scales;
  SourceMatrix matrix;  // points into the two vectors, hence no copies

  RandomMatrix() = default;
  RandomMatrix(RandomMatrix&&) = default;
  RandomMatrix& operator=(RandomMatrix&&) = default;
};
struct RandomExpert {
  RandomMatrix gate, up, down;
  SourceExpert source() const { return {gate.matrix, up.matrix, down.matrix}; }
};

// Weights about N(0, 1 / cols), so that a layer keeps the size of what it is given. FP8 scales are F32, BF16 or E8M0, and NVFP4
// global scales differ between matrices.
RandomMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed, uint64_t stream);

struct RandomLayer {
  std::vector<RandomExpert> experts;
  std::vector<uint16_t> x;      // bf16 [tokens, hidden]
  std::vector<int64_t> ids;     // [tokens, topk]
  std::vector<float> weights;   // [tokens, topk]; NaN where the id is negative: such a weight is never read

  std::vector<SourceExpert> sources() const;
  LayerInput input(const Case& c) const;
};
RandomLayer random_layer(const Case& c);

}  // namespace monomoe
