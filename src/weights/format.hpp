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

// `base_name` is the name without its last part ("layers.0.ffn.experts.5.w1"); `module` the layer's expert module for the hints in
// config.json ("layers.0.ffn.experts"). Errors are sentences that name the tensor, what was found, what was wanted and what to do.
Result<SourceMatrix> decide_matrix(const MatrixTensors& tensors, std::string_view base_name, std::string_view module,
                                   const ModelConfig& config);

}  // namespace monomoe
