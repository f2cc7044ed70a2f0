// Host memory that processes share: an anonymous file, mapped by every rank.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/shareable_memory.hpp"

namespace monomoe {
namespace {

struct Mapping {
  void* data = nullptr;
  size_t bytes = 0;
};

Result<Mapping> map_file(int file, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (data != MAP_FAILED) return Mapping{data, static_cast<size_t>(bytes)};
  return unavailable(fmt::format("cannot map {} bytes of shared memory: {}; lower the capacity or the number of ranks", bytes, std::strerror(errno)));
}

class SharedPages final : public ShareableMemory {
 public:
  SharedPages(FileDescriptor file, Mapping own) : file_(std::move(file)), own_(own) {}
  ~SharedPages() override {
    unmap_peers();
    munmap(own_.data, own_.bytes);
  }

  void* own() const override { return own_.data; }
  Result<ExportedMemory> export_own() override {
    ExportedMemory exported;
    exported.bytes = static_cast<int64_t>(own_.bytes);
    exported.file = FileDescriptor(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    if (exported.file.is_open()) return exported;
    return unavailable(fmt::format("an open file cannot be copied: {}; raise the limit of open files (ulimit -n)", std::strerror(errno)));
  }
  Result<void*> map(const ExportedMemory& theirs) override {
    auto mapped = map_file(theirs.file.get(), theirs.bytes);
    if (!mapped) return mapped.error();
    peers_.push_back(mapped.value());
    return mapped.value().data;
  }
  void unmap_peers() override {
    for (const Mapping& peer : peers_) munmap(peer.data, peer.bytes);
    peers_.clear();
  }
  bool outlives_owner() const override { return true; }

 private:
  FileDescriptor file_;
  Mapping own_;
  std::vector<Mapping> peers_;
};

}  // namespace

Result<std::unique_ptr<ShareableMemory>> make_shared_pages(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE), room = (std::max<int64_t>(bytes, 1) + page - 1) / page * page;
  FileDescriptor file(memfd_create("monomoe", MFD_CLOEXEC));
  if (!file.is_open() || ftruncate(file.get(), room) != 0)
    return unavailable(fmt::format("{} bytes of shared memory cannot be had: {}; lower the capacity or the number of ranks", room, std::strerror(errno)));
  auto own = map_file(file.get(), room);
  if (!own) return own.error();
  return std::unique_ptr<ShareableMemory>(std::make_unique<SharedPages>(std::move(file), own.value()));
}

}  // namespace monomoe
