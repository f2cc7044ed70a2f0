// Text files of one item a line: comments after '#' and blank lines are left out, line numbers kept for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace monomoe::cli {

struct TextLine {
  int64_t number;  // from 1
  std::string text;
};

// Refuses directories, more bytes than a list of lines can be meant to have, and a pipe that nothing is written to.
std::vector<TextLine> read_lines(const char* option, const std::string& path);

// Appears whole or not at all; a file of that name stays as it was until then. A link stays, and what it leads to is written.
void write_lines(const std::string& path, std::string_view text);

// The words between spaces, or between separators when one is given (then empty words count).
std::vector<std::string> split_words(std::string_view text);
std::vector<std::string> split_at(std::string_view text, char separator);

// The beginning of a text too long for a sentence.
std::string shortened(std::string_view text);

// A whole word as a decimal number; empty if it is none.
std::optional<int64_t> whole_number(std::string_view word);

}  // namespace monomoe::cli
