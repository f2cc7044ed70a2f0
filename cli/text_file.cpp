// Lines, words and numbers of small text files.
#include "text_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "failure.hpp"

namespace monomoe::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

std::vector<TextLine> read_lines(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) input_error(fmt::format("{}: is a directory, wanted a text file", path));
  errno = 0;
  std::ifstream file(path);
  if (!file) input_error(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<TextLine> lines;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const std::string_view text = trim(std::string_view(line).substr(0, line.find('#')));
    if (!text.empty()) lines.push_back({number, std::string(text)});
  }
  if (file.bad()) input_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return lines;
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = text.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kBlanks, end);
  }
  return words;
}

std::vector<std::string> split_at(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    words.emplace_back(trim(text.substr(begin, end == std::string_view::npos ? end : end - begin)));
    if (end == std::string_view::npos) return words;
    begin = end + 1;
  }
}

std::optional<int64_t> whole_number(std::string_view word) {
  int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace monomoe::cli
