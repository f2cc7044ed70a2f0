// A tensor name is read left to right: prefix, layer, block, then one of a few known endings.
#include "weights/names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace monomoe {
namespace {

constexpr std::array<std::string_view, 4> kPrefixes{"", "model.", "language_model.model.", "model.language_model."};
constexpr std::array<std::string_view, kTensorParts> kParts{"weight",         "scale",       "weight_scale",  "weight_scale_inv",
                                                            "weight_scale_2", "input_scale", "weight_packed", "weight_global_scale",
                                                            "input_global_scale"};

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// "12." at the front: at most five digits, no leading zero, so that a number has one spelling.
std::optional<int> take_number(std::string_view& text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 5 || (text[0] == '0' && dot > 1)) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + dot, value);
  if (error != std::errc{} || end != text.data() + dot || text[0] == '-') return std::nullopt;
  text.remove_prefix(dot + 1);
  return value;
}

// A segment that is meant as a number although take_number refuses it.
bool is_odd_number(std::string_view text, std::string_view& number) {
  number = text.substr(0, text.find('.'));
  return !number.empty() && number.find_first_not_of("+-0123456789") == std::string_view::npos;
}

std::optional<MatrixRole> take_role(std::string_view& text) {
  if (take(text, "w1.") || take(text, "gate_proj.")) return MatrixRole::kGate;
  if (take(text, "w3.") || take(text, "up_proj.")) return MatrixRole::kUp;
  if (take(text, "w2.") || take(text, "down_proj.")) return MatrixRole::kDown;
  return std::nullopt;
}

bool is_fused(std::string_view text) {
  return text.starts_with("gate_up_proj") || text.starts_with("w13") || text.starts_with("w1w3") || text.starts_with("gate_and_up_proj");
}

std::optional<TensorPart> part_of(std::string_view text) {
  for (size_t i = 0; i < kParts.size(); ++i) {
    if (kParts[i] == text) return static_cast<TensorPart>(i);
  }
  return std::nullopt;
}

using Kind = MoeTensorName::Kind;

// "gate_up_proj.weight" of one expert, or "gate_up_proj", "gate_up_proj_scale_inv", "down_proj.weight_scale" of all of them.
Kind read_fused(std::string_view rest, bool all_experts, MoeTensorName& out) {
  out.role = MatrixRole::kGate;
  if (!take(rest, "gate_up_proj")) {
    if (!all_experts || !take(rest, "down_proj")) return Kind::kUnknownFused;
    out.role = MatrixRole::kDown;
  }
  if (all_experts) out.expert = -1;
  constexpr std::pair<std::string_view, TensorPart> kShort[] = {{"", TensorPart::kWeight},
                                                                {"_scale", TensorPart::kWeightScale},
                                                                {"_scale_inv", TensorPart::kWeightScaleInv},
                                                                {"_scale_2", TensorPart::kWeightScale2},
                                                                {"_input_scale", TensorPart::kInputScale}};
  if (take(rest, ".")) {
    const std::optional<TensorPart> part = part_of(rest);
    if (part) out.part = *part;
    return part ? Kind::kFused : Kind::kUnknownFused;
  }
  for (const auto& [ending, meaning] : kShort) {
    if (!all_experts || rest != ending) continue;
    out.part = meaning;
    return Kind::kFused;
  }
  return Kind::kUnknownFused;
}

// "w1.weight" below an expert.
void read_matrix(std::string_view rest, Kind known, Kind unknown, MoeTensorName& out) {
  const std::optional<MatrixRole> role = take_role(rest);
  const std::optional<TensorPart> part = role ? part_of(rest) : std::nullopt;
  if (role && part) {
    out.kind = known;
    out.role = *role;
    out.part = *part;
  } else {
    out.kind = !is_fused(rest) ? unknown : known == Kind::kExpert ? read_fused(rest, false, out) : Kind::kUnknownFused;
  }
}

// The part after "mlp." or "ffn."; false if it is no MoE tensor.
bool read_block(std::string_view rest, MoeTensorName& out) {
  if (rest == "gate.weight") {
    out.kind = Kind::kRouterWeight;
  } else if (rest == "gate.bias" || rest == "gate.e_score_correction_bias") {
    out.kind = Kind::kRouterBias;
  } else if (rest == "gate.tid2eid") {
    out.kind = Kind::kHashTable;
  } else if (take(rest, "experts.")) {
    if (const std::optional<int> expert = take_number(rest)) {
      out.expert = *expert;
      if (rest == "packed") {
        out.kind = Kind::kPackedExpert;
      } else {
        read_matrix(rest, Kind::kExpert, Kind::kUnknownExpert, out);
      }
    } else {
      out.kind = is_odd_number(rest, out.number) ? Kind::kOddExpert : read_fused(rest, true, out);
    }
  } else if (take(rest, "shared_experts.") || take(rest, "shared_expert.")) {
    if (rest == "packed") {
      out.kind = Kind::kPackedShared;
    } else {
      read_matrix(rest, Kind::kSharedExpert, Kind::kUnknownShared, out);
    }
  } else if (take(rest, "shared_expert_gate.")) {
    out.kind = Kind::kUnknownShared;
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string LayerId::label() const { return (mtp ? "mtp." : "") + std::to_string(index); }

std::optional<LayerId> layer_from_label(std::string_view label) {
  LayerId layer;
  layer.mtp = take(label, "mtp.");
  const std::string dotted = std::string(label) + ".";
  std::string_view rest = dotted;
  const std::optional<int> index = take_number(rest);
  if (!index || !rest.empty()) return std::nullopt;
  layer.index = *index;
  return layer;
}

std::string_view part_name(TensorPart part) { return kParts[static_cast<size_t>(part)]; }

std::optional<MoeTensorName> parse_moe_name(std::string_view name) {
  for (const std::string_view prefix : kPrefixes) {
    std::string_view rest = name;
    if (!take(rest, prefix)) continue;
    MoeTensorName out;
    if (take(rest, "mtp."))
      out.layer.mtp = true;
    else if (!take(rest, "layers."))
      continue;
    const std::optional<int> index = take_number(rest);
    if (!index && is_odd_number(rest, out.number)) {
      rest.remove_prefix(std::min(rest.size(), out.number.size() + 1));
      out.kind = Kind::kOddLayer;
      MoeTensorName ignored;
      return (take(rest, "ffn.") || take(rest, "mlp.")) && read_block(rest, ignored) ? std::optional(out) : std::nullopt;
    }
    if (!index || !(take(rest, "ffn.") || take(rest, "mlp."))) return std::nullopt;
    out.layer.index = *index;
    out.layer_prefix = name.substr(0, name.size() - rest.size());
    if (!read_block(rest, out)) return std::nullopt;
    return out;
  }
  return std::nullopt;
}

}  // namespace monomoe
