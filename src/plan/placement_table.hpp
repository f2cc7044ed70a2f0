// Builds and checks the table expert -> (rank, slot) behind a PlacementView: evenly, from entries, or from a text file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "plan/placement.h"

namespace monomoe {

// An expert may have this many copies for each rank of the layer, wherever they are; more cannot be meant, and memory grows with them.
inline constexpr int64_t kMaxCopiesPerRank = 4;

struct PlacementEntry {
  int32_t expert;
  int32_t rank;
  int32_t slot;  // place among the experts of that rank
};

class PlacementTable {
 public:
  // Experts on the ranks in order, as even as possible, the first ranks one more; a rank may get none.
  static Result<PlacementTable> even(int64_t experts, int64_t ranks);

  // Entries in any order. Every expert at least once, the slots of a rank 0..n-1 each once. More than one copy of an expert is
  // legal, on one rank too, up to kMaxCopiesPerRank * ranks.
  static Result<PlacementTable> from_entries(int64_t experts, int64_t ranks, std::span<const PlacementEntry> entries);
  // Whether so many entries can be a placement: asked before they are read.
  static Result<void> check_count(int64_t experts, int64_t ranks, int64_t count);

  // Points into this table: valid as long as the table is neither assigned to nor destroyed.
  PlacementView view() const;
  int32_t experts() const { return static_cast<int32_t>(copy_begin_.size()) - 1; }
  int32_t ranks() const { return static_cast<int32_t>(slot_begin_.size()) - 1; }
  // The largest number of experts one rank holds.
  int32_t max_slots() const;

 private:
  PlacementTable() = default;

  std::vector<int32_t> copy_begin_;
  std::vector<ExpertCopy> copies_;
  std::vector<int32_t> slot_begin_;
  std::vector<int32_t> slot_expert_;
};

// One copy a line: "expert rank" (slots of a rank in the order of the lines) or "expert rank slot", one form a file; '#' begins a
// comment. `name` stands for the file in errors. The ranges are checked by from_entries, which knows the layer.
Result<std::vector<PlacementEntry>> parse_placement(std::string_view text, std::string_view name);
Result<std::vector<PlacementEntry>> read_placement_file(const std::string& path);

}  // namespace monomoe
