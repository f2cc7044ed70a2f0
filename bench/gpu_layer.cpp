// Times the kernel of one rank as in an 8-rank group: all of the rank's experts are local and tokens are routed among them. Cold L2, median,
// beside a plain read of the weights. Usage: gpu_layer [flash] [pro] [mimo] [nvfp4] [fp8] [mxfp4] [tokens ...]: shapes, and if
// given only those formats and token counts.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/launch.hpp"
#include "cuda/rank_memory.hpp"
#include "cuda/symmetric_memory.hpp"
#include "read_memory.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

using namespace monomoe;

namespace {

struct Shape {
  const char* name;
  int64_t hidden, intermediate, experts, topk;
  std::vector<int64_t> tokens;
};

template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "gpu_layer: %s\n", result.error().message.c_str());
    std::exit(5);
  }
  return result.take();
}
void must(Result<void> result) {
  if (!result) {
    std::fprintf(stderr, "gpu_layer: %s\n", result.error().message.c_str());
    std::exit(5);
  }
}

cuda::DeviceBuffer upload(const void* data, int64_t bytes) {
  auto buffer = must(cuda::DeviceBuffer::make(bytes, "input"));
  must(cuda::check(cudaMemcpy(buffer.data(), data, bytes, cudaMemcpyHostToDevice), "copying input"));
  return buffer;
}

