// The text form of a placement: one copy of an expert a line.
#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <map>
#include <sstream>

#include "plan/placement_table.hpp"

namespace monomoe {

namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<std::string_view> words;
  for (size_t begin = line.find_first_not_of(kBlank); begin != std::string_view::npos;) {
    const size_t end = line.find_first_of(kBlank, begin);
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(kBlank, end);
  }
  return words;
}

}  // namespace

Result<std::vector<PlacementEntry>> parse_placement(std::string_view text, std::string_view name) {
  std::vector<PlacementEntry> entries;
  std::map<int32_t, int32_t> next_slot;  // by rank
  size_t form = 0;                       // numbers a line of this file has, once known
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    ++line_number;
    const auto words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    if (words.size() != 2 && words.size() != 3) {
      return bad_input(fmt::format("{}, line {}: {} words; wanted \"expert rank\" or \"expert rank slot\"", name, line_number, words.size()));
    }
    if (form != 0 && form != words.size()) {
      return bad_input(fmt::format("{}, line {}: {} numbers where the lines before have {}; give the slot on every line or on none", name,
                                   line_number, words.size(), form));
    }
    form = words.size();
    int32_t numbers[3] = {};
    for (size_t i = 0; i < words.size(); ++i) {
      const char* end = words[i].data() + words[i].size();
      const auto parsed = std::from_chars(words[i].data(), end, numbers[i]);
      if (parsed.ec != std::errc() || parsed.ptr != end || numbers[i] < 0) {
        constexpr const char* kMeaning[] = {"expert", "rank", "slot"};
        return bad_input(fmt::format("{}, line {}: {} \"{}\" is not a number from 0 to {}", name, line_number, kMeaning[i], words[i], INT32_MAX));
      }
    }
    const int32_t slot = form == 3 ? numbers[2] : next_slot[numbers[1]]++;
    entries.push_back({numbers[0], numbers[1], slot});
  }
  if (entries.empty()) return bad_input(fmt::format("{}: no placement in it; wanted lines \"expert rank\" or \"expert rank slot\"", name));
  return entries;
}

Result<std::vector<PlacementEntry>> read_placement_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return bad_input(fmt::format("{}: the placement file cannot be opened", path));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.bad()) return bad_input(fmt::format("{}: the placement file cannot be read", path));
  return parse_placement(text.str(), path);
}

}  // namespace monomoe
