// Ranks that a launcher started one by one must compute the same: what each was given is compared before anything is read.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "failure.hpp"
#include "processes.hpp"

namespace monomoe::cli {
namespace {

constexpr size_t kMostText = 4096;  // of all settings; what is longer is compared up to here

}  // namespace

std::string file_given(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(path, failed);
  if (failed) return path;
  return std::filesystem::is_regular_file(real, failed) || std::filesystem::is_directory(real, failed) ? real.string() : "a pipe";
}

void require_same_arguments(const RankWorld& world, const Settings& settings) {
  using Text = std::array<char, kMostText>;
  Text own = {};
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}\t{}\n", name, value);
  std::memcpy(own.data(), text.data(), std::min(text.size(), own.size() - 1));
  const std::vector<Text> all = world.gather(own);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    std::istringstream first(all[0].data()), other(all[rank].data());
    for (std::string a, b; std::getline(first, a) && std::getline(other, b);) {
      if (a == b) continue;
      const size_t tab = a.find('\t');
      usage_error(fmt::format("{} is {} on rank 0 and {} on rank {}; give every rank the same", a.substr(0, tab), a.substr(tab + 1),
                              b.substr(std::min(b.size(), tab + 1)), rank));
    }
  }
}

}  // namespace monomoe::cli
