// The kernel against the CPU backend, bit for bit: every case line given, ranks as several launches on one GPU. Prints one line per failure and
// a summary. Exit code 4 without a GPU.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu/executor.hpp"
#include "cuda/launch.hpp"
#include "cuda/rank_memory.hpp"
#include "cuda/symmetric_memory.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

using namespace monomoe;

namespace {

struct Device {
  cuda::DeviceBuffer x, ids, weights, y;
};

[[noreturn]] void die(const Error& error) {
  std::fprintf(stderr, "kernel_check: %s\n", error.message.c_str());
  std::exit(5);
}
template <class T>
T must(Result<T> result) {
  if (!result) die(result.error());
  return result.take();
}
void must(Result<void> result) {
  if (!result) die(result.error());
}

cuda::DeviceBuffer upload(const void* data, int64_t bytes) {
  auto buffer = must(cuda::DeviceBuffer::make(bytes, "input"));
  must(cuda::check(cudaMemcpy(buffer.data(), data, bytes, cudaMemcpyHostToDevice), "copying input"));
  return buffer;
}

struct CaseRun {
  Case c;
  RandomLayer layer;
  Problem problem;
  std::unique_ptr<cpu::CpuWeights> weights;
  std::vector<uint16_t> want;
  std::vector<cuda::RankWeights> rank_weights;
  std::unique_ptr<SymmetricMemory> symmetric;
  std::vector<cuda::RankWorkspace> workspaces;
  std::vector<Device> devices;
  std::vector<cudaStream_t> streams;

  explicit CaseRun(const Case& parsed) : c(parsed), layer(random_layer(parsed)), problem(parsed.problem) {
    weights = std::make_unique<cpu::CpuWeights>(must(cpu::CpuWeights::create(problem, must(placement_of(c)), c.limit)));
    const auto sources = layer.sources();
    for (int64_t e = 0; e < problem.experts; ++e) must(pack_expert(sources[e], problem, weights->expert_data(static_cast<int32_t>(e))));
  }

  void run_cpu(int threads) {
    want.assign(c.tokens * problem.hidden, 0xABCD);
    auto workspace = must(cpu::CpuWorkspace::create(problem, weights->placement().max_slots()));
    std::vector<cpu::RankCall> calls(problem.ranks);
    int64_t first = 0;
    for (int64_t r = 0; r < problem.ranks; ++r) {
      calls[r].num_tokens = c.rows[r];
      calls[r].x = layer.x.data() + first * problem.hidden;
      calls[r].topk_ids = layer.ids.data() + first * problem.topk;
      calls[r].wide_ids = true;
      calls[r].topk_weights = layer.weights.data() + first * problem.topk;
      calls[r].y = want.data() + first * problem.hidden;
      first += c.rows[r];
    }
    cpu::RunOptions options;
    options.kernels = &cpu::kernels(0);
    options.threads = threads;
    must(cpu::run_all(*weights, *workspace, calls, options, nullptr));
  }

