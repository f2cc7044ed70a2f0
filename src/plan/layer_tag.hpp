// The number by which ranks notice that they run different layers in one call: each sends its layer's, and they must be equal.
#pragma once

#include <cstdint>

#include "plan/placement_table.hpp"
#include "plan/problem.h"

namespace monomoe {

// Another one for each layer of this process: enough where all ranks share it.
uint64_t unique_layer_tag();

// The same on every rank of a world without asking, since it follows from what the ranks have in common: shape, placement, clamp and the
// caller's own number. The format is left out: a rank that holds no expert does not know it.
uint64_t world_layer_tag(const Problem& problem, const PlacementTable& placement, float swiglu_limit, uint64_t given);

}  // namespace monomoe
