// The JSON report of a problem: legality, bytes per rank by region, tiles, padding.
#pragma once

#include <string>

#include "plan/problem.h"

namespace monomoe::layer {

std::string plan_report(const Problem& problem);

}  // namespace monomoe::layer
