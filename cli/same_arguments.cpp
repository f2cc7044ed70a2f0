// Ranks that a launcher started one by one must compute the same layer of the same tokens: what each was given is compared before anything is read.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "failure.hpp"
#include "layer_run.hpp"

namespace monomoe::cli {
namespace {

constexpr size_t kMostText = 4096;  // of all settings; what is longer is compared up to here

// One file has one name here. Pipes and the like are each process's own, and cannot be compared.
std::string file_given(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(path, failed);
  if (failed) return path;
  return std::filesystem::is_regular_file(real, failed) || std::filesystem::is_directory(real, failed) ? real.string() : "a pipe";
}

std::string or_default(const std::string& word) { return word.empty() ? "not given" : word; }

std::string settings(const LayerOptions& options) {
  const std::pair<const char*, std::string> all[] = {{"the checkpoint", file_given(options.directory)},
                                                     {"--layer", std::to_string(options.layer)},
                                                     {"--input", file_given(options.input)},
                                                     {"--tokens-per-rank", or_default(options.tokens_per_rank)},
                                                     {"--placement", options.placement.empty() ? "not given" : file_given(options.placement)},
                                                     {"--shared-expert", options.shared_expert},
                                                     {"--swiglu-limit", or_default(options.swiglu_limit_word)},
                                                     {"--launch", options.context.launch}};
  std::string text;
  for (const auto& [name, value] : all) text += fmt::format("{}\t{}\n", name, value);
  return text;
}

}  // namespace

void require_same_arguments(const RankWorld& world, const LayerOptions& options) {
  using Text = std::array<char, kMostText>;
  Text own = {};
  const std::string text = settings(options);
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
