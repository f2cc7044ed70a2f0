// monomoe_doctor: what this machine can run, and why not the rest.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "cpu/kernels.hpp"
#include "cuda/backend.hpp"
#include "layer/arguments.hpp"
#include "layer/cuda_probe.hpp"
#include "layer/error_state.hpp"
#include "layer/machine.hpp"
#include "plan/problem.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

Json cpu_report() {
  Json report;
  report["available"] = true;
  const std::string model = cpu_model();
  report["model"] = model.empty() ? "unknown" : model;
  report["cores"] = std::thread::hardware_concurrency();
  Json widths = Json::array();
  for (const int bits : {128, 256, 512}) {
    if (cpu::has_vectors(bits)) widths.push_back(bits);
  }
  report["vector_bits"] = widths;
  report["widest_vector_bits"] = cpu::kernels(0).vector_bits;
  report["memory_bytes"] = total_memory_bytes();
  report["available_memory_bytes"] = available_memory_bytes();
  return report;
}

Json cuda_report(const CudaProbe& probe) {
  Json report;
  const std::string reason = cuda_unavailable_reason(probe);
  report["built"] = cuda::is_built();
  report["available"] = reason.empty();
  if (!reason.empty()) {
    report["why_not"] = reason;
    report["remedy"] = "use backend cpu (auto takes it): it gives the same bits";
  }
  report["driver"] = {{"found", probe.driver_found}, {"works", probe.driver_works}, {"version", probe.driver_version}};
  Json devices = Json::array();
  for (const CudaDevice& device : probe.devices) {
    devices.push_back({{"name", device.name},
                       {"uuid", device.uuid_text()},
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
    const CudaProbe probe = probe_cuda();
    report["backends"] = {{"cpu", cpu_report()}, {"cuda", cuda_report(probe)}};
    report["auto"] = cuda_unavailable_reason(probe).empty() ? "cuda" : "cpu";
    report["max_ranks"] = kMaxRanks;
    *json = caller_text(report.dump(-1, ' ', false, Json::error_handler_t::replace));
    return {};
  });
}
