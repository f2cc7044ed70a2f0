// The table is checked once, here, so that nobody who walks a PlacementView needs to check again.
#include "plan/placement_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/problem.h"

namespace monomoe {

namespace {

Result<void> check_sizes(int64_t experts, int64_t ranks) {
  if (experts < 1 || experts > kMaxExperts) {
    return usage_error(fmt::format("placement: {} experts; there must be 1 to {}", experts, kMaxExperts));
  }
  if (ranks < 1 || ranks > kMaxRanks) {
    return usage_error(fmt::format("placement: {} ranks; there must be 1 to {}", ranks, kMaxRanks));
  }
  return {};
}

Result<void> check_entry(const PlacementEntry& entry, int64_t experts, int64_t ranks, int64_t num_entries) {
  if (entry.expert < 0 || entry.expert >= experts) {
    return usage_error(fmt::format("placement: expert {} (rank {}, slot {}) is not among the layer's {} experts 0..{}", entry.expert,
                                   entry.rank, entry.slot, experts, experts - 1));
  }
  if (entry.rank < 0 || entry.rank >= ranks) {
    return usage_error(fmt::format("placement: rank {} of expert {} (slot {}) is not among the {} ranks 0..{}", entry.rank,
                                   entry.expert, entry.slot, ranks, ranks - 1));
  }
  if (entry.slot < 0 || entry.slot >= num_entries) {
    return usage_error(fmt::format("placement: slot {} of expert {} on rank {}; the slots of a rank count from 0 without gaps",
                                   entry.slot, entry.expert, entry.rank));
  }
  return {};
}

// Sorted by (rank, slot): a slot is wrong exactly where it differs from the count of its rank so far.
Result<void> check_slots(const std::vector<PlacementEntry>& by_slot) {
  int32_t expected = 0;
  for (size_t i = 0; i < by_slot.size(); ++i) {
    const PlacementEntry& entry = by_slot[i];
    expected = i > 0 && by_slot[i - 1].rank == entry.rank ? expected + 1 : 0;
    if (entry.slot == expected) continue;
    if (entry.slot < expected) {
      return usage_error(fmt::format("placement: slot {} of rank {} is given to expert {} and to expert {}; a slot holds one expert",
                                     entry.slot, entry.rank, by_slot[i - 1].expert, entry.expert));
    }
    return usage_error(fmt::format("placement: rank {} has no expert in slot {} but expert {} in slot {}; slots count from 0 without gaps",
                                   entry.rank, expected, entry.expert, entry.slot));
  }
  return {};
}

}  // namespace

Result<PlacementTable> PlacementTable::even(int64_t experts, int64_t ranks) {
  if (auto checked = check_sizes(experts, ranks); !checked) return checked.error();
  std::vector<PlacementEntry> entries;
  int64_t expert = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t count = experts / ranks + (rank < experts % ranks ? 1 : 0);
    for (int64_t slot = 0; slot < count; ++slot, ++expert) {
      entries.push_back({static_cast<int32_t>(expert), static_cast<int32_t>(rank), static_cast<int32_t>(slot)});
    }
  }
  return from_entries(experts, ranks, entries);
}

Result<void> PlacementTable::check_count(int64_t experts, int64_t ranks, int64_t count) {
  if (auto checked = check_sizes(experts, ranks); !checked) return checked;
  const int64_t most = kMaxCopiesPerRank * experts * ranks;
  if (count >= 1 && count <= most) return {};  // too few are found with the expert that has none
  return usage_error(fmt::format("placement: {} entries for {} experts on {} ranks; there must be 1 to {} (an expert may have {} copies)",
                                 count, experts, ranks, most, kMaxCopiesPerRank * ranks));
}

Result<PlacementTable> PlacementTable::from_entries(int64_t experts, int64_t ranks, std::span<const PlacementEntry> entries) {
  if (auto checked = check_sizes(experts, ranks); !checked) return checked.error();
  const auto num_entries = static_cast<int64_t>(entries.size());
  for (const PlacementEntry& entry : entries) {
    if (auto checked = check_entry(entry, experts, ranks, num_entries); !checked) return checked.error();
  }
  std::vector<PlacementEntry> sorted(entries.begin(), entries.end());
  // Stable: of two experts in one slot the error names the one given first first.
  std::stable_sort(sorted.begin(), sorted.end(), [](const PlacementEntry& a, const PlacementEntry& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.slot < b.slot;
  });
  if (auto checked = check_slots(sorted); !checked) return checked.error();

  PlacementTable table;
  table.slot_begin_.assign(ranks + 1, 0);
  table.copy_begin_.assign(experts + 1, 0);
  for (const PlacementEntry& entry : sorted) {
    ++table.slot_begin_[entry.rank + 1];
    ++table.copy_begin_[entry.expert + 1];
    table.slot_expert_.push_back(entry.expert);
  }
  for (int64_t e = 0; e < experts; ++e) {
    if (table.copy_begin_[e + 1] == 0) {
      return usage_error(fmt::format("placement: expert {} of {} is on none of the {} ranks; every expert needs a rank and a slot", e,
                                     experts, ranks));
    }
    if (table.copy_begin_[e + 1] > kMaxCopiesPerRank * ranks) {
      return usage_error(fmt::format("placement: expert {} has {} copies; on {} ranks an expert may have {}", e, table.copy_begin_[e + 1],
                                     ranks, kMaxCopiesPerRank * ranks));
    }
    table.copy_begin_[e + 1] += table.copy_begin_[e];
  }
  for (int64_t r = 0; r < ranks; ++r) table.slot_begin_[r + 1] += table.slot_begin_[r];
  table.copies_.resize(sorted.size());
  std::vector<int32_t> next(table.copy_begin_.begin(), table.copy_begin_.end() - 1);
  for (const PlacementEntry& entry : sorted) table.copies_[next[entry.expert]++] = {entry.rank, entry.slot};
  return table;
}

PlacementView PlacementTable::view() const {
  PlacementView view;
  view.experts = experts();
  view.ranks = ranks();
  view.copy_begin = copy_begin_.data();
  view.copies = copies_.data();
  view.slot_begin = slot_begin_.data();
  view.slot_expert = slot_expert_.data();
  return view;
}

int32_t PlacementTable::max_slots() const {
  int32_t most = 0;
  for (size_t r = 0; r + 1 < slot_begin_.size(); ++r) most = std::max(most, slot_begin_[r + 1] - slot_begin_[r]);
  return most;
}

}  // namespace monomoe
