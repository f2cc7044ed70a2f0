// What `pack` was asked for, checked: target, layers, experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "monomoe/checkpoint.h"
#include "plan/source_matrix.h"
#include "weights/names.hpp"

namespace monomoe::layer {

struct PackRequest {
  std::string to;                      // as written: "nvfp4", "packed", ...
  std::optional<WeightFormat> format;  // empty = packed
  bool allow_rounding = false;
  std::vector<LayerId> layers;   // ascending; empty = all
  std::vector<int64_t> experts;  // ascending; empty = all
  int threads = 1;
  monomoe_pack_callback callback = nullptr;
  void* user = nullptr;

  bool is_whole() const { return format.has_value() && layers.empty() && experts.empty(); }  // tensors outside MoE layers are copied too
};

Result<PackRequest> read_pack_request(const monomoe_pack_options& options);

}  // namespace monomoe::layer
