// Scales are chosen so that unit-variance tokens give outputs of order one and routing spreads over all experts.
#include "layer/synth_tensors.hpp"

#include <algorithm>
#include <cmath>

#include "plan/tiles.h"

namespace monomoe::layer {
namespace {

constexpr float kRouterLogitDeviation = 1.0f;
constexpr float kBiasSpread = 0.05f;
// Down weights make up for what SwiGLU and the averaging over experts take away.
constexpr double kDownGain = 3.0;

class TensorList {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, const FillSpec& fill) {
    uint64_t elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
    const uint64_t bytes = elements * static_cast<uint64_t>(dtype_bits(dtype)) / 8;
    tensors_.push_back({{std::move(name), dtype, std::move(shape)}, fill, bytes});
  }
  std::vector<SynthTensor> take() { return std::move(tensors_); }

 private:
  std::vector<SynthTensor> tensors_;
};

struct Matrix {
  std::string name;  // without its last part
  int64_t rows, cols;
  double deviation;  // wanted of the weights
};

// The e8m0 code of the power of two nearest to value, for the lowest of four scales.
uint8_t e8m0_near(double value) { return static_cast<uint8_t>(std::lround(std::log2(value)) + 127); }

void add_fp8(TensorList& list, const Geometry& geometry, const Matrix& m) {
  list.add(m.name + ".weight", DType::F8_E4M3, {m.rows, m.cols}, {Fill::kE4m3Codes});
  const std::vector<int64_t> blocks = {ceil_div(m.rows, 128), ceil_div(m.cols, 128)};
  const double scale = m.deviation / kE4m3CodeDeviation;
  if (geometry.native_names) {
    list.add(m.name + ".scale", DType::F8_E8M0, blocks, {Fill::kE8m0Scales, e8m0_near(scale / kE8m0ScaleDeviation)});
  } else {
    FillSpec fill{Fill::kF32Uniform};
    fill.center = static_cast<float>(scale);
    fill.spread = static_cast<float>(scale / 2);
    list.add(m.name + ".weight_scale_inv", DType::F32, blocks, fill);
  }
}

void add_nvfp4(TensorList& list, const Matrix& m) {
  list.add(m.name + ".weight", DType::U8, {m.rows, m.cols / 2}, {Fill::kFp4Codes});
  list.add(m.name + ".weight_scale", DType::F8_E4M3, {m.rows, m.cols / 16}, {Fill::kE4m3Scales, kE4m3ScaleLow});
  // Published checkpoints have a different weight_scale_2 for almost every matrix: spread it a little.
  FillSpec global{Fill::kF32Uniform};
  global.center = static_cast<float>(m.deviation / (kE2m1CodeDeviation * kE4m3ScaleDeviation));
  global.spread = global.center * 0.1f;
  list.add(m.name + ".weight_scale_2", DType::F32, {}, global);
  FillSpec input{Fill::kF32Uniform};  // calibrated for FP4 activations: no part of this layer's arithmetic
  input.center = 0.01f;
  input.spread = 0.005f;
  list.add(m.name + ".input_scale", DType::F32, {}, input);
}

void add_mxfp4(TensorList& list, const Geometry& geometry, const Matrix& m) {
  const DType codes = geometry.native_names ? DType::I8 : DType::U8;
  const uint8_t low = e8m0_near(m.deviation / (kE2m1CodeDeviation * kE8m0ScaleDeviation));
  list.add(m.name + ".weight", codes, {m.rows, m.cols / 2}, {Fill::kFp4Codes});
  list.add(m.name + (geometry.native_names ? ".scale" : ".weight_scale"), DType::F8_E8M0, {m.rows, m.cols / 32}, {Fill::kE8m0Scales, low});
}

void add_expert(TensorList& list, const Geometry& geometry, WeightFormat format, const std::string& prefix) {
  for (int matrix = 0; matrix < 3; ++matrix) {
    const bool is_down = matrix == 2;
    const int64_t rows = is_down ? geometry.hidden : geometry.intermediate;
    const int64_t cols = is_down ? geometry.intermediate : geometry.hidden;
    const double deviation = (is_down ? kDownGain : 1.0) / std::sqrt(static_cast<double>(cols));
    const Matrix m{prefix + matrix_name(geometry, matrix), rows, cols, deviation};
    if (format == WeightFormat::kNvfp4)
      add_nvfp4(list, m);
    else if (format == WeightFormat::kMxfp4)
      add_mxfp4(list, geometry, m);
    else
      add_fp8(list, geometry, m);
  }
}

void add_router(TensorList& list, const Geometry& geometry, const SynthShape& shape, int64_t layer, const std::string& prefix) {
  FillSpec gate{Fill::kBf16Normal};
  gate.spread = kRouterLogitDeviation / std::sqrt(static_cast<float>(geometry.hidden));
  list.add(prefix + "gate.weight", DType::BF16, {shape.experts, geometry.hidden}, gate);
  if (layer < geometry.hash_layers) {
    FillSpec table{Fill::kI64Below};
    table.bound = shape.experts;
    table.run = std::min(geometry.topk, shape.experts);
    list.add(prefix + "gate.tid2eid", DType::I64, {geometry.vocabulary, table.run}, table);
  } else if (geometry.has_bias) {
    FillSpec bias{Fill::kF32Uniform};
    bias.spread = kBiasSpread;
    list.add(prefix + (geometry.native_names ? "gate.bias" : "gate.e_score_correction_bias"), DType::F32, {shape.experts}, bias);
  }
}

}  // namespace

std::vector<SynthTensor> checkpoint_tensors(const Geometry& geometry, const SynthShape& shape) {
  TensorList list;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = layer_prefix(geometry, layer);
    add_router(list, geometry, shape, layer, prefix);
    if (geometry.shared_experts != 0) add_expert(list, geometry, WeightFormat::kFp8, prefix + "shared_experts.");
    for (int64_t expert = 0; expert < shape.experts; ++expert) {
      add_expert(list, geometry, shape.format, prefix + "experts." + std::to_string(expert) + ".");
    }
  }
  return list.take();
}

std::vector<SynthTensor> input_tensors(const Geometry& geometry, int64_t tokens) {
  TensorList list;
  FillSpec x{Fill::kBf16Normal};
  x.spread = 1.0f;
  list.add("x", DType::BF16, {tokens, geometry.hidden}, x);
  if (geometry.hash_layers != 0) {
    FillSpec ids{Fill::kI64Below};
    ids.bound = geometry.vocabulary;
    list.add("token_ids", DType::I64, {tokens}, ids);
  }
  return list.take();
}

}  // namespace monomoe::layer
