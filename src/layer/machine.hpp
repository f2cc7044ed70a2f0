// What the operating system says about this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace monomoe::layer {

std::string cpu_model();  // empty if unknown
// -1 if unknown.
int64_t total_memory_bytes();
int64_t available_memory_bytes();

// Whether so many bytes are available, if that is known: "WHAT need 7 GB of host memory, 5 GB are available; REMEDY". Pages are given out when they are first written, so too many
// would end the process instead of the call.
Result<void> require_memory(double bytes, std::string_view what, std::string_view remedy);

}  // namespace monomoe::layer
