#include "cpu/executor_workspace.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "comm/error_record.hpp"
#include "plan/tiles.h"

namespace monomoe::cpu {
namespace {

template <class T>
T* at(std::byte* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

}  // namespace

CpuWorkspace::CpuWorkspace(const Problem& problem, int64_t max_slots, int32_t first_rank, int32_t end_rank)
    : problem_(problem),
      max_slots_(max_slots),
      symmetric_layout_(symmetric_layout(problem)),
      local_layout_(workspace_layout(problem, max_slots, kTokenBlock)),
      first_rank_(first_rank),
      end_rank_(end_rank),
      ranks_(problem.ranks) {}

Result<void> CpuWorkspace::make_local() {
  for (int32_t rank = 0; rank < static_cast<int32_t>(problem_.ranks); ++rank) {
    auto local = PageRegion::create(holds(rank) ? local_layout_.bytes : 0);
    if (!local) return local.error();
    local_.push_back(local.take());
  }
  return {};
}

Result<std::unique_ptr<CpuWorkspace>> CpuWorkspace::create(const Problem& problem, int64_t max_slots) {
  const int32_t ranks = static_cast<int32_t>(problem.ranks);
  std::unique_ptr<CpuWorkspace> workspace(new CpuWorkspace(problem, max_slots, 0, ranks));
  auto symmetric = InProcessMemory::create(ranks, workspace->symmetric_layout_.bytes);
  if (!symmetric) return symmetric.error();
  workspace->symmetric_ = symmetric.take();
  if (auto local = workspace->make_local(); !local) return local.error();
  return workspace;
}

Result<std::unique_ptr<CpuWorkspace>> CpuWorkspace::create(const Problem& problem, int64_t max_slots, const WorldRank& world) {
  std::unique_ptr<CpuWorkspace> workspace(new CpuWorkspace(problem, max_slots, world.rank, world.rank + 1));
  workspace->symmetric_ = std::make_unique<ExternalMemory>(world.peers, workspace->symmetric_layout_.bytes);
  if (auto local = workspace->make_local(); !local) {
    tell_failure(*workspace->symmetric_, problem, world);
    return local.error();
  }
  if (auto agreed = exchange_fingerprints(*workspace->symmetric_, problem, WorldBackend::kCpu, world); !agreed) return agreed.error();
  return workspace;
}

SymmetricView CpuWorkspace::symmetric_view(int32_t rank) const {
  std::byte* base = symmetric_->base(rank);
  const SymmetricLayout& offsets = symmetric_layout_;
  return {at<SymmetricFlags>(base, offsets.flags), at<uint32_t>(base, offsets.arrivals),   at<int32_t>(base, offsets.route_ids),
          at<float>(base, offsets.route_weights),  at<float>(base, offsets.row_scales),    at<uint8_t>(base, offsets.row_codes),
          at<uint16_t>(base, offsets.contributions)};
}

LocalView CpuWorkspace::local_view(int32_t rank) const {
  std::byte* base = local_[rank].data();
  const WorkspaceLayout& offsets = local_layout_;
  return {at<LocalFlags>(base, offsets.flags),    at<float>(base, offsets.own_scales),    at<uint8_t>(base, offsets.own_codes),
          at<int64_t>(base, offsets.expert_begin), at<int64_t>(base, offsets.block_begin), at<uint32_t>(base, offsets.block_done),
          at<Route>(base, offsets.routes),        at<float>(base, offsets.mid_scales),    at<uint8_t>(base, offsets.mid_codes)};
}

std::string CpuWorkspace::poison_cause(int32_t rank) const {
  SymmetricFlags& flags = *symmetric_view(rank).flags;
  return has_record(flags) ? to_sentence(read_record(flags)) : std::string();
}

void CpuWorkspace::poison_bytes(uint8_t byte) {
  const SymmetricLayout& symmetric = symmetric_layout_;
  const WorkspaceLayout& local = local_layout_;
  for (int32_t rank = first_rank_; rank < end_rank_; ++rank) {
    std::memset(symmetric_->base(rank) + symmetric.route_ids, byte, symmetric.bytes - symmetric.route_ids);
    std::memset(local_[rank].data() + local.own_scales, byte, local.bytes - local.own_scales);
  }
}

std::byte* CpuWorkspace::scratch(int32_t rank, int32_t worker, int64_t bytes) {
  std::vector<Scratch>& workers = ranks_[rank].scratch;
  if (static_cast<size_t>(worker) >= workers.size()) workers.resize(worker + 1);
  Scratch& scratch = workers[worker];
  if (scratch.bytes < bytes) {
    scratch.data.reset();
    scratch.bytes = 0;
    scratch.data.reset(static_cast<std::byte*>(std::aligned_alloc(64, round_up(bytes, 64))));
    if (scratch.data != nullptr) scratch.bytes = bytes;
  }
  return scratch.data.get();
}

void CpuWorkspace::Free::operator()(std::byte* data) const { std::free(data); }

}  // namespace monomoe::cpu
