// The CUDA backend's launches against the CPU backend, bit for bit: every case line given, ranks as several streams on one GPU. Each launch is made
// with every form the input may come in. Usage: kernel_check [--launch one|split|unfused] FILE... (all launches without it). Prints a line for each
// case and launch and a summary. Exit code 4 without a GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cpu/executor.hpp"
#include "cuda/launch.hpp"
#include "cuda/rank_memory.hpp"
#include "cuda/symmetric_memory.hpp"
#include "reference/layer_input.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

using namespace monomoe;

namespace {

// One rank's input in all of its forms, and its output.
struct Device {
  cuda::DeviceBuffer x, codes, scales, wide_ids, narrow_ids, weights, num_tokens, y;
};

struct Form {
  bool quantised, wide_ids, tokens_on_device;
};
constexpr Form kForms[] = {{false, true, false}, {false, false, true}, {true, true, true}, {true, false, false}, {false, true, false}};

struct NamedLaunch {
  const char* name;
  cuda::LaunchVariant variant;
};
constexpr NamedLaunch kLaunches[] = {
    {"one", cuda::LaunchVariant::kOne}, {"split", cuda::LaunchVariant::kSplit}, {"unfused", cuda::LaunchVariant::kUnfused}};

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
  StagedTokens staged;
  Problem problem;
  std::unique_ptr<cpu::CpuWeights> weights;
  std::vector<uint16_t> want;
  std::vector<cuda::RankWeights> rank_weights;
  std::unique_ptr<SymmetricMemory> symmetric;
  std::vector<cuda::RankWorkspace> workspaces;  // of the launch under test
  std::vector<Device> devices;
  std::vector<cudaStream_t> streams;