void bench(const Shape& shape, WeightFormat format, const char* format_name, int sms) {
  constexpr int kDistinct = 2;  // experts that differ; the others repeat them at other addresses
  Problem problem{shape.hidden, shape.intermediate, shape.experts, shape.topk, 1, shape.tokens.back(), format};
  const ExpertLayout layout = expert_layout(problem);
  std::vector<std::vector<uint8_t>> packed(kDistinct, std::vector<uint8_t>(layout.bytes));
  for (int e = 0; e < kDistinct; ++e) {
    const RandomMatrix gate = random_matrix(format, shape.intermediate, shape.hidden, 1, 3 * e);
    const RandomMatrix up = random_matrix(format, shape.intermediate, shape.hidden, 1, 3 * e + 1);
    const RandomMatrix down = random_matrix(format, shape.hidden, shape.intermediate, 1, 3 * e + 2);
    must(pack_expert({gate.matrix, up.matrix, down.matrix}, problem, packed[e].data()));
  }
  const PlacementTable placement = must(PlacementTable::even(shape.experts, 1));
  const auto weights = must(cuda::RankWeights::make(problem, placement, 0));
  for (int32_t e = 0; e < weights.num_slots(); ++e) must(weights.upload(e, packed[e % kDistinct].data()));
  const auto symmetric = must(cuda::DeviceMemory::make(std::vector<int>{0}, symmetric_layout(problem)));
  const auto workspace = must(cuda::RankWorkspace::make(problem, shape.experts));
  const int64_t most = shape.tokens.back();
  std::vector<uint16_t> x(most * shape.hidden);
  for (size_t i = 0; i < x.size(); ++i) {
    const float v = random_bell(7, 0, i);
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    x[i] = static_cast<uint16_t>(bits >> 16);
  }
  std::vector<int32_t> ids(most * shape.topk);
  for (int64_t t = 0; t < most; ++t) {
    for (int64_t k = 0; k < shape.topk; ++k) {
      int32_t id;
      bool again;
      uint64_t draw = 0;
      do {
        id = static_cast<int32_t>(random_bits(9, t * 64 + k, draw++) % shape.experts);
        again = false;
        for (int64_t j = 0; j < k; ++j) again |= ids[t * shape.topk + j] == id;
      } while (again);
      ids[t * shape.topk + k] = id;
    }
  }
  std::vector<float> route_weights(ids.size(), 0.25f);
  const auto dx = upload(x.data(), x.size() * 2), dids = upload(ids.data(), ids.size() * 4), dw = upload(route_weights.data(), route_weights.size() * 4);
  const auto y = must(cuda::DeviceBuffer::make(most * shape.hidden * 2, "output"));
  const auto flush = must(cuda::DeviceBuffer::make(256 << 20, "flush")), sink = must(cuda::DeviceBuffer::make(16, "sink"));
  cuda::Params p{};
  p.problem = problem;
  p.experts = layout;
  p.symmetric = symmetric_layout(problem);
  p.local = cuda::gpu_workspace_layout(problem, shape.experts);
  p.num_slots = weights.num_slots();
  p.peers[0] = reinterpret_cast<uint8_t*>(symmetric->base(0));
  p.workspace = workspace.local();
  p.scratch = workspace.scratch();
  p.state = workspace.state();
  p.error = workspace.error();
  p.slot_data = weights.slot_data();
  p.serving = weights.serving();
  p.swiglu_limit = 10.0f;
  p.layer_tag = 1;
  p.timeout_ns = 5'000'000'000ull;
  p.x = dx.data();
  p.topk_ids = dids.data();
  p.topk_weights = reinterpret_cast<const float*>(dw.data());
  p.y = reinterpret_cast<uint16_t*>(y.data());
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> read_us;
  for (int i = 0; i < 9; ++i) {
    read_memory(flush.data(), flush.bytes(), reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
    cudaEventRecord(begin);
    read_memory(weights.slot(0), weights.num_slots() * layout.bytes, reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
    cudaEventRecord(end);
    must(cuda::check(cudaDeviceSynchronize(), "reading"));
    float ms;
    cudaEventElapsedTime(&ms, begin, end);
    read_us.push_back(ms * 1000.0f);
  }
  std::sort(read_us.begin(), read_us.end());
  std::printf("%-6s %-6s plain read of all weights: %.1f us for %.0f MB\n", shape.name, format_name, read_us[4], weights.num_slots() * layout.bytes * 1e-6);
  for (const int64_t tokens : shape.tokens) {
    p.num_tokens = tokens;
    std::vector<float> us;
    for (int i = 0; i < 14; ++i) {
      read_memory(flush.data(), flush.bytes(), reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
      cudaEventRecord(begin);
      must(cuda::launch_moe_kernel(p, sms, nullptr));
      cudaEventRecord(end);
      must(cuda::check(cudaDeviceSynchronize(), "running the kernel"));
      if (workspace.error()->code != 0) {
        std::printf("%s %s M=%lld: error record code %llu\n", shape.name, format_name, (long long)tokens, (unsigned long long)workspace.error()->code);
        return;
      }
      float ms;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 2) us.push_back(ms * 1000.0f);
    }
    std::sort(us.begin(), us.end());
    std::printf("%-6s %-6s M=%-5lld median %8.1f us  min %8.1f us\n", shape.name, format_name, (long long)tokens, us[us.size() / 2], us[0]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<int64_t> all = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  const std::vector<int64_t> few = {1, 4, 16, 64, 128, 256, 1024, 4096};
  const Shape shapes[] = {{"flash", 4096, 2048, 32, 6, all}, {"pro", 7168, 3072, 48, 6, few}, {"mimo", 6144, 2048, 48, 8, few}};
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("gpu_layer: SKIPPED, no CUDA device here\n");
    return 4;
  }
  cudaDeviceProp device{};
  must(cuda::check(cudaGetDeviceProperties(&device, 0), "reading the device"));
  must(cuda::prepare_device());
  const auto given = [&](const char* word) { return std::any_of(argv + 1, argv + argc, [&](const char* arg) { return std::strcmp(arg, word) == 0; }); };
  std::vector<int64_t> tokens;
  for (int arg = 1; arg < argc; ++arg) {
    if (const long long count = std::atoll(argv[arg]); count > 0) tokens.push_back(count);
  }
  const bool any_format = given("nvfp4") || given("fp8") || given("mxfp4");
  for (Shape shape : shapes) {
    if (!given(shape.name)) continue;
    if (!tokens.empty()) shape.tokens = tokens;
    if (!any_format || given("nvfp4")) bench(shape, WeightFormat::kNvfp4, "nvfp4", device.multiProcessorCount);
    if (!any_format || given("fp8")) bench(shape, WeightFormat::kFp8, "fp8", device.multiProcessorCount);
    if (given("mxfp4")) bench(shape, WeightFormat::kMxfp4, "mxfp4", device.multiProcessorCount);
  }
}
