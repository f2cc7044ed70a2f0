// Decides how one weight matrix is stored from its tensors' types, shapes and companions, and checks that against config.json.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "plan/source_matrix.h"
#include "weights/config.hpp"
#include "weights/names.hpp"
#include "weights/tensor_set.hpp"

namespace monomoe {

std::string_view format_name(WeightFormat format);

// The tensors that belong to one matrix, by part; an absent part has entry == nullptr.
struct MatrixTensors {
  std::array<LocatedTensor, kTensorParts> parts{};
  LocatedTensor& operator[](TensorPart part) { return parts[static_cast<size_t>(part)]; }
  const LocatedTensor& operator[](TensorPart part) const { return parts[static_cast<size_t>(part)]; }
};

// What config.json says that bears on one module ("layers.0.ffn.experts"), looked up once for all its matrices.
struct FormatHints {
  const ModelConfig* config = nullptr;
  bool ignored = false;           // the module is on an ignore list: the global settings do not describe it
  bool e8m0_block_scale = false;  // U8 scales of FP8 blocks are e8m0: scale_fmt says so
  bool mxfp4 = false;             // U8 scales of FP4 groups are e8m0: the quantisation method or expert_dtype says so
  bool read_values = true;        // false: types and shapes alone are looked at, a global scale stays 1
};
FormatHints format_hints(const ModelConfig& config, std::string_view module);

// `base_name` is the name without its last part ("layers.0.ffn.experts.5.w1"). Errors are sentences that name the tensor, what was
// found, what was wanted and what to do.
Result<SourceMatrix> decide_matrix(const MatrixTensors& tensors, std::string_view base_name, const FormatHints& hints);

// Empty, or what config.json states about this module's format that its tensors do not bear out. Worth a note, not an error: the
// global settings of mixed checkpoints describe only some layers.
std::string contradicts_config(WeightFormat format, const FormatHints& hints);

}  // namespace monomoe
