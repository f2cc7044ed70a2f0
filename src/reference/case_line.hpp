// A problem as one line of text, e.g. "ranks=4 experts=16 topk=4 tokens=37 hidden=512 inter=256 w=nvfp4 seed=3" (docs/cases.md).
// Tests, verify and bench parse the same line, so a failure report is a command to paste.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "plan/placement_table.hpp"
#include "plan/problem.h"

namespace monomoe {

enum class RouteDistribution : uint8_t {
  kUniform,  // every expert equally likely
  kZipf,     // expert e with weight 1 / (e + 1)
  kOne,      // every slot to expert 0
  kMasked,   // uniform, but a third of the slots -1, and every fifth token all of them
};
enum class PlacementKind : uint8_t { kEven, kRandom, kRedundant };

struct Case {
  Problem problem;              // capacity filled in
  int64_t tokens = 0;           // over all ranks
  std::vector<int64_t> rows;    // tokens of each rank, in order; sums to tokens
  uint64_t seed = 0;
  float limit = std::numeric_limits<float>::infinity();
  RouteDistribution distribution = RouteDistribution::kUniform;
  PlacementKind placement = PlacementKind::kEven;
};

// Unknown or repeated keys, missing ones and bad values are errors that name the key.
Result<Case> parse_case(std::string_view line);
// The line that parses to this case, every key given.
std::string case_text(const Case& c);

// A case and where it stood.
struct ListedCase {
  std::string line;
  int64_t line_number = 0;
  Case parsed;
};
// One case a line; empty lines and '#' comments are skipped. `name` stands for the file in errors.
Result<std::vector<ListedCase>> parse_cases(std::string_view text, std::string_view name);
Result<std::vector<ListedCase>> read_case_file(const std::string& path);

// even: PlacementTable::even. random: every expert on a random rank. redundant: even, and about half of the experts have further
// copies on random ranks, the same rank too.
Result<PlacementTable> placement_of(const Case& c);

}  // namespace monomoe
