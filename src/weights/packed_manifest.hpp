// monomoe_packed.json: what a packed checkpoint holds. Its tensors are packed experts (plan/weight_packing.h), one U8 tensor each, named
// PREFIXexperts.E.packed and PREFIXshared_experts.packed; sizes, formats and checksums stand here. A layer's
// entry is under a checksum of its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "plan/source_matrix.h"

namespace monomoe {

constexpr const char* kPackedManifestName = "monomoe_packed.json";

struct PackedLayerRecord {
  std::string prefix;  // "layers.3.ffn."
  WeightFormat format = WeightFormat::kFp8;
  int64_t hidden = 0, intermediate = 0;
  std::vector<std::string> checksums;  // of each expert's bytes, in order
  // Of the shared expert; no checksum = it is not packed.
  WeightFormat shared_format = WeightFormat::kFp8;
  int64_t shared_intermediate = 0;
  std::string shared_checksum;
  std::map<std::string, std::string> tensor_checksums;  // of the layer's other tensors by name: the router's, a shared expert that is not packed
};

struct PackedManifest {
  std::string file;                                 // for messages; empty: the directory has none
  std::map<std::string, PackedLayerRecord> layers;  // by label: "3", "mtp.0"
};

// A missing file is legal and gives an empty manifest. A version or layout that is not this library's is refused.
Result<PackedManifest> read_packed_manifest(const std::string& directory);
Result<PackedManifest> parse_packed_manifest(std::string_view json, std::string_view file);
std::string packed_manifest_text(const PackedManifest& manifest);

}  // namespace monomoe
