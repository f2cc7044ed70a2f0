// What the operating system says about this machine.
#pragma once

#include <cstdint>
#include <string>

namespace monomoe::layer {

std::string cpu_model();  // empty if unknown
// -1 if unknown.
int64_t total_memory_bytes();
int64_t available_memory_bytes();

}  // namespace monomoe::layer
