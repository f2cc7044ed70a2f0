// Times the kernel of one rank as in an 8-rank group: all of the rank's experts are local and tokens are routed among them. Cold L2, median,
// beside a plain read of the weights. Usage: gpu_layer [flash] [pro] [mimo] [one] [split] [unfused] [nvfp4] [fp8] [mxfp4] [trace] [tokens ...]:
// shapes, and if given only those launches (else one), formats (else nvfp4, fp8) and token counts; trace: where one more launch spends its
// time, and a Chrome trace in trace-*.json.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/launch.hpp"
#include "cuda/rank_memory.hpp"
#include "cuda/symmetric_memory.hpp"
#include "cuda/bench/kernels.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

using namespace monomoe;

namespace {

// Trace of one launch: mean times of the tasks of each kind, and the events as a Chrome trace.
constexpr int kTraceEvents = 1024;
const char* const kKinds[] = {"dispatch", "routes", "arrange", "gemm1", "gemm2", "combine"};

void report_trace(const std::vector<cuda::TraceEvent>& events, int thread_blocks, const std::string& file) {
  uint64_t first = UINT64_MAX, last = 0;
  for (const auto& e : events) {
    if (e.time[3] == 0) continue;
    first = std::min(first, e.time[0]);
    last = std::max(last, e.time[3]);
  }
  std::printf("  %-9s %6s %9s %9s | mean us: %8s %8s %8s %8s\n", "kind", "tasks", "first us", "last us", "for data", "main", "after", "total");
  double busy = 0;
  for (int kind = 0; kind < 6; ++kind) {
    int64_t count = 0;
    uint64_t begin = UINT64_MAX, end = 0;
    double part[3] = {}, total = 0;
    for (const auto& e : events) {
      if (e.time[3] == 0 || e.kind != kind) continue;
      ++count;
      begin = std::min(begin, e.time[0]);
      end = std::max(end, e.time[3]);
      total += e.time[3] - e.time[0];
      if (e.time[1] == 0) continue;
      for (int i = 0; i < 3; ++i) part[i] += e.time[i + 1] - e.time[i];
    }
    if (count == 0) continue;
    busy += total;
    std::printf("  %-9s %6lld %9.1f %9.1f | %8s %8.2f %8.2f %8.2f %8.2f\n", kKinds[kind], (long long)count, (begin - first) * 1e-3, (end - first) * 1e-3, "",
                part[0] / count * 1e-3, part[1] / count * 1e-3, part[2] / count * 1e-3, total / count * 1e-3);
  }
  std::printf("  %.1f us from the first task to the last; thread blocks busy %.1f %% of it\n", (last - first) * 1e-3, 100 * busy / (last - first) / thread_blocks);
  if (file.empty()) return;
  FILE* out = std::fopen(file.c_str(), "w");
  if (out == nullptr) return;
  std::fprintf(out, "{\"traceEvents\":[\n");
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& e = events[i];
    if (e.time[3] == 0) continue;
    std::fprintf(out, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%zu,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"block\":%lld,\"tile\":%d,\"count\":%d,\"data\":%.3f,\"mult\":%.3f}},\n",
                 kKinds[e.kind], i / kTraceEvents, (e.time[0] - first) * 1e-3, (e.time[3] - e.time[0]) * 1e-3, (long long)e.block, e.tile, e.count,
                 e.time[1] ? (e.time[1] - e.time[0]) * 1e-3 : 0.0, e.time[2] ? (e.time[2] - e.time[0]) * 1e-3 : 0.0);
  }
  std::fprintf(out, "{\"name\":\"end\",\"ph\":\"i\",\"pid\":0,\"tid\":0,\"ts\":%.3f}]}\n", (last - first) * 1e-3);
  std::fclose(out);
}

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

struct NamedLaunch {
  const char* name;
  cuda::LaunchVariant variant;
};

void bench(const Shape& shape, WeightFormat format, const char* format_name, const NamedLaunch& launch, int sms, bool trace) {
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
  const auto workspace = must(cuda::RankWorkspace::make(problem, shape.experts, launch.variant));
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
  p.packed_experts = weights.packed_experts();
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
    cuda::read_memory(flush.data(), flush.bytes(), reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
    cudaEventRecord(begin);
    cuda::read_memory(weights.slot(0), weights.num_slots() * layout.bytes, reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
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
    const cuda::RankLaunch call{launch.variant, p, sms, workspace.unfused(), shape.experts};
    std::vector<float> us;
    for (int i = 0; i < 14; ++i) {
      cuda::read_memory(flush.data(), flush.bytes(), reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
      cudaEventRecord(begin);
      for (int part = 0; part < cuda::num_launches(launch.variant); ++part) must(cuda::launch_part(call, part, nullptr));
      cudaEventRecord(end);
      must(cuda::check(cudaDeviceSynchronize(), "running the kernel"));
      if (workspace.error()->code != 0) {
        std::printf("%s %s %s M=%lld: error record code %llu\n", shape.name, format_name, launch.name, (long long)tokens,
                    (unsigned long long)workspace.error()->code);
        return;
      }
      float ms;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 2) us.push_back(ms * 1000.0f);
    }
    std::sort(us.begin(), us.end());
    std::printf("%-6s %-6s %-8s M=%-5lld median %8.1f us  min %8.1f us\n", shape.name, format_name, launch.name, (long long)tokens, us[us.size() / 2],
                us[0]);
    if (trace && launch.variant == cuda::LaunchVariant::kOne) {
      auto buffer = must(cuda::DeviceBuffer::make(sizeof(cuda::TraceEvent) * kTraceEvents * sms, "trace"));
      std::vector<cuda::TraceEvent> events(kTraceEvents * sms);
      must(cuda::check(cudaMemset(buffer.data(), 0, buffer.bytes()), "clearing the trace"));
      cuda::read_memory(flush.data(), flush.bytes(), reinterpret_cast<uint32_t*>(sink.data()), sms, nullptr);
      p.trace = reinterpret_cast<cuda::TraceEvent*>(buffer.data());
      p.trace_events = kTraceEvents;
      const cuda::RankLaunch traced{launch.variant, p, sms, workspace.unfused(), shape.experts};
      for (int part = 0; part < cuda::num_launches(launch.variant); ++part) must(cuda::launch_part(traced, part, nullptr));
      p.trace = nullptr;
      must(cuda::check(cudaMemcpy(events.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "reading the trace"));
      report_trace(events, sms, std::string("trace-") + shape.name + "-" + format_name + "-" + std::to_string(tokens) + ".json");
    }
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
  const NamedLaunch launches[] = {
      {"one", cuda::LaunchVariant::kOne}, {"split", cuda::LaunchVariant::kSplit}, {"unfused", cuda::LaunchVariant::kUnfused}};
  const bool by_name = std::ranges::any_of(launches, [&](const NamedLaunch& launch) { return given(launch.name); });
  for (Shape shape : shapes) {
    if (!given(shape.name)) continue;
    if (!tokens.empty()) shape.tokens = tokens;
    for (const NamedLaunch& launch : launches) {
      if (by_name ? !given(launch.name) : launch.variant != cuda::LaunchVariant::kOne) continue;
      if (!any_format || given("nvfp4")) bench(shape, WeightFormat::kNvfp4, "nvfp4", launch, device.multiProcessorCount, given("trace"));
      if (!any_format || given("fp8")) bench(shape, WeightFormat::kFp8, "fp8", launch, device.multiProcessorCount, given("trace"));
      if (given("mxfp4")) bench(shape, WeightFormat::kMxfp4, "mxfp4", launch, device.multiProcessorCount, given("trace"));
    }
  }
}
