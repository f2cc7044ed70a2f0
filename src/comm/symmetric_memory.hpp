// Memory of equal size and layout on every rank, which every rank can write: this process's own (one mapping a rank; pages that are never
// touched cost nothing, so workspaces may be sized for the worst case), or handed in from outside as a table of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"

namespace monomoe {

// An anonymous mapping of zero pages, 64-bit sized; unmapped by its owner.
class PageRegion {
 public:
  static Result<PageRegion> create(int64_t bytes);
  PageRegion(PageRegion&& other) noexcept;
  PageRegion& operator=(PageRegion&& other) noexcept;
  ~PageRegion();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  PageRegion(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  int64_t bytes_;
};

class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  virtual int32_t num_ranks() const = 0;
  // Where the rank's memory is for the code that executes the plan: an address of this process, or of its GPU.
  virtual std::byte* base(int32_t rank) const = 0;
  virtual int64_t bytes() const = 0;  // of one rank
  // Words of a rank's memory as the host reads and writes them, outside of calls: each with acquire or release order.
  virtual Result<void> read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const;
  virtual Result<void> write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const;
};

class InProcessMemory final : public SymmetricMemory {
 public:
  static Result<std::unique_ptr<SymmetricMemory>> create(int32_t ranks, int64_t bytes);

  int32_t num_ranks() const override { return static_cast<int32_t>(regions_.size()); }
  std::byte* base(int32_t rank) const override { return regions_[rank].data(); }
  int64_t bytes() const override { return bytes_; }

 private:
  std::vector<PageRegion> regions_;
  int64_t bytes_ = 0;
};

// The caller's memory, peers[rank]; it outlives this.
class ExternalMemory : public SymmetricMemory {
 public:
  ExternalMemory(std::span<void* const> peers, int64_t bytes) : peers_(peers.begin(), peers.end()), bytes_(bytes) {}

  int32_t num_ranks() const override { return static_cast<int32_t>(peers_.size()); }
  std::byte* base(int32_t rank) const override { return static_cast<std::byte*>(peers_[rank]); }
  int64_t bytes() const override { return bytes_; }

 private:
  std::vector<void*> peers_;
  int64_t bytes_;
};

}  // namespace monomoe
