// Ranks that a launcher started one by one must compute the same: what each was given is compared before anything is read.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "failure.hpp"
#include "processes.hpp"

namespace monomoe::cli {
namespace {

constexpr size_t kPiece = 4096;  // of a text, in one exchange
constexpr size_t kMostSaid = 200;  // of a value, in a sentence

// Every rank's text, whatever their lengths.
std::vector<std::string> all_texts(const RankWorld& world, const std::string& own) {
  using Piece = std::array<char, kPiece>;
  const std::vector<size_t> sizes = world.gather(own.size());
  std::vector<std::string> texts(sizes.size());
  for (size_t begin = 0; begin < std::ranges::max(sizes); begin += kPiece) {
    Piece piece = {};
    if (begin < own.size()) own.copy(piece.data(), piece.size(), begin);
    const std::vector<Piece> pieces = world.gather(piece);
    for (size_t rank = 0; rank < texts.size(); ++rank)
      texts[rank].append(pieces[rank].data(), std::min(kPiece, sizes[rank] - std::min(sizes[rank], begin)));
  }
  return texts;
}

// A long value begins shortly before the place where it differs from the other.
std::string said(const std::string& value, size_t differs) {
  const size_t begin = value.size() <= kMostSaid ? 0 : differs - std::min(differs, kMostSaid / 2);
  return (begin == 0 ? "" : "..") + value.substr(begin, kMostSaid) + (value.size() > begin + kMostSaid ? ".." : "");
}

}  // namespace

std::string file_given(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(path, failed);
  if (failed) return path;
  return std::filesystem::is_regular_file(real, failed) || std::filesystem::is_directory(real, failed) ? real.string() : "a pipe";
}

void require_same_arguments(const RankWorld& world, const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}\t{}\n", name, value);
  const std::vector<std::string> all = all_texts(world, text);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream first(all[0]), other(all[rank]);
    for (std::string a, b; std::getline(first, a) && std::getline(other, b);) {
      if (a == b) continue;
      const size_t tab = a.find('\t'), value = tab + 1;
      const std::string here = a.substr(value), there = b.substr(std::min(b.size(), value));
      const auto differs = static_cast<size_t>(std::ranges::mismatch(here, there).in1 - here.begin());
      usage_error(fmt::format("{} is {} on rank 0 and {} on rank {}; give every rank the same", a.substr(0, tab), said(here, differs), said(there, differs), rank));
    }
  }
}

}  // namespace monomoe::cli
