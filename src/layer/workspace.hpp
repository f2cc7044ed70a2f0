// A workspace behind the ABI's handle.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "cpu/executor_workspace.hpp"
#include "layer/context.hpp"
#include "monomoe/monomoe.h"

struct monomoe_workspace {
  const monomoe_context* context;
  std::unique_ptr<monomoe::cpu::CpuWorkspace> cpu;
};

namespace monomoe::layer {

Result<std::unique_ptr<monomoe_workspace>> make_workspace(const monomoe_context& context, const monomoe_workspace_options& options);

}  // namespace monomoe::layer
