// Memory of equal size and layout on every rank, which every rank can write. In one process that is one mapping per rank;
// pages that are never touched cost nothing, so workspaces may be sized for the worst case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  virtual std::byte* base(int32_t rank) const = 0;
  virtual int64_t bytes() const = 0;  // of one rank
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

}  // namespace monomoe
