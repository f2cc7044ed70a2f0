// What can be known to fail at the end fails at the beginning.
#include "layer/output_target.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/partial_name.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {

namespace fs = std::filesystem;

Result<fs::path> usable_target(const fs::path& wanted) {
  std::error_code code;
  const std::string name = printable(wanted.string());
  if (fs::is_symlink(wanted, code) && !fs::exists(wanted, code))
    return usage_error(fmt::format("{} is a link to nothing; choose another name or remove it", name));
  if (!fs::exists(wanted, code)) return wanted;
  if (!fs::is_directory(wanted, code))
    return usage_error(fmt::format("{} exists and is no directory; choose another name or remove it", name));
  const bool empty = fs::is_empty(wanted, code);
  if (code) return bad_input(fmt::format("cannot read the directory {}: {}", name, code.message()));
  if (!empty) return usage_error(fmt::format("{} exists and is not an empty directory; choose another name or remove it", name));
  if (fs::equivalent(wanted, ".", code))
    return usage_error(fmt::format("{} is the current directory, which cannot be replaced; go elsewhere or choose another name", name));
  const fs::path real = fs::canonical(wanted, code);
  if (code) return bad_input(fmt::format("cannot follow {}: {}", name, code.message()));
  return real;
}

Result<void> check_space(const fs::path& directory, uint64_t wanted, std::string_view remedy) {
  std::error_code code;
  const fs::space_info space = fs::space(directory, code);
  if (!code && space.available < wanted) {
    return unavailable(fmt::format("the disk of {} has {} bytes free, the checkpoint needs {}; free some, or {}",
                                   printable(directory.string()), space.available, wanted, remedy));
  }
  return {};
}

Result<void> write_text(const std::string& path, std::string_view text) {
  const std::string partial = partial_name(path);
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  bool good = fd >= 0;
  for (size_t done = 0; good && done < text.size();) {
    const ssize_t count = ::write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    good = count >= 0;
    if (good) done += static_cast<size_t>(count);
  }
  good = good && ::fsync(fd) == 0 && std::rename(partial.c_str(), path.c_str()) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (good) return {};
  if (fd >= 0) ::unlink(partial.c_str());
  return bad_input(fmt::format("cannot write {}: {}", printable(path), std::strerror(reason)));
}

void sync_directory(const fs::path& directory) {
  const int fd = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace monomoe::layer
