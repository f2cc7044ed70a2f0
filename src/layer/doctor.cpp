// monomoe_doctor: what this machine can run, and why not the rest.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "cpu/kernels.hpp"
#include "layer/arguments.hpp"
#include "layer/cuda_probe.hpp"
#include "layer/error_state.hpp"
#include "plan/problem.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

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

Json cpu_report() {
  Json report;
  report["available"] = true;
  std::string model = proc_value("/proc/cpuinfo", "model name");
  report["model"] = model.empty() ? "unknown" : model;
  report["cores"] = std::thread::hardware_concurrency();
  Json widths = Json::array();
  for (const int bits : {128, 256, 512}) {
    if (cpu::has_vectors(bits)) widths.push_back(bits);
  }
  report["vector_bits"] = widths;
  report["widest_vector_bits"] = cpu::kernels(0).vector_bits;
  report["memory_bytes"] = memory_bytes("MemTotal");
  report["available_memory_bytes"] = memory_bytes("MemAvailable");
  return report;
}

Json cuda_report(const CudaProbe& probe) {
  Json report;
  report["available"] = false;
  report["why_not"] = cuda_unavailable_reason(probe);
  report["remedy"] = "use backend cpu (auto takes it): it gives the same bits";
  report["driver"] = {{"found", probe.driver_found}, {"works", probe.driver_works}, {"version", probe.driver_version}};
  Json devices = Json::array();
  for (const CudaDevice& device : probe.devices) {
    devices.push_back({{"name", device.name},
                       {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                       {"memory_bytes", device.memory_bytes},
                       {"multiprocessors", device.multiprocessors}});
  }
  report["devices"] = devices;
  return report;
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_doctor(char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(json, "json"); !given) return given;
    Json report;
    report["version"] = monomoe_version();
    report["abi"] = monomoe_abi_version();
    report["backends"] = {{"cpu", cpu_report()}, {"cuda", cuda_report(probe_cuda())}};
    report["auto"] = "cpu";
    report["max_ranks"] = kMaxRanks;
    *json = caller_text(report.dump(-1, ' ', false, Json::error_handler_t::replace));
    return {};
  });
}
