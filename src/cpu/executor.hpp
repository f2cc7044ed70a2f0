// The CPU backend's executor: R ranks in one process, each with its workers, meeting only through flags (docs/protocol.md).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "cpu/executor_call.hpp"
#include "cpu/executor_weights.hpp"
#include "cpu/executor_workspace.hpp"

namespace monomoe::cpu {

// One rank's call, collective: every rank of the workspace makes it, from its own thread and with the same weights. Blocks until
// this rank's y is written or the call has failed. kUsage: this rank's arguments are refused; kRejected: another rank's were,
// the next call may succeed; kTimeout: a rank did not come, the workspace is poisoned (with kUsage, if the ranks use different
// weights); kPoisoned: it was already. times may be null; it is added to on success only.
Result<void> run_rank(const CpuWeights& weights, CpuWorkspace& workspace, int32_t rank, const RankCall& call,
                      const RunOptions& options, StageTimes* times);

// All ranks at once, calls[rank]; options.threads workers are dealt out over the ranks, the first ranks one more, at least one each.
// The error is that of a rank which failed by itself if there is one, else the first.
Result<void> run_all(const CpuWeights& weights, CpuWorkspace& workspace, std::span<const RankCall> calls, const RunOptions& options,
                     StageTimes* times);

}  // namespace monomoe::cpu
