// A workspace behind the ABI's handle.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "cpu/executor_workspace.hpp"
#include "layer/context.hpp"
#include "layer/rank_meeting.hpp"
#include "monomoe/monomoe.h"

struct monomoe_workspace {
  const monomoe_context* context;
  monomoe::Problem problem;  // of the largest layer
  int64_t max_slots;
  std::unique_ptr<monomoe::cpu::CpuWorkspace> cpu;  // one of the two: the context's backend
  std::unique_ptr<monomoe::cuda::Workspace> cuda;
  std::unique_ptr<monomoe::layer::RankMeeting> meeting;  // with cuda and all ranks here: where their blocking calls come together
};

namespace monomoe::layer {

Result<std::unique_ptr<monomoe_workspace>> make_workspace(const monomoe_context& context, const monomoe_workspace_options& options);
// kPoisoned with the first cause if an earlier call failed in the middle.
Result<void> check_condition(const monomoe_workspace& workspace);

}  // namespace monomoe::layer
