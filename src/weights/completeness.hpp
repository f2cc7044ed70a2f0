// What a checkpoint as a whole lacks or contradicts: shards of a numbered set, layers that config.json counts.
#pragma once

#include <string>
#include <vector>

#include "weights/checkpoint.hpp"

namespace monomoe {

struct Completeness {
  std::vector<std::string> problems;
  std::vector<std::string> notes;  // some layers alone are a legal checkpoint
};

Completeness check_completeness(const Checkpoint& checkpoint);

}  // namespace monomoe
