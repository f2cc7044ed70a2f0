// Reads /proc.
#include "layer/machine.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

namespace monomoe::layer {
namespace {

// The value behind the first line "key ... : value" of a /proc file; empty if there is none.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

// "16314300 kB" -> bytes; -1 if the file does not say.
int64_t memory_bytes(const std::string& key) {
  const std::string text = proc_value("/proc/meminfo", key);
  return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 10) * 1024;
}

}  // namespace

std::string cpu_model() { return proc_value("/proc/cpuinfo", "model name"); }
int64_t total_memory_bytes() { return memory_bytes("MemTotal"); }
int64_t available_memory_bytes() { return memory_bytes("MemAvailable"); }

Result<void> require_memory(double bytes, std::string_view what, std::string_view remedy) {
  const int64_t there = available_memory_bytes();
  if (there < 0 || bytes <= static_cast<double>(there)) return {};
  return unavailable(fmt::format("{} need {:.0f} GB of host memory, {:.0f} GB are available; {}", what, bytes * 1e-9, static_cast<double>(there) * 1e-9, remedy));
}

}  // namespace monomoe::layer
