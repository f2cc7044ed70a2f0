// Parsing of case lines: key=value words, every key once.
#include "reference/case_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "plan/problem_text.hpp"

namespace monomoe {

namespace {

using Words = std::map<std::string_view, std::string_view>;

constexpr std::string_view kKeys[] = {"ranks", "experts",  "topk",  "tokens", "hidden", "inter",    "w",
                                      "seed",  "capacity", "limit", "dist",   "rows",   "placement"};
constexpr std::string_view kDistributions[] = {"uniform", "zipf", "one", "masked"};
constexpr std::string_view kPlacements[] = {"even", "random", "redundant"};

template <class List>
std::string join(const List& items, std::string_view between) {
  std::string text;
  for (const auto& item : items) text += fmt::format("{}{}", text.empty() ? "" : between, item);
  return text;
}

Result<Words> split(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  Words words;
  for (size_t begin = line.find_first_not_of(kBlank); begin != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlank, begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    if (equals == std::string_view::npos) return usage_error(fmt::format("\"{}\" is not key=value", word));
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      return usage_error(fmt::format("unknown key \"{}\"; the keys are {}", key, join(kKeys, ", ")));
    }
    if (!words.emplace(key, word.substr(equals + 1)).second) return usage_error(fmt::format("key \"{}\" is given twice", key));
    begin = line.find_first_not_of(kBlank, end);
  }
  return words;
}

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

// Leaves `value` alone where the key is absent.
template <class T>
Result<void> take_number(const Words& words, std::string_view key, T& value) {
  const auto found = words.find(key);
  if (found == words.end() || (read_number(found->second, value) && value >= 0)) return {};
  return usage_error(fmt::format("{}={}: wanted a whole number from 0", key, found->second));
}

template <class Enum, size_t kCount>
Result<void> take_name(const Words& words, std::string_view key, const std::string_view (&names)[kCount], Enum& value) {
  const auto found = words.find(key);
  if (found == words.end()) return {};
  const auto name = std::find(std::begin(names), std::end(names), found->second);
  if (name == std::end(names)) return usage_error(fmt::format("{}={}: wanted {}", key, found->second, join(names, ", ")));
  value = static_cast<Enum>(name - std::begin(names));
  return {};
}

Result<void> take_limit(const Words& words, float& limit) {
  const auto found = words.find("limit");
  if (found == words.end() || found->second == "none") return {};
  float value = 0;
  if (!read_number(found->second, value) || !(value > 0)) {
    return usage_error(fmt::format("limit={}: wanted \"none\" or a number above 0", found->second));
  }
  limit = value;
  return {};
}

// rows=a+b+c gives the tokens of each rank; without it they are as even as possible, the first ranks one more.
Result<void> take_rows(const Words& words, Case& c) {
  const auto found = words.find("rows");
  if (found == words.end()) {
    for (int64_t rank = 0; rank < c.problem.ranks; ++rank) {
      c.rows.push_back(c.tokens / c.problem.ranks + (rank < c.tokens % c.problem.ranks ? 1 : 0));
    }
    return {};
  }
  for (std::string_view rest = found->second;;) {
    const size_t plus = rest.find('+');
    int64_t count = -1;
    if (!read_number(rest.substr(0, plus), count) || count < 0) {
      return usage_error(fmt::format("rows={}: \"{}\" is not a number of tokens", found->second, rest.substr(0, plus)));
    }
    c.rows.push_back(count);
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  if (static_cast<int64_t>(c.rows.size()) != c.problem.ranks) {
    return usage_error(fmt::format("rows={}: {} numbers for ranks={}", found->second, c.rows.size(), c.problem.ranks));
  }
  const int64_t sum = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
  if (words.contains("tokens") && sum != c.tokens) {
    return usage_error(fmt::format("rows={}: they sum to {}, but tokens={}", found->second, sum, c.tokens));
  }
  c.tokens = sum;
  return {};
}

Result<void> take_capacity(const Words& words, Case& c) {
  const auto largest = std::max_element(c.rows.begin(), c.rows.end());
  c.problem.capacity = *largest;
  if (auto taken = take_number(words, "capacity", c.problem.capacity); !taken) return taken;
  if (c.problem.capacity >= *largest) return {};
  return usage_error(fmt::format("capacity={}: rank {} has {} tokens", c.problem.capacity, largest - c.rows.begin(), *largest));
}

Result<void> check_required(const Words& words) {
  for (std::string_view key : {"experts", "topk", "hidden", "inter", "w"}) {
    if (!words.contains(key)) return usage_error(fmt::format("key \"{}\" is missing", key));
  }
  if (words.contains("tokens") || words.contains("rows")) return {};
  return usage_error("key \"tokens\" (or \"rows\") is missing");
}

Result<void> take_sizes(const Words& words, Case& c) {
  Problem& p = c.problem;
  const std::pair<std::string_view, int64_t*> numbers[] = {{"ranks", &p.ranks},   {"experts", &p.experts},     {"topk", &p.topk},
                                                           {"hidden", &p.hidden}, {"inter", &p.intermediate}, {"tokens", &c.tokens}};
  for (const auto& [key, value] : numbers) {
    if (auto taken = take_number(words, key, *value); !taken) return taken;
  }
  if (auto taken = take_number(words, "seed", c.seed); !taken) return taken;
  const std::string_view format = words.at("w");
  const auto parsed = weight_format_from_text(format);
  if (!parsed || *parsed == WeightFormat::kBf16) return usage_error(fmt::format("w={}: wanted fp8, nvfp4 or mxfp4", format));
  p.weights = *parsed;
  return check(p);
}

}  // namespace

Result<Case> parse_case(std::string_view line) {
  auto words = split(line);
  if (!words) return words.error();
  Case c;
  const Words& w = words.value();
  if (auto ok = check_required(w); !ok) return ok.error();
  if (auto ok = take_sizes(w, c); !ok) return ok.error();
  if (auto ok = take_rows(w, c); !ok) return ok.error();
  if (auto ok = take_capacity(w, c); !ok) return ok.error();
  if (auto ok = take_limit(w, c.limit); !ok) return ok.error();
  if (auto ok = take_name(w, "dist", kDistributions, c.distribution); !ok) return ok.error();
  if (auto ok = take_name(w, "placement", kPlacements, c.placement); !ok) return ok.error();
  if (auto ok = check(c.problem); !ok) return ok.error();
  return c;
}

std::string case_text(const Case& c) {
  const Problem& p = c.problem;
  const std::string limit = std::isinf(c.limit) ? "none" : fmt::format("{}", c.limit);
  return fmt::format("ranks={} experts={} topk={} tokens={} hidden={} inter={} w={} seed={} capacity={} limit={} dist={} rows={} placement={}",
                     p.ranks, p.experts, p.topk, c.tokens, p.hidden, p.intermediate, weight_format_text(p.weights), c.seed, p.capacity,
                     limit, kDistributions[static_cast<int>(c.distribution)], join(c.rows, "+"),
                     kPlacements[static_cast<int>(c.placement)]);
}

Result<std::vector<ListedCase>> parse_cases(std::string_view text, std::string_view name) {
  std::vector<ListedCase> cases;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    auto parsed = parse_case(line);
    if (!parsed) return bad_input(fmt::format("{}, line {}: {}", name, number, parsed.error().message));
    cases.push_back({std::string(line), number, parsed.take()});
  }
  if (cases.empty()) return bad_input(fmt::format("{}: no case in it", name));
  return cases;
}

Result<std::vector<ListedCase>> read_case_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return bad_input(fmt::format("{}: the case file cannot be opened", path));
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.bad()) return bad_input(fmt::format("{}: the case file cannot be read", path));
  return parse_cases(text.str(), path);
}

}  // namespace monomoe
