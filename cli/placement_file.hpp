// Text file that says where experts live: lines "expert rank" or "expert rank slot", comments after '#'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "monomoe/monomoe.h"

namespace monomoe::cli {

struct PlacementTable {
  std::vector<int32_t> expert, rank, slot;
  monomoe_placement view() const { return {static_cast<int64_t>(expert.size()), expert.data(), rank.data(), slot.data()}; }
  std::vector<int64_t> experts_per_rank(int32_t num_ranks) const;
};

// Checks everything the library would refuse, so that errors name the file and the line. Entries without a slot get the lowest free one
// of their rank, in the order of the file.
PlacementTable load_placement(const std::string& path, int32_t num_experts, int32_t num_ranks);

}  // namespace monomoe::cli
