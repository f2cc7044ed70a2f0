// open, fstat, mmap; every failure says which of them, the path and the system's reason.
#include "weights/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "weights/text.hpp"

namespace monomoe {
namespace {

Error read_error(std::string_view action, const std::string& path) {
  return bad_input(fmt::format("cannot {} {}: {}", action, printable(path), std::strerror(errno)));
}

int64_t modified_ns(const struct stat& info) { return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec; }

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer; it is refused below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return read_error("open", path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    Error error = read_error("examine", path);
    ::close(fd);
    return error;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return bad_input(fmt::format("{} is not a regular file (a directory, device or pipe); wanted one that can be mapped", printable(path)));
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  file.device_ = info.st_dev;
  file.inode_ = info.st_ino;
  file.modified_ns_ = modified_ns(info);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      Error error = read_error("map", path);
      ::close(fd);
      file.size_ = 0;
      return error;
    }
    file.data_ = static_cast<const uint8_t*>(data);
  }
  ::close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      modified_ns_(other.modified_ns_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(modified_ns_, other.modified_ns_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string MappedFile::changed() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) return {};
  if (static_cast<size_t>(info.st_size) != size_) return fmt::format("had {} bytes when it was opened and has {} now", size_, info.st_size);
  return modified_ns(info) == modified_ns_ ? std::string() : "was written to while it was read";
}

void release_mapped(const uint8_t* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + bytes;
  if (bytes != 0) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // advice: a refusal costs memory only
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

}  // namespace monomoe
