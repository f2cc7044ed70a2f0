#include "cpu/executor.hpp"

#include <fmt/format.h>

#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/executor_check.hpp"
#include "cpu/executor_worker.hpp"

namespace monomoe::cpu {
namespace {

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double& stage_time(StageTimes& times, TaskKind kind) {
  switch (kind) {
    case TaskKind::kDispatch: return times.dispatch;
    case TaskKind::kRoutes: return times.routes;
    case TaskKind::kGemm1: return times.gemm1;
    case TaskKind::kGemm2: return times.gemm2;
    default: return times.combine;
  }
}

Outcome do_task(Worker& worker, const Task& task) {
  // A combine task never looks here: once the rank is complete its y is written whatever happens elsewhere.
  if (task.kind != TaskKind::kCombine && worker.rank.comm.aborted()) return Outcome::kAborted;
  switch (task.kind) {
    case TaskKind::kDispatch: return worker.dispatch(task.index);
    case TaskKind::kRoutes: return worker.build_routes();
    case TaskKind::kGemm1: return worker.gemm1(task.block, task.tile);
    case TaskKind::kGemm2: return worker.gemm2(task.block, task.tile);
    default: return worker.combine(task.index);
  }
}

// The next task; kNone at the end, or with an outcome when the route lists will not come.
std::pair<Task, Outcome> claim(Worker& worker) {
  RankRun& rank = worker.rank;
  const int64_t ticket = static_cast<int64_t>(add<uint64_t>(rank.local.flags->next_task, 1));
  TaskCounts counts = rank.counts;
  if (ticket >= counts.before_gemms()) {
    const WaitPoint point{TaskKind::kNone, FlagName::kRoutesReady};
    const Outcome outcome = worker.await(rank.local.flags->routes_ready, rank.comm.epoch(), point);
    if (outcome != Outcome::kDone) return {Task{}, outcome};
    counts.blocks = rank.local.block_begin[rank.weights.num_slots(rank.self())];
  }
  return {task_at(counts, ticket), Outcome::kDone};
}

// True if the worker must stop. An abort that comes after the rank is complete is the others' affair: the combine tasks go on.
bool must_leave(Worker& worker, Outcome outcome) {
  if (outcome == Outcome::kDone) return false;
  if (outcome == Outcome::kRejected) {
    worker.rejected = true;
    return true;
  }
  uint64_t& decided = worker.rank.local.flags->outcome;
  win(decided, kAbandoned);
  worker.aborted = look(decided) != kComplete;
  return worker.aborted;
}

void work(Worker& worker) {
  RankRun& rank = worker.rank;
  const auto beat = std::chrono::milliseconds(rank.comm.timeout_ms()) / 8;
  Clock::time_point last_beat = Clock::now();
  for (;;) {
    const auto [task, claimed] = claim(worker);
    if (must_leave(worker, claimed) || task.kind == TaskKind::kNone) return;
    if (rank.call.hook) rank.call.hook(task.kind);
    const Clock::time_point begin = Clock::now();
    const double waited = worker.times.wait;
    const Outcome outcome = do_task(worker, task);
    stage_time(worker.times, task.kind) += seconds_since(begin) - (worker.times.wait - waited);
    if (must_leave(worker, outcome)) return;
    if (begin - last_beat > beat) {
      rank.comm.publish_progress();
      last_beat = begin;
    }
  }
}

RankRun make_run(const CpuWeights& weights, const CpuWorkspace& workspace, const RankCall& call, const RunOptions& options,
                 const RankComm& comm) {
  Problem problem = weights.problem();
  problem.topk = workspace.problem().topk;
  problem.capacity = workspace.problem().capacity;
  TaskCounts counts;
  counts.dispatch_chunks = counts.combine_chunks = ceil_div(call.num_tokens, kTokenChunk);
  counts.gemm1_tiles = problem.intermediate_blocks();
  counts.gemm2_tiles = gemm2_tiles(problem.hidden);
  return {weights, workspace, call, *options.kernels, comm, problem, workspace.symmetric_view(comm.self()),
          workspace.local_view(comm.self()), counts};
}

void reset_call(LocalFlags& flags) {
  reset(flags.next_task);
  reset(flags.dispatch_done);
  reset(flags.gemm1_done);
  reset(flags.outcome);
}

// Runs all workers; the calling thread is the first. If the system has no more threads, fewer do the work.
void work_together(std::vector<Worker>& workers) {
  std::vector<std::thread> threads;
  threads.reserve(workers.size());
  try {
    for (size_t i = 1; i < workers.size(); ++i) threads.emplace_back(work, std::ref(workers[i]));
  } catch (const std::system_error&) {
    // The tasks are claimed, so those that did start do all of them.
  }
  work(workers[0]);
  for (std::thread& thread : threads) thread.join();
}

Result<void> conclude(const RankRun& run, const std::vector<Worker>& workers) {
  bool rejected = false, aborted = false;
  for (const Worker& worker : workers) {
    rejected |= worker.rejected;
    aborted |= worker.aborted;
  }
  if (aborted) {
    const ErrorRecord record = read_record(run.comm.own_flags());
    return Error{record.code, to_sentence(record) + "; the workspace is poisoned: destroy it and create it anew"};
  }
  if (!rejected) return {};
  run.comm.publish_drained();
  const int32_t peer = run.comm.refusing_rank();
  const uint64_t word = look(run.comm.own_flags().reject[peer]);
  const std::string why = reject_sentence(static_cast<RejectReason>(word >> 32), word & UINT32_MAX, run.problem.capacity,
                                          run.problem.experts);
  return Error{Status::kRejected, fmt::format("rank {} refused this call: {}; nothing was computed, the next call may succeed", peer, why)};
}

// Marks the rank as busy while it lives.
class Entry {
 public:
  Entry(CpuWorkspace& workspace, int32_t rank) : workspace_(workspace), rank_(rank), entered_(workspace.enter(rank)) {}
  ~Entry() {
    if (entered_) workspace_.leave(rank_);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  bool entered() const { return entered_; }

 private:
  CpuWorkspace& workspace_;
  int32_t rank_;
  bool entered_;
};

std::optional<Refusal> get_scratch(CpuWorkspace& workspace, int32_t rank, const RunOptions& options, std::vector<std::byte*>& scratch) {
  const int64_t bytes = kKernelScratchBegin + options.kernels->scratch_bytes;
  for (int32_t worker = 0; worker < options.threads || worker == 0; ++worker) {
    std::byte* memory = workspace.scratch(rank, worker, bytes);
    if (memory == nullptr) {
      return Refusal{unavailable(fmt::format("rank {}: no memory for the {} bytes of a worker", rank, bytes)), RejectReason::kNoMemory, 0};
    }
    scratch.push_back(memory);
  }
  return std::nullopt;
}

}  // namespace

Result<void> run_rank(const CpuWeights& weights, CpuWorkspace& workspace, int32_t rank, const RankCall& call,
                      const RunOptions& options, StageTimes* times) {
  const Clock::time_point begin = Clock::now();
  if (!workspace.holds(rank)) {
    return usage_error(fmt::format("rank {} is not one of the workspace's {} ranks in this process", rank, workspace.problem().ranks));
  }
  const Entry entry(workspace, rank);
  if (!entry.entered()) return usage_error(fmt::format("rank {} is already in a call on this workspace; one call at a time", rank));
  if (call.hook) call.hook(TaskKind::kNone);
  const std::string cause = workspace.poison_cause(rank);
  if (!cause.empty()) {
    return Error{Status::kPoisoned, "an earlier call failed and left the workspace poisoned: " + cause + "; destroy it and create it anew"};
  }
  std::vector<std::byte*> scratch;
  std::optional<Refusal> refusal = check_call(weights, workspace, rank, call, options);
  if (!refusal) refusal = get_scratch(workspace, rank, options, scratch);
  const RankComm comm(workspace.symmetric(), workspace.symmetric_offsets().flags, rank, workspace.begin_epoch(rank), options.timeout_ms);
  if (refusal) {
    comm.publish_refused(refusal->reason, refusal->value);
    comm.publish_drained();
    return refusal->error;
  }
  RankRun run = make_run(weights, workspace, call, options, comm);
  reset_call(*run.local.flags);
  std::vector<Worker> workers;
  for (std::byte* memory : scratch) workers.push_back({run, memory, {}});
  work_together(workers);
  auto result = conclude(run, workers);
  if (result && times != nullptr) {
    for (const Worker& worker : workers) times->add(worker.times);
    times->add({.wall = seconds_since(begin)});
  }
  return result;
}

Result<void> run_all(const CpuWeights& weights, CpuWorkspace& workspace, std::span<const RankCall> calls, const RunOptions& options,
                     StageTimes* times) {
  const int32_t ranks = static_cast<int32_t>(workspace.problem().ranks);
  if (static_cast<int64_t>(calls.size()) != ranks) {
    return usage_error(fmt::format("{} calls were given for the {} ranks of the workspace", calls.size(), ranks));
  }
  std::vector<Result<void>> results(ranks);
  std::vector<StageTimes> rank_times(ranks);
  std::latch all_there(1);
  bool cancelled = false;
  const auto run = [&](int32_t rank) {
    all_there.wait();
    if (cancelled) return;
    RunOptions own = options;
    own.threads = static_cast<int32_t>(max_of(1, options.threads / ranks + (rank < options.threads % ranks ? 1 : 0)));
    results[rank] = run_rank(weights, workspace, rank, calls[rank], own, &rank_times[rank]);
  };
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  try {
    for (int32_t rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
  } catch (const std::system_error&) {
    cancelled = true;
  }
  all_there.count_down();
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (cancelled)
    return unavailable(
        fmt::format("the system has no threads for {} ranks; use fewer ranks or threads, or raise its limits (ulimit -u, ulimit -v)", ranks));
  const Result<void>* failed = nullptr;
  for (const Result<void>& result : results) {
    if (result.ok()) continue;
    if (failed == nullptr || (failed->error().status == Status::kRejected && result.error().status != Status::kRejected)) failed = &result;
  }
  if (failed != nullptr) return *failed;
  if (times != nullptr) {
    for (const StageTimes& one : rank_times) times->add(one);
  }
  return {};
}

}  // namespace monomoe::cpu
