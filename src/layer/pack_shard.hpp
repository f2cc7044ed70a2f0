// One shard written: what is copied, then experts converted or packed a few at a time, so that memory stays at a few experts.
#pragma once

#include <functional>
#include <string>

#include "base/result.hpp"
#include "layer/pack_directory.hpp"
#include "layer/pack_plan.hpp"

namespace monomoe::layer {

using BytesWritten = std::function<void(uint64_t)>;  // tensor bytes since the last call

// layer: of the shard, with its values scanned; nullptr for the tensors outside MoE layers.
Result<ShardRecord> write_shard(const ShardPlan& shard, const LayerWeights* layer, const PackRequest& request, const std::string& path,
                                const BytesWritten& progress);

// What converting the kept experts of a layer would change, without writing anything.
struct LayerChange {
  ConversionChange change;
  std::string first_tensor;
};
Result<LayerChange> layer_change(const LayerWeights& layer, const PackRequest& request);
// Whether anything of the layer is converted at all.
bool converts(const LayerWeights& layer, const PackRequest& request);

}  // namespace monomoe::layer
