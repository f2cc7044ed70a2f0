// A call on the CUDA backend: the host's checks, all ranks at once, one rank among the others, or one rank on a stream.
#pragma once

#include <span>
#include <vector>

#include "base/result.hpp"
#include "layer/rank_meeting.hpp"
#include "layer/weights.hpp"
#include "layer/workspace.hpp"

namespace monomoe::layer {

// A rank's call with what speaks against it.
RankPart cuda_part(const monomoe_weights& weights, const monomoe_workspace& workspace, int32_t rank, const Result<cpu::RankCall>& call);
// All ranks, blocking. wall in seconds; may be null.
Result<void> cuda_forward_all(monomoe_workspace& workspace, std::span<const RankPart> parts, double* wall);
// This rank's part of a call whose other ranks come from other threads; blocking.
Result<void> cuda_forward_rank(monomoe_workspace& workspace, int32_t rank, const RankPart& part, double* wall);
// The same for a rank of a world, whose others are elsewhere: it is launched at once, and a rank that is refused takes part without tokens.
Result<void> cuda_forward_world(monomoe_workspace& workspace, const RankPart& part, double* wall);
// Enqueues this rank's launch.
Result<void> cuda_enqueue(monomoe_workspace& workspace, int32_t rank, const RankPart& part, void* stream);

}  // namespace monomoe::layer
