// Tensor names of DeepSeek (layers.L.ffn.experts.E.w1.weight) and Hugging Face (model.layers.L.mlp.experts.E.gate_proj.weight)
// checkpoints, taken apart.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace monomoe {

// A decoder layer or a multi-token-prediction block.
struct LayerId {
  bool mtp = false;
  int index = 0;
  auto operator<=>(const LayerId&) const = default;
  std::string label() const;  // "3" or "mtp.0"
};
std::optional<LayerId> layer_from_label(std::string_view label);

enum class MatrixRole : uint8_t { kGate, kUp, kDown };
constexpr int kMatrixRoles = 3;

enum class TensorPart : uint8_t {
  kWeight,
  kScale,
  kWeightScale,
  kWeightScaleInv,
  kWeightScale2,
  kInputScale,
  kWeightPacked,
  kWeightGlobalScale,
  kInputGlobalScale,
};
constexpr int kTensorParts = 9;
std::string_view part_name(TensorPart part);

struct MoeTensorName {
  enum class Kind : uint8_t {
    kExpert,
    kSharedExpert,
    kPackedExpert,  // experts.E.packed: all of an expert in the kernel's own layout (packed_manifest.hpp)
    kPackedShared,
    kRouterWeight,
    kRouterBias,
    kHashTable,
    kFused,          // gate and up in one tensor (role kGate), or one tensor for all experts (expert -1): split by fused.cpp
    kUnknownFused,   // fused in a way that is not known: refused
    kOddExpert,      // experts.03, experts.-1, experts.100000: `number` is not written as 0 to 99999
    kOddLayer,       // the same of a layer; nothing else is known of the tensor then
    kUnknownExpert,  // under experts.E. but not a name we know
    kUnknownShared,
  };
  Kind kind = Kind::kExpert;
  LayerId layer;
  std::string_view layer_prefix;  // "model.layers.3.mlp."; a view into the name
  int expert = 0;
  std::string_view number;  // as written, of the odd kinds
  MatrixRole role = MatrixRole::kGate;
  TensorPart part = TensorPart::kWeight;
};

// Empty for tensors that are no part of a MoE layer (attention, dense layers, norms).
std::optional<MoeTensorName> parse_moe_name(std::string_view name);

}  // namespace monomoe
