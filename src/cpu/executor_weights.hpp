// The packed experts of one layer and where they live. The ranks of a process share the memory of an expert that has several copies; the
// experts of a rank lie slot after slot as long as none of them has.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "comm/symmetric_memory.hpp"
#include "plan/placement_table.hpp"
#include "plan/problem.h"
#include "plan/weight_packing.h"

namespace monomoe::cpu {

class CpuWeights {
 public:
  // Of the problem: hidden, intermediate, experts, ranks and weights; the rest belongs to the workspace. Buffers are zero pages
  // until filled through expert_data. swiglu_limit: +inf for none.
  static Result<CpuWeights> create(const Problem& problem, PlacementTable placement, float swiglu_limit);
  // With the experts of one rank of a world only; tag: the same on all its ranks (plan/layer_tag.hpp).
  static Result<CpuWeights> create_for_rank(const Problem& problem, PlacementTable placement, float swiglu_limit, int32_t rank, uint64_t tag);

  const Problem& problem() const { return problem_; }
  const ExpertLayout& layout() const { return layout_; }
  const PlacementTable& placement() const { return placement_; }
  float swiglu_limit() const { return swiglu_limit_; }
  // Equal on two ranks if they use the same layer.
  uint64_t tag() const { return tag_; }

  // layout().bytes, aligned to kRegionAlign; written by pack_expert. Null for an expert that lives on ranks elsewhere.
  uint8_t* expert_data(int32_t expert) const {
    return begin_[expert] < 0 ? nullptr : reinterpret_cast<uint8_t*>(memory_->data()) + begin_[expert];
  }
  const uint8_t* slot_data(int32_t rank, int64_t slot) const {
    const PlacementView view = placement_.view();
    return expert_data(view.slot_expert[view.slot_begin[rank] + slot]);
  }
  int64_t num_slots(int32_t rank) const { return placement_.view().num_slots(rank); }

  // PlacementView::serving_copy, looked up.
  const ExpertCopy& serving_copy(int32_t src, int32_t expert) const { return serving_[src * problem_.experts + expert]; }

 private:
  CpuWeights(const Problem& problem, PlacementTable placement, float swiglu_limit, uint64_t tag);
  // rank -1: those of all ranks.
  static Result<CpuWeights> make(const Problem& problem, PlacementTable placement, float swiglu_limit, int32_t rank, uint64_t tag);

  Problem problem_;
  ExpertLayout layout_;
  PlacementTable placement_;
  float swiglu_limit_;
  uint64_t tag_;
  std::vector<ExpertCopy> serving_;  // [source rank][expert]
  std::vector<int64_t> begin_;       // [expert], in bytes; -1: elsewhere
  std::optional<PageRegion> memory_;
};

}  // namespace monomoe::cpu
