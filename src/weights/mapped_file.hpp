// A regular file mapped read-only. If another process cuts the file while it is mapped, reading the lost part raises
// SIGBUS; the library installs no handler, a program that wants more than the end of its process does (include/monomoe/checkpoint.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.hpp"

namespace monomoe {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  // Empty, or how the file at the path was written to since it was opened. A file that was replaced by another (renamed over) was not:
  // the map keeps the old one.
  std::string changed() const;

 private:
  MappedFile() = default;
  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  int64_t modified_ns_ = 0;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Gives back the memory that reading these bytes of a mapped file took; they are read from the file again when they are needed.
void release_mapped(const uint8_t* data, size_t bytes);

}  // namespace monomoe
