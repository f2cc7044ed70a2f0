// The tensors of a synthetic checkpoint: names, types, shapes and how each is filled. No bytes yet.
#pragma once

#include <vector>

#include "layer/synth_fill.hpp"
#include "layer/synth_geometry.hpp"
#include "weights/safetensors_writer.hpp"

namespace monomoe::layer {

struct SynthTensor {
  TensorSpec spec;
  FillSpec fill;
  uint64_t bytes = 0;
};

// In the order they are written: layer by layer, router, shared expert, experts.
std::vector<SynthTensor> checkpoint_tensors(const Geometry& geometry, const SynthShape& shape);
// x, and token_ids where the model has hash layers.
std::vector<SynthTensor> input_tensors(const Geometry& geometry, int64_t tokens);

}  // namespace monomoe::layer