  void prepare_gpu() {
    int64_t first = 0;
    symmetric = must(cuda::DeviceMemory::make(std::vector<int>(problem.ranks, 0), symmetric_layout(problem)));
    for (int32_t r = 0; r < problem.ranks; ++r) {
      rank_weights.push_back(must(cuda::RankWeights::make(problem, weights->placement(), r)));
      for (int32_t s = 0; s < rank_weights[r].num_slots(); ++s) must(rank_weights[r].upload(s, weights->slot_data(r, s)));
      workspaces.push_back(must(cuda::RankWorkspace::make(problem, weights->placement().max_slots())));
      const int64_t rows = c.rows[r];
      Device device;
      device.x = upload(layer.x.data() + first * problem.hidden, rows * problem.hidden * 2);
      device.ids = upload(layer.ids.data() + first * problem.topk, rows * problem.topk * 8);
      device.weights = upload(layer.weights.data() + first * problem.topk, rows * problem.topk * 4);
      device.y = must(cuda::DeviceBuffer::make(rows * problem.hidden * 2, "output"));
      devices.push_back(std::move(device));
      cudaStream_t stream;
      must(cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
      streams.push_back(stream);
      first += rows;
    }
  }

  cuda::Params params(int32_t r) {
    cuda::Params p{};
    p.problem = problem;
    p.experts = expert_layout(problem);
    p.symmetric = symmetric_layout(problem);
    p.local = cuda::gpu_workspace_layout(problem, weights->placement().max_slots());
    p.self = r;
    p.num_slots = rank_weights[r].num_slots();
    for (int64_t peer = 0; peer < problem.ranks; ++peer) p.peers[peer] = reinterpret_cast<uint8_t*>(symmetric->base(peer));
    p.workspace = workspaces[r].local();
    p.scratch = workspaces[r].scratch();
    p.state = workspaces[r].state();
    p.error = workspaces[r].error();
    p.slot_data = rank_weights[r].slot_data();
    p.serving = rank_weights[r].serving();
    p.swiglu_limit = c.limit;
    p.layer_tag = 1;
    p.timeout_ns = 5'000'000'000ull;
    p.num_tokens = c.rows[r];
    p.x = devices[r].x.data();
    p.topk_ids = devices[r].ids.data();
    p.wide_ids = true;
    p.topk_weights = reinterpret_cast<const float*>(devices[r].weights.data());
    p.y = reinterpret_cast<uint16_t*>(devices[r].y.data());
    return p;
  }

  // Number of differing elements; prints the first.
  int64_t run_gpu(int sms, int launch, float* us = nullptr) {
    for (auto& device : devices) must(cuda::check(cudaMemset(device.y.data(), 0xEE, device.y.bytes()), "poisoning y"));
    must(cuda::check(cudaDeviceSynchronize(), "poisoning y"));
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, streams[0]);
    for (int32_t r = 0; r < problem.ranks; ++r) {
      must(cuda::launch_moe_kernel(params(r), static_cast<int>(sms / problem.ranks), streams[r]));
    }
    cudaEventRecord(end, streams[0]);
    must(cuda::check(cudaDeviceSynchronize(), "running the kernel"));
    if (us != nullptr) {
      cudaEventElapsedTime(us, begin, end);
      *us *= 1000.0f;
    }
    int64_t bad = 0, first = 0;
    for (int32_t r = 0; r < problem.ranks; ++r) {
      const cuda::DeviceError& e = *workspaces[r].error();
      if (e.code != 0) {
        std::printf("  rank %d launch %d: error code %llu task %llu flag %llu peer %llu expected %llu seen %llu item %llu\n", r, launch,
                    (unsigned long long)e.code, (unsigned long long)e.task, (unsigned long long)e.flag, (unsigned long long)e.peer,
                    (unsigned long long)e.expected, (unsigned long long)e.seen, (unsigned long long)e.item);
        return c.tokens * problem.hidden + 1;
      }
      std::vector<uint16_t> got(c.rows[r] * problem.hidden);
      must(cuda::check(cudaMemcpy(got.data(), devices[r].y.data(), got.size() * 2, cudaMemcpyDeviceToHost), "copying y"));
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == want[first + i]) continue;
        if (bad++ == 0) {
          std::printf("  rank %d launch %d token %zu channel %zu: got %04x want %04x\n", r, launch, i / problem.hidden, i % problem.hidden, got[i],
                      want[first + i]);
        }
      }
      first += got.size();
    }
    return bad;
  }
};

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("kernel_check: SKIPPED, no CUDA device here\n");
    return 4;
  }
  cudaDeviceProp device{};
  must(cuda::check(cudaGetDeviceProperties(&device, 0), "reading the device"));
  must(cuda::prepare_device());
  int passed = 0, failed = 0;
  for (int arg = 1; arg < argc; ++arg) {
    for (const ListedCase& listed : must(read_case_file(argv[arg]))) {
      if (listed.parsed.problem.ranks > device.multiProcessorCount) continue;
      CaseRun run(listed.parsed);
      run.run_cpu(8);
      run.prepare_gpu();
      int64_t bad = 0;
      float us = 0, best = 1e9f;
      for (int launch = 0; launch < 5 && bad == 0; ++launch) {
        bad = run.run_gpu(device.multiProcessorCount, launch, &us);
        best = us < best ? us : best;
      }
      std::printf("%s %s (%lld differ, %.1f us)\n", bad == 0 ? "ok" : "FAILED", listed.line.c_str(), (long long)bad, best);
      std::fflush(stdout);
      (bad == 0 ? passed : failed)++;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
