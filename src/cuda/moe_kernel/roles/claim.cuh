// Role: claim - a warp of the moving warpgroup (warp 0). It runs a task ahead of the others, and arranges rows while it waits.
// Waits on:  queue_empty (weights, gather, publish, math, side), written (math, side), routes_ready (routes task, gpu scope), block_done (publish), arrived (all ranks)
// Signals:   queue_full, block_arranged
// Reads:     route lists, expert headers, token rows       Writes: smem.queue, arranged rows
// Ends when: the tickets and the pieces are exhausted, or the rank is aborted; an end task tells the other roles.
#pragma once

#include "cuda/moe_kernel/roles/arrange.cuh"
#include "cuda/moe_kernel/roles/sources.cuh"

namespace monomoe::cuda {

// Until the route lists are there; the word that says how many blocks they have.
__device__ __forceinline__ bool await_routes(const Params& params, uint64_t epoch, uint64_t& listed) {
  return await_at_least(
      params,
      [&] {
        listed = ptx::load_acquire_gpu(&params.state->routes_ready);
        return uint64_t{listed >> 32 == (epoch & 0xFFFFFFFFu)};
      },
      1, TaskKind::kGemm1, WaitFlag::kRoutesReady, static_cast<uint64_t>(params.self), 0);
}

// Arranging in the background: a piece at a time, a row between two looks at what the warp waits for. Whatever the warp waits for, it goes on with its
// piece meanwhile, since others may wait for that.
struct Arranger {
  enum State : int { kNothing, kNoPiece, kNoMemory, kAtWork };
  int state = kNothing;
  int row = 0, end = 0;
  int64_t place = 0;  // lane i: of the piece's row i
};

template <class C>
__device__ __forceinline__ void take_piece(const Params& params, SharedStorage<C>& smem, Arranger& arranger, int lane) {
  int state = Arranger::kNothing;
  if (lane == 0) {
    const auto number = static_cast<int64_t>(ptx::fetch_add_relaxed_gpu(&params.state->next_piece, 1));
    if (number < smem.counts.arranged_later()) {
      put_task(params, smem.counts, smem.any_many, later_piece(smem.counts, number), smem.piece);
      const bool empty = !is_arranged(smem.piece) || smem.piece.index * kArrangeRows >= smem.piece.count;
      state = empty ? Arranger::kNoPiece : Arranger::kNoMemory;
    }
  }
  arranger.state = __shfl_sync(0xFFFFFFFFu, state, 0);
  __syncwarp();  // lane 0 has written smem.piece
  arranger.row = static_cast<int>(smem.piece.index) * kArrangeRows;
  arranger.end = min(arranger.row + kArrangeRows, smem.piece.count);
}

// A little of it. All lanes.
template <class C>
__device__ __forceinline__ void arrange_some(const Params& params, SharedStorage<C>& smem, Arranger& arranger, int lane) {
  if (arranger.state == Arranger::kNothing) return __nanosleep(40);
  if (arranger.state == Arranger::kNoPiece) return take_piece(params, smem, arranger, lane);
  if (arranger.state == Arranger::kNoMemory) {
    const bool free = __shfl_sync(0xFFFFFFFFu, lane == 0 && memory_is_free(params, smem.piece.block), 0) != 0;
    if (!free) return __nanosleep(200);
    arranger.state = Arranger::kAtWork;
    if (arranger.row + lane < arranger.end) arranger.place = row_place(params, smem.piece.route_begin + arranger.row + lane);
    return;
  }
  const int64_t place = __shfl_sync(0xFFFFFFFFu, arranger.place, arranger.row % kArrangeRows);
  arrange_row<4>(params, smem.piece, row_at(params, place), arranger.row, lane);
  if (++arranger.row < arranger.end) return;
  arranger.state = Arranger::kNoPiece;
  __syncwarp();
  if (lane == 0) publish_arranged(params, smem.piece, 1);
}

// What lane 0 claims and puts into the queue.
struct Claimed {
  TaskKind kind = TaskKind::kNone;
  int32_t block = 0;
};

template <class C>
__device__ __forceinline__ Claimed claim(const Params& params, SharedStorage<C>& smem, BlockTask& place, bool& routes_known) {
  TaskCounts& counts = smem.counts;
  const int64_t ticket = smem.given_tickets + static_cast<int64_t>(ptx::fetch_add_relaxed_gpu(&params.state->next_task, 1));
  bool more = true;
  if (ticket >= counts.before_gemms() && !routes_known) {
    uint64_t listed = 0;
    more = await_routes(params, smem.epoch, listed);
    routes_known = true;
    if (more) add_blocks(params, counts, listed);
    smem.any_many = has_many_blocks(listed);
  }
  Task task = more ? task_at(counts, ticket) : Task{};
  if (!is_of_this_launch(params, task.kind)) task = {};
  put_task(params, counts, smem.any_many, task, place);
  return {task.kind, static_cast<int32_t>(task.block)};
}

template <class C>
__device__ __forceinline__ void claim_role(const Params& params, SharedStorage<C>& smem, int lane) {
  if (lane == 0) {
    smem.counts = counts_before_routes(params, smem.num_tokens);
    smem.any_many = false;
  }
  __syncwarp();
  bool routes_known = false;
  Arranger arranger;
  auto queue = RingCursor<kQueueSlots>::producer();
  auto finished = RingCursor<kQueueSlots>::consumer();
  int unfinished = 0;
  Claimed last;
  // Until lane 0 sees that it is so.
  const auto wait_until = [&](auto ready) {
    while (__shfl_sync(0xFFFFFFFFu, lane == 0 && ready(), 0) == 0) arrange_some(params, smem, arranger, lane);
  };
  if (blockIdx.x < smem.given_tickets) {
    queue.advance();
    unfinished = 1;
  }
  do {
    // One GEMM task is claimed while the one before is worked on, so that its data can come; more would only spoil the balance.
    for (const int allowed = is_gemm(last.kind) ? 1 : 0; unfinished > allowed; --unfinished, finished.advance()) {
      wait_until([&] { return ptx::mbarrier_try_wait(smem.written_at(finished.slot), finished.phase); });
    }
    // A GEMM2 task that still waits for its rows is enough for one thread block: the next one may be another's.
    if (last.kind == TaskKind::kGemm2) {
      wait_until([&] { return ptx::load_acquire_gpu(block_done(params, last.block)) >= gemm1_tasks_of_block(params) || aborted(params); });
    }
    wait_until([&] { return ptx::mbarrier_try_wait(smem.queue_empty_at(queue.slot), queue.phase); });
    const bool knew = routes_known;
    if (lane == 0) last = claim(params, smem, smem.queue[queue.slot], routes_known);
    last.kind = static_cast<TaskKind>(__shfl_sync(0xFFFFFFFFu, static_cast<int>(last.kind), 0));
    last.block = __shfl_sync(0xFFFFFFFFu, last.block, 0);
    routes_known = __shfl_sync(0xFFFFFFFFu, routes_known, 0) != 0;
    __syncwarp();  // lane 0 has written smem.counts
    if (routes_known && !knew && last.kind != TaskKind::kNone && smem.counts.arrange_pieces > 0) {
      // Rows are arranged by whoever claims a piece, here and in the math warps: all are here before.
      await_sources(params, symmetric_flags(params, params.self)->arrived, smem.epoch, TaskKind::kArrange, lane);
      if (smem.counts.arranged_later() > 0) arranger.state = Arranger::kNoPiece;
    }
    if (lane == 0) ptx::mbarrier_arrive(smem.queue_full_at(queue.slot));
    queue.advance();
    ++unfinished;
  } while (last.kind != TaskKind::kNone);
  // GEMMs that are under way may wait for pieces that nobody has taken yet.
  while (arranger.state != Arranger::kNothing && __shfl_sync(0xFFFFFFFFu, lane == 0 && aborted(params), 0) == 0) arrange_some(params, smem, arranger, lane);
}

}  // namespace monomoe::cuda