  explicit CaseRun(const Case& parsed) : c(parsed), layer(random_layer(parsed)), staged(stage_tokens(layer.input(parsed))), problem(parsed.problem) {
    weights = std::make_unique<cpu::CpuWeights>(must(cpu::CpuWeights::create(problem, must(placement_of(c)), c.limit)));
    const auto sources = layer.sources();
    for (int64_t e = 0; e < problem.experts; ++e) must(pack_expert(sources[e], problem, weights->expert_data(static_cast<int32_t>(e))));
  }
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;
  ~CaseRun() {
    for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
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

  // Rows [first, first + rows) of the case in every form.
  Device upload_rows(int64_t first, int64_t rows) const {
    const int64_t values = rows * problem.hidden, blocks = rows * problem.hidden_blocks(), routes = rows * problem.topk;
    const std::vector<int32_t> narrow(layer.ids.begin() + first * problem.topk, layer.ids.begin() + (first + rows) * problem.topk);
    Device device;
    device.x = upload(layer.x.data() + first * problem.hidden, values * 2);
    device.codes = upload(staged.codes.data() + first * problem.hidden, values);
    device.scales = upload(staged.scales.data() + first * problem.hidden_blocks(), blocks * 4);
    device.wide_ids = upload(layer.ids.data() + first * problem.topk, routes * 8);
    device.narrow_ids = upload(narrow.data(), routes * 4);
    device.weights = upload(layer.weights.data() + first * problem.topk, routes * 4);
    device.num_tokens = upload(&rows, sizeof(rows));
    device.y = must(cuda::DeviceBuffer::make(values * 2, "output"));
    return device;
  }

  void prepare_gpu() {
    int64_t first = 0;
    for (int32_t r = 0; r < problem.ranks; ++r) {
      rank_weights.push_back(must(cuda::RankWeights::make(problem, weights->placement(), r)));
      for (int32_t s = 0; s < rank_weights[r].num_slots(); ++s) must(rank_weights[r].upload(s, weights->slot_data(r, s)));
      devices.push_back(upload_rows(first, c.rows[r]));
      cudaStream_t stream;
      must(cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
      streams.push_back(stream);
      first += c.rows[r];
    }
  }

  // Symmetric memory too: a workspace counts its calls from 1, and flags that another one left there would end its waits at once.
  void make_workspaces(cuda::LaunchVariant variant) {
    workspaces.clear();
    symmetric = must(cuda::DeviceMemory::make(std::vector<int>(problem.ranks, 0), symmetric_layout(problem)));
    for (int32_t r = 0; r < problem.ranks; ++r) workspaces.push_back(must(cuda::RankWorkspace::make(problem, weights->placement().max_slots(), variant)));
  }

  cuda::Params params(int32_t r, const Form& form) {
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
    p.packed_experts = rank_weights[r].packed_experts();
    p.serving = rank_weights[r].serving();
    p.swiglu_limit = c.limit;
    p.layer_tag = 1;
    p.timeout_ns = 5'000'000'000ull;
    const Device& device = devices[r];
    p.num_tokens = form.tokens_on_device ? problem.capacity : c.rows[r];
    p.num_tokens_device = form.tokens_on_device ? reinterpret_cast<const int64_t*>(device.num_tokens.data()) : nullptr;
    p.x = form.quantised ? device.codes.data() : device.x.data();
    p.x_scales = form.quantised ? reinterpret_cast<const float*>(device.scales.data()) : nullptr;
    p.topk_ids = form.wide_ids ? device.wide_ids.data() : device.narrow_ids.data();
    p.wide_ids = form.wide_ids;
    p.topk_weights = reinterpret_cast<const float*>(device.weights.data());
    p.y = reinterpret_cast<uint16_t*>(device.y.data());
    return p;
  }

  // Every rank's call; microseconds on rank 0's stream.
  float launch(cuda::LaunchVariant variant, int sms, const Form& form) {
    std::vector<cuda::RankLaunch> calls;
    for (int32_t r = 0; r < problem.ranks; ++r) {
      calls.push_back({variant, params(r, form), static_cast<int>(sms / problem.ranks), workspaces[r].unfused(), weights->placement().max_slots()});
    }
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, streams[0]);
    for (int part = 0; part < cuda::num_launches(variant); ++part) {
      for (int32_t r = 0; r < problem.ranks; ++r) must(cuda::launch_part(calls[r], part, streams[r]));
    }
    cudaEventRecord(end, streams[0]);
    must(cuda::check(cudaDeviceSynchronize(), "running the kernel"));
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms * 1000.0f;
  }

  // Number of differing elements; prints the first.
  int64_t compare(const char* what) {
    int64_t bad = 0, first = 0;
    for (int32_t r = 0; r < problem.ranks; ++r) {
      const cuda::DeviceError& e = *workspaces[r].error();
      if (e.code != 0) {
        std::printf("  rank %d %s: error code %llu task %llu flag %llu peer %llu expected %llu seen %llu item %llu\n", r, what,
                    (unsigned long long)e.code, (unsigned long long)e.task, (unsigned long long)e.flag, (unsigned long long)e.peer,
                    (unsigned long long)e.expected, (unsigned long long)e.seen, (unsigned long long)e.item);
        return c.tokens * problem.hidden + 1;
      }
      std::vector<uint16_t> got(c.rows[r] * problem.hidden);
      must(cuda::check(cudaMemcpy(got.data(), devices[r].y.data(), got.size() * 2, cudaMemcpyDeviceToHost), "copying y"));
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == want[first + i]) continue;
        if (bad++ == 0) {
          std::printf("  rank %d %s token %zu channel %zu: got %04x want %04x\n", r, what, i / problem.hidden, i % problem.hidden, got[i],
                      want[first + i]);
        }
      }
      first += got.size();
    }
    return bad;
  }

  // What a call must write before it reads it: y, and all memory of its workspace but flags and counters. Else rows of the call before, which are the same, would
  // hide a wait that is missing.
  void poison() {
    const SymmetricLayout symmetric_at = symmetric_layout(problem);
    const WorkspaceLayout local_at = cuda::gpu_workspace_layout(problem, weights->placement().max_slots());
    for (int32_t r = 0; r < problem.ranks; ++r) {
      must(cuda::check(cudaMemset(devices[r].y.data(), 0xEE, devices[r].y.bytes()), "poisoning y"));
      must(cuda::check(cudaMemset(workspaces[r].local(), 0xEE, local_at.bytes), "poisoning a workspace"));
      auto* base = reinterpret_cast<uint8_t*>(symmetric->base(r));
      must(cuda::check(cudaMemset(base + symmetric_at.route_ids, 0xEE, symmetric_at.bytes - symmetric_at.route_ids), "poisoning symmetric memory"));
    }
    must(cuda::check(cudaDeviceSynchronize(), "poisoning"));
  }

  // All forms of the input, one call after the other on the same workspaces. True if every bit is the CPU's.
  bool run_gpu(const NamedLaunch& named, int sms, const std::string& line) {
    make_workspaces(named.variant);
    int64_t bad = 0;
    float best = 1e9f;
    for (size_t call = 0; call < std::size(kForms) && bad == 0; ++call) {
      poison();
      const Form& form = kForms[call];
      best = std::min(best, launch(named.variant, sms, form));
      const std::string what = std::string("call ") + std::to_string(call) + (form.quantised ? " e4m3" : " bf16") + (form.wide_ids ? " i64" : " i32") +
                               (form.tokens_on_device ? " counted on the GPU" : "");
      bad = compare(what.c_str());
    }
    std::printf("%s launch=%s %s (%lld differ, %.1f us)\n", bad == 0 ? "ok" : "FAILED", named.name, line.c_str(), (long long)bad, best);
    std::fflush(stdout);
    return bad == 0;
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  std::vector<std::string> files;
  for (int arg = 1; arg < argc; ++arg) {
    if (std::strcmp(argv[arg], "--launch") != 0) files.push_back(argv[arg]);
    else only = arg + 1 < argc ? argv[++arg] : "nothing";
  }
  const bool known = only.empty() || std::ranges::any_of(kLaunches, [&](const NamedLaunch& launch) { return only == launch.name; });
  if (!known || files.empty()) {
    std::fprintf(stderr, "usage: kernel_check [--launch one|split|unfused] FILE...\n");
    return 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("kernel_check: SKIPPED, no CUDA device here\n");
    return 4;
  }
  cudaDeviceProp device{};
  must(cuda::check(cudaGetDeviceProperties(&device, 0), "reading the device"));
  must(cuda::prepare_device());
  int passed = 0, failed = 0;
  for (const std::string& file : files) {
    for (const ListedCase& listed : must(read_case_file(file))) {
      if (listed.parsed.problem.ranks > device.multiProcessorCount) continue;
      CaseRun run(listed.parsed);
      run.run_cpu(8);
      run.prepare_gpu();
      for (const NamedLaunch& launch : kLaunches) {
        if (!only.empty() && only != launch.name) continue;
        (run.run_gpu(launch, device.multiProcessorCount, listed.line) ? passed : failed)++;
      }
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
