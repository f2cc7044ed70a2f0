// The models `synth` can imitate: sizes, router and the names their checkpoints use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/source_matrix.h"
#include "weights/config.hpp"

namespace monomoe::layer {

struct Geometry {
  const char* name;
  const char* model_type;
  const char* architecture;
  bool native_names;  // layers.L.ffn.experts.E.w1 (DeepSeek) instead of model.layers.L.mlp.experts.E.gate_proj (Hugging Face)
  int64_t hidden, intermediate, experts, topk;
  int64_t shared_experts;
  int64_t hash_layers;  // the first layers take their experts from tid2eid
  int64_t vocabulary;
  Scoring scoring;
  bool has_bias;
  int64_t groups, topk_groups;  // 0 = the config has no such keys
  double scaling_factor;        // 0 = none
  double swiglu_limit;          // 0 = none
};

std::span<const Geometry> geometries();
const Geometry* find_geometry(std::string_view name);  // nullptr if unknown

// "layers.3.ffn." or "model.layers.3.mlp."
std::string layer_prefix(const Geometry& geometry, int64_t layer);
// Name of matrix 0 gate, 1 up, 2 down, without its last part.
std::string matrix_name(const Geometry& geometry, int matrix);

// config.json of a checkpoint with these sizes.
struct SynthShape {
  int64_t layers, experts;
  WeightFormat format;
};
std::string synth_config(const Geometry& geometry, const SynthShape& shape);

}  // namespace monomoe::layer
