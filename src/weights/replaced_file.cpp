#include "weights/replaced_file.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "weights/text.hpp"

namespace monomoe {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as many as the system follows

bool is_of_the_system(const fs::path& path) {
  std::error_code ignored;
  const std::string folder = fs::weakly_canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored).string() + "/";
  constexpr std::string_view kMemory = "/dev/shm/";
  return folder.starts_with("/proc/") || (folder.starts_with("/dev/") && !folder.starts_with(kMemory));
}

}  // namespace

Result<std::string> replaced_file(const std::string& path) {
  std::error_code code;
  fs::path at = path;
  for (int links = 0; fs::is_symlink(at, code); ++links) {
    if (is_of_the_system(at)) return usage_error(fmt::format("{} leads to {}, a link of the system; name a file", printable(path), printable(at.string())));
    const fs::path target = fs::read_symlink(at, code);
    if (code || links == kMostLinks) return usage_error(fmt::format("{} is a link that leads nowhere; choose another name or remove it", printable(path)));
    at = target.is_absolute() ? target : at.parent_path() / target;
    if (fs::is_symlink(at, code)) continue;
    if (!fs::exists(at, code)) return usage_error(fmt::format("{} is a link to nothing; choose another name or remove it", printable(path)));
  }
  return at.string();
}

}  // namespace monomoe
