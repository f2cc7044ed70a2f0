// Asks libcuda.so.1 through dlopen; the few entry points used have had these signatures since CUDA 3.
#include "layer/cuda_probe.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "cuda/backend.hpp"

namespace monomoe::layer {
namespace {

struct DriverCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Driver = std::unique_ptr<void, DriverCloser>;

template <class Function>
Function* entry(const Driver& driver, const char* name) {
  return reinterpret_cast<Function*>(dlsym(driver.get(), name));
}

// CUdevice_attribute values (cuda.h).
constexpr int kMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

CudaDevice describe_device(const Driver& driver, int ordinal) {
  CudaDevice device;
  auto* device_get = entry<int(int*, int)>(driver, "cuDeviceGet");
  auto* get_name = entry<int(char*, int, int)>(driver, "cuDeviceGetName");
  auto* get_attribute = entry<int(int*, int, int)>(driver, "cuDeviceGetAttribute");
  auto* total_memory = entry<int(size_t*, int)>(driver, "cuDeviceTotalMem_v2");
  int handle = 0;
  if (device_get == nullptr || device_get(&handle, ordinal) != 0) return device;
  char name[256] = {};
  if (get_name != nullptr && get_name(name, sizeof(name) - 1, handle) == 0) device.name = name;
  auto* get_uuid = entry<int(unsigned char*, int)>(driver, "cuDeviceGetUuid_v2");  // of a MIG instance its own, not its GPU's
  if (get_uuid == nullptr) get_uuid = entry<int(unsigned char*, int)>(driver, "cuDeviceGetUuid");
  if (get_uuid != nullptr) get_uuid(device.uuid.data(), handle);
  size_t bytes = 0;
  if (total_memory != nullptr && total_memory(&bytes, handle) == 0) device.memory_bytes = static_cast<int64_t>(bytes);
  if (get_attribute != nullptr) {
    get_attribute(&device.major, kCapabilityMajor, handle);
    get_attribute(&device.minor, kCapabilityMinor, handle);
    get_attribute(&device.multiprocessors, kMultiprocessors, handle);
  }
  return device;
}

}  // namespace

std::string CudaDevice::uuid_text() const {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  return text;
}

CudaProbe probe_cuda() {
  CudaProbe probe;
  const Driver driver(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!driver) {
    const char* reason = dlerror();
    probe.driver_problem = fmt::format("no NVIDIA driver: {}", reason != nullptr ? reason : "libcuda.so.1 does not load");
    return probe;
  }
  probe.driver_found = true;
  auto* init = entry<int(unsigned)>(driver, "cuInit");
  auto* version = entry<int(int*)>(driver, "cuDriverGetVersion");
  auto* count_devices = entry<int(int*)>(driver, "cuDeviceGetCount");
  if (init == nullptr || count_devices == nullptr) {
    probe.driver_problem = "libcuda.so.1 lacks cuInit or cuDeviceGetCount: it is not a usable NVIDIA driver";
    return probe;
  }
  if (version != nullptr) version(&probe.driver_version);
  if (const int code = init(0); code != 0) {
    probe.driver_problem =
        fmt::format("the NVIDIA driver library is there but cuInit failed with CUDA error {}{}", code, code == 100 ? " (no device)" : "");
    return probe;
  }
  probe.driver_works = true;
  int count = 0;
  if (count_devices(&count) != 0) return probe;
  for (int ordinal = 0; ordinal < count; ++ordinal) probe.devices.push_back(describe_device(driver, ordinal));
  return probe;
}

std::string cuda_unavailable_reason(const CudaProbe& probe) {
  std::string found = probe.driver_problem;
  if (probe.driver_works && probe.devices.empty()) found = "the NVIDIA driver works but shows no device";
  bool has_hopper = false;
  for (size_t i = 0; i < probe.devices.size(); ++i) {
    const CudaDevice& device = probe.devices[i];
    has_hopper |= device.major == 9 && device.minor == 0;
    found += fmt::format("{}GPU {} is {} (compute capability {}.{})", i == 0 ? "" : ", ", i, device.name, device.major, device.minor);
  }
  if (!cuda::is_built()) {
    return fmt::format("no CUDA backend in this build: {}; './run build' makes one, or cmake -DMONOMOE_CUDA=ON with nvcc 12.4 or newer; found: {}",
                       cuda::why_not_built(), found);
  }
  if (!has_hopper) return fmt::format("wanted a Hopper GPU (compute capability 9.0: H100, H200, H20) and its driver; found: {}", found);
  const int wanted = cuda::required_driver_version();
  if (probe.driver_version >= wanted) return {};
  return fmt::format("the NVIDIA driver supports CUDA {}.{}, this build wants {}.{} or newer; update the driver or build with an older toolkit "
                     "(12.4 or newer); found: {}",
                     probe.driver_version / 1000, probe.driver_version % 1000 / 10, wanted / 1000, wanted % 1000 / 10, found);
}

}  // namespace monomoe::layer
