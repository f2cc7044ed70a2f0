// Parses and checks placement files.
#include "placement_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "failure.hpp"
#include "text_file.hpp"

namespace monomoe::cli {
namespace {

constexpr int32_t kMaxCopiesPerRank = 4;

int32_t number_in(const std::string& where, const std::string& word, const char* what, int64_t end) {
  const std::optional<int64_t> value = whole_number(word);
  if (!value || *value < 0 || *value >= end)
    input_error(fmt::format("{}: {} '{}' must be a number in 0..{}", where, what, shortened(word), end - 1));
  return static_cast<int32_t>(*value);
}

// Lines with a slot first, so that lines without one can take what is left: the lowest free one, which only grows.
void fill_free_slots(PlacementTable& table, std::map<int32_t, std::set<int32_t>>& taken) {
  std::map<int32_t, int32_t> lowest;
  for (size_t i = 0; i < table.expert.size(); ++i) {
    if (table.slot[i] >= 0) continue;
    std::set<int32_t>& slots = taken[table.rank[i]];
    int32_t& slot = lowest[table.rank[i]];
    while (slots.count(slot) != 0) ++slot;
    slots.insert(slot);
    table.slot[i] = slot;
  }
}

void check_complete(const std::string& path, const PlacementTable& table, const std::map<int32_t, std::set<int32_t>>& taken,
                    int32_t num_experts) {
  for (const auto& [rank, slots] : taken)
    if (!slots.empty() && *slots.rbegin() != static_cast<int32_t>(slots.size()) - 1)
      input_error(fmt::format("{}: rank {} holds {} experts but uses slot {}; the slots of a rank are 0..n-1, each once", path, rank,
                              slots.size(), *slots.rbegin()));
  const std::set<int32_t> placed(table.expert.begin(), table.expert.end());
  for (int32_t expert = 0; expert < num_experts; ++expert)
    if (placed.count(expert) == 0)
      input_error(fmt::format("{}: expert {} has no line; every expert 0..{} needs at least one", path, expert, num_experts - 1));
}

}  // namespace

PlacementTable load_placement(const std::string& path, int32_t num_experts, int32_t num_ranks) {
  PlacementTable table;
  std::map<int32_t, std::set<int32_t>> taken;
  // The library's limit: more cannot be meant.
  const int64_t most_copies = int64_t{kMaxCopiesPerRank} * num_ranks;
  const int64_t slot_end = most_copies * num_experts;
  std::vector<int64_t> copies(static_cast<size_t>(num_experts), 0);
  for (const TextLine& line : read_lines("--placement", path)) {
    const std::string where = fmt::format("{}:{}", path, line.number);
    const std::vector<std::string> words = split_words(line.text);
    if (words.size() != 2 && words.size() != 3)
      input_error(fmt::format("{}: '{}' has {} numbers, wanted 'expert rank' or 'expert rank slot'", where, shortened(line.text), words.size()));
    table.expert.push_back(number_in(where, words[0], "expert", num_experts));
    if (++copies[static_cast<size_t>(table.expert.back())] > most_copies)
      input_error(fmt::format("{}: expert {} has more than {} lines; on {} rank{} an expert may have {} copies", where, table.expert.back(),
                              most_copies, num_ranks, num_ranks == 1 ? "" : "s", most_copies));
    table.rank.push_back(number_in(where, words[1], "rank", num_ranks));
    table.slot.push_back(words.size() == 3 ? number_in(where, words[2], "slot", slot_end) : -1);
    if (words.size() == 3 && !taken[table.rank.back()].insert(table.slot.back()).second)
      input_error(fmt::format("{}: slot {} of rank {} is taken by an earlier line", where, table.slot.back(), table.rank.back()));
  }
  fill_free_slots(table, taken);
  check_complete(path, table, taken, num_experts);
  return table;
}

std::vector<int64_t> PlacementTable::experts_per_rank(int32_t num_ranks) const {
  std::vector<int64_t> counts(static_cast<size_t>(num_ranks), 0);
  for (const int32_t holder : rank) ++counts[static_cast<size_t>(holder)];
  return counts;
}

}  // namespace monomoe::cli
