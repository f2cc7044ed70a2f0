// One rank's own device memory: packed experts of a layer, and the workspace of a call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "cuda/launch_variant.h"
#include "cuda/moe_kernel/params.h"
#include "cuda/status.hpp"
#include "plan/placement_table.hpp"
#include "plan/problem.h"

namespace monomoe::cuda {

// The packed experts of one rank on its device.
class RankWeights {
 public:
  // The experts hold anything until uploaded.
  static Result<RankWeights> make(const Problem& problem, const PlacementTable& placement, int32_t rank);
  // packed: expert_layout(problem).bytes of host memory. Returns when the memory has been read.
  Result<void> upload(int32_t slot, const uint8_t* packed) const;

  int32_t num_slots() const { return num_slots_; }
  const uint8_t* packed_experts() const { return experts_.data(); }  // slot after slot
  const int32_t* serving() const { return reinterpret_cast<const int32_t*>(serving_.data()); }
  uint8_t* slot(int32_t index) const { return experts_.data() + index * expert_bytes_; }

 private:
  int32_t num_slots_ = 0;
  int64_t expert_bytes_ = 0;
  DeviceBuffer experts_, serving_;
};

// Workspace, counters and error record of one rank.
class RankWorkspace {
 public:
  static Result<RankWorkspace> make(const Problem& problem, int64_t max_slots, LaunchVariant launch);

  uint8_t* local() const { return local_.data(); }
  float* scratch() const { return reinterpret_cast<float*>(scratch_.data()); }
  uint8_t* unfused() const { return unfused_.data(); }  // null but for LaunchVariant::kUnfused
  int64_t unfused_bytes() const { return unfused_.bytes(); }
  DeviceState* state() const { return reinterpret_cast<DeviceState*>(state_.data()); }
  DeviceError* error() const { return error_.get(); }

 private:
  struct FreeHost {
    void operator()(DeviceError* error) const { cudaFreeHost(error); }
  };
  DeviceBuffer local_, scratch_, unfused_, state_;
  std::unique_ptr<DeviceError, FreeHost> error_;
};

}  // namespace monomoe::cuda
