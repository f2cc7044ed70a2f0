// What every command that writes a directory checks and does: is the name usable, is there room, and texts that are on disk when told so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace monomoe::layer {

// The directory that `wanted` will become: it must be absent, or empty and not the current one; a link to an empty directory stands for
// that directory.
Result<std::filesystem::path> usable_target(const std::filesystem::path& wanted);

// Whether the disk of `directory` has `wanted` bytes free; `remedy` ends the sentence that says no.
Result<void> check_space(const std::filesystem::path& directory, uint64_t wanted, std::string_view remedy);

// A new file, whole and synced; an older one of that name is replaced.
Result<void> write_text(const std::string& path, std::string_view text);

// The directory's own entries to disk. A file system that cannot is no error.
void sync_directory(const std::filesystem::path& directory);

}  // namespace monomoe::layer
