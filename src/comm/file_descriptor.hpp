// An open file that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace monomoe {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int file) : file_(file) {}
  FileDescriptor(FileDescriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~FileDescriptor() {
    if (file_ >= 0) ::close(file_);
  }

  int get() const { return file_; }
  bool is_open() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

}  // namespace monomoe
