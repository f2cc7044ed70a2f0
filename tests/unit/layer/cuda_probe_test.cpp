// Why the CUDA backend cannot run: found, wanted and remedy for each kind of machine.
#include "layer/cuda_probe.hpp"

#include <gtest/gtest.h>

#include "cuda/backend.hpp"

namespace monomoe::layer {
namespace {

CudaProbe machine_with(int driver_version, std::vector<CudaDevice> devices) {
  CudaProbe probe;
  probe.driver_found = probe.driver_works = true;
  probe.driver_version = driver_version;
  probe.devices = std::move(devices);
  return probe;
}

void expect_words(const std::string& sentence, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(sentence.find(word), std::string::npos) << "\"" << word << "\" is not in: " << sentence;
}

const CudaDevice kHopper{"NVIDIA H200", 9, 0, 0, 132}, kAmpere{"NVIDIA A100", 8, 0, 0, 108};

TEST(CudaDeviceName, UuidIsWrittenAsTheDriversToolsDoAndMigIsSeen) {
  CudaDevice device = kHopper;
  for (size_t i = 0; i < device.uuid.size(); ++i) device.uuid[i] = static_cast<uint8_t>(16 * i + 15 - i);
  EXPECT_EQ(device.uuid_text(), "GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0");
  EXPECT_FALSE(device.is_mig());
  EXPECT_TRUE((CudaDevice{"NVIDIA H200 MIG 1g.18gb", 9, 0, 0, 16}).is_mig());
}

TEST(CudaReason, NamesTheDriverThatIsMissing) {
  CudaProbe probe;
  probe.driver_problem = "no NVIDIA driver: not there";
  expect_words(cuda_unavailable_reason(probe), {"found: no NVIDIA driver"});
  expect_words(cuda_unavailable_reason(machine_with(99990, {})), {"shows no device"});
}

TEST(CudaReason, NamesTheGpusThatAreNoHopper) {
  const std::string reason = cuda_unavailable_reason(machine_with(99990, {kAmpere}));
  expect_words(reason, {"GPU 0 is NVIDIA A100 (compute capability 8.0)"});
  if (cuda::is_built()) expect_words(reason, {"wanted a Hopper GPU (compute capability 9.0"});
  else expect_words(reason, {"no CUDA backend in this build: ", cuda::why_not_built(), "./run build", "MONOMOE_CUDA=ON"});
}

TEST(CudaReason, IsGivenByABuildWithoutTheBackendOnly) { EXPECT_EQ(std::string(cuda::why_not_built()).empty(), cuda::is_built()); }

TEST(CudaReason, NamesBothVersionsOfAnOldDriver) {
  if (!cuda::is_built()) GTEST_SKIP() << "this build has no CUDA backend";
  const int wanted = cuda::required_driver_version();
  expect_words(cuda_unavailable_reason(machine_with(11080, {kHopper})), {"supports CUDA 11.8", "update the driver", "wants"});
  EXPECT_EQ(cuda_unavailable_reason(machine_with(wanted, {kAmpere, kHopper})), "");
}

}  // namespace
}  // namespace monomoe::layer
