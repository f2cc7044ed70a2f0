// Message building blocks; see the header.
#include "weights/text.hpp"

#include <fmt/format.h>

#include <iterator>

namespace monomoe {

std::string printable(std::string_view name) {
  constexpr size_t kKeep = 120;
  std::string out;
  auto append = [&out](std::string_view part) {
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte > 0x7E || c == '\\' || c == '"') {
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
      } else {
        out.push_back(c);
      }
    }
  };
  if (name.size() <= 2 * kKeep) {
    append(name);
  } else {
    append(name.substr(0, kKeep));
    fmt::format_to(std::back_inserter(out), "...({} bytes)...", name.size() - 2 * kKeep);
    append(name.substr(name.size() - kKeep));
  }
  return out;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ", ", shape[i]);
  out.push_back(']');
  return out;
}

std::string ranges_text(std::span<const int64_t> numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    out += out.empty() ? "" : ", ";
    out += last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}..{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return out;
}

void ProblemList::add(std::string sentence) {
  ++count_;
  if (kept_.size() < limit_) kept_.push_back(prefix_ + sentence);
}

void ProblemList::add_lines(std::string_view text) {
  constexpr std::string_view kBetween = "\n  ";
  while (true) {
    const size_t end = text.find(kBetween);
    ++count_;
    if (kept_.size() < limit_) kept_.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + kBetween.size());
  }
}

void ProblemList::add_all(const ProblemList& other) {
  for (const std::string& sentence : other.kept_) {
    if (kept_.size() < limit_) kept_.push_back(sentence);
  }
  count_ += other.count_;
}

std::string ProblemList::text(std::string_view separator) const {
  std::string out;
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (i != 0) out += separator;
    out += kept_[i];
  }
  const int64_t more = count_ - static_cast<int64_t>(kept_.size());
  if (more > 0) fmt::format_to(std::back_inserter(out), "{}and {} more", separator, more);
  return out;
}

}  // namespace monomoe
