// The packed experts of one layer and where they live. Ranks share a process, so the copies of an expert share one buffer.
#pragma once

#include <cstdint>
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

  const Problem& problem() const { return problem_; }
  const ExpertLayout& layout() const { return layout_; }
  const PlacementTable& placement() const { return placement_; }
  float swiglu_limit() const { return swiglu_limit_; }

  // layout().bytes, aligned to a page; written by pack_expert.
  uint8_t* expert_data(int32_t expert) const { return reinterpret_cast<uint8_t*>(experts_[expert].data()); }
  const uint8_t* slot_data(int32_t rank, int64_t slot) const {
    const PlacementView view = placement_.view();
    return expert_data(view.slot_expert[view.slot_begin[rank] + slot]);
  }
  int64_t num_slots(int32_t rank) const { return placement_.view().num_slots(rank); }

  // PlacementView::serving_copy, looked up.
  const ExpertCopy& serving_copy(int32_t src, int32_t expert) const { return serving_[src * problem_.experts + expert]; }

 private:
  CpuWeights(const Problem& problem, PlacementTable placement, float swiglu_limit);

  Problem problem_;
  ExpertLayout layout_;
  PlacementTable placement_;
  float swiglu_limit_;
  std::vector<ExpertCopy> serving_;  // [source rank][expert]
  std::vector<PageRegion> experts_;
};

}  // namespace monomoe::cpu
