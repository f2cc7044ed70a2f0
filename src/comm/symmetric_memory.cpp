#include "comm/symmetric_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/flags.hpp"

namespace monomoe {

Result<PageRegion> PageRegion::create(int64_t bytes) {
  if (bytes < 0) return internal_error(fmt::format("a memory region of {} bytes was asked for", bytes));
  if (bytes == 0) return PageRegion(nullptr, 0);
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return unavailable(fmt::format("cannot reserve {} bytes of address space: {}; lower the capacity or the number of ranks", bytes,
                                   std::strerror(errno)));
  }
  return PageRegion(static_cast<std::byte*>(data), bytes);
}

PageRegion::PageRegion(PageRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PageRegion& PageRegion::operator=(PageRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PageRegion::~PageRegion() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

Result<void> SymmetricMemory::read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const {
  auto* from = reinterpret_cast<uint64_t*>(base(rank) + offset);
  for (size_t i = 0; i < words.size(); ++i) words[i] = look(from[i]);
  return {};
}

Result<void> SymmetricMemory::write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const {
  auto* to = reinterpret_cast<uint64_t*>(base(rank) + offset);
  for (size_t i = 0; i < words.size(); ++i) publish(to[i], words[i]);
  return {};
}

Result<std::unique_ptr<SymmetricMemory>> InProcessMemory::create(int32_t ranks, int64_t bytes) {
  auto memory = std::make_unique<InProcessMemory>();
  memory->bytes_ = bytes;
  memory->regions_.reserve(ranks);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    auto region = PageRegion::create(bytes);
    if (!region) return region.error();
    memory->regions_.push_back(region.take());
  }
  return std::unique_ptr<SymmetricMemory>(std::move(memory));
}

}  // namespace monomoe
