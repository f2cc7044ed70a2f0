// The memory of this process's ranks for calls of up to `capacity` tokens a rank: symmetric regions, own regions, each rank's epoch and
// its workers' scratch. One workspace serves several layers: regions are placed for the largest, strides come from the layer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "comm/fingerprint.hpp"
#include "comm/symmetric_memory.hpp"
#include "plan/flags.h"
#include "plan/memory_layout.h"
#include "plan/problem.h"

namespace monomoe::cpu {

// Tokens of one GEMM task: the most that one call of the kernels takes.
inline constexpr int64_t kTokenBlock = 256;

// Typed pointers into one rank's symmetric memory.
struct SymmetricView {
  SymmetricFlags* flags;
  uint32_t* arrivals;
  int32_t* route_ids;
  float* route_weights;
  float* row_scales;
  uint8_t* row_codes;
  uint16_t* contributions;
};

// Typed pointers into one rank's own memory.
struct LocalView {
  LocalFlags* flags;
  float* own_scales;
  uint8_t* own_codes;
  int64_t* expert_begin;
  int64_t* block_begin;
  uint32_t* block_done;
  Route* routes;
  float* mid_scales;
  uint8_t* mid_codes;
};

class CpuWorkspace {
 public:
  // The problem of the largest layer: hidden and topk are those of all layers, intermediate the largest; slots: the largest number
  // of experts one rank holds.
  static Result<std::unique_ptr<CpuWorkspace>> create(const Problem& problem, int64_t max_slots);
  // That of one rank of a world, whose symmetric memory comes from outside. Collective: returns when all ranks have made theirs and agree.
  static Result<std::unique_ptr<CpuWorkspace>> create(const Problem& problem, int64_t max_slots, const WorldRank& world);

  const Problem& problem() const { return problem_; }
  int64_t max_slots() const { return max_slots_; }
  const SymmetricMemory& symmetric() const { return *symmetric_; }
  const SymmetricLayout& symmetric_offsets() const { return symmetric_layout_; }
  const WorkspaceLayout& local_offsets() const { return local_layout_; }
  SymmetricView symmetric_view(int32_t rank) const;
  LocalView local_view(int32_t rank) const;

  // The sentence of the failure that made this workspace useless, "" while it is fine.
  std::string poison_cause(int32_t rank) const;
  bool poisoned() const { return !poison_cause(first_rank_).empty(); }
  // Ranks whose memory is this workspace's: all, or the one of a world.
  int32_t first_rank() const { return first_rank_; }
  bool holds(int32_t rank) const { return rank >= first_rank_ && rank < end_rank_; }

  // Fills every region except flags and arrivals: results must not depend on it. Not during a call.
  void poison_bytes(uint8_t byte);

  // Scratch of one worker, aligned for the widest vectors; null if there is no memory. Kept for later calls.
  std::byte* scratch(int32_t rank, int32_t worker, int64_t bytes);

  // Used by run_rank, for its own rank.
  uint64_t begin_epoch(int32_t rank) { return ++ranks_[rank].epoch; }
  uint64_t epoch(int32_t rank) const { return ranks_[rank].epoch; }
  bool enter(int32_t rank) { return !ranks_[rank].busy.exchange(true, std::memory_order_acquire); }
  void leave(int32_t rank) { ranks_[rank].busy.store(false, std::memory_order_release); }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Scratch {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
  };
  struct Rank {
    uint64_t epoch = 0;
    std::atomic<bool> busy{false};
    std::vector<Scratch> scratch;  // per worker
  };

  CpuWorkspace(const Problem& problem, int64_t max_slots, int32_t first_rank, int32_t end_rank);
  Result<void> make_local();

  Problem problem_;
  int64_t max_slots_;
  SymmetricLayout symmetric_layout_;
  WorkspaceLayout local_layout_;
  int32_t first_rank_, end_rank_;
  std::unique_ptr<SymmetricMemory> symmetric_;
  std::vector<PageRegion> local_;  // [ranks]; empty for ranks elsewhere
  std::vector<Rank> ranks_;
};

}  // namespace monomoe::cpu
