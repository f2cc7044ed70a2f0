// A rank's device record as an Error: the sentence the CPU backend would write.
#pragma once

#include "base/result.hpp"
#include "cuda/moe_kernel/params.h"

namespace monomoe::cuda {

// record.code is not 0. problem: with the workspace's topk.
Error fault_error(const DeviceError& record, const Problem& problem, uint32_t timeout_ms);

}  // namespace monomoe::cuda
