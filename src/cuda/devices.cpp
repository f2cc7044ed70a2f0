// See devices.hpp.
#include "cuda/devices.hpp"

#include <fmt/format.h>

#include "cuda/launch.hpp"
#include "cuda/status.hpp"

namespace monomoe::cuda {
namespace {

struct Gpu {
  int number;
  std::string name;
  int multiprocessors;
};

Result<std::vector<Gpu>> hopper_gpus() {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    (void)cudaGetLastError();
    return unavailable(fmt::format("no usable GPU: CUDA says {}, {}", cudaGetErrorName(status), cudaGetErrorString(status)));
  }
  std::vector<Gpu> gpus;
  std::string others;
  for (int number = 0; number < count; ++number) {
    cudaDeviceProp device{};
    if (auto read = check(cudaGetDeviceProperties(&device, number), fmt::format("reading GPU {}", number)); !read) return read.error();
    if (device.major == 9 && device.minor == 0) gpus.push_back({number, device.name, device.multiProcessorCount});
    else others += fmt::format("{}GPU {} is {} ({}.{})", others.empty() ? "" : ", ", number, device.name, device.major, device.minor);
  }
  if (gpus.empty()) {
    return unavailable(fmt::format("no Hopper GPU (compute capability 9.0: H100, H200, H20); found: {}", others.empty() ? "no GPU" : others));
  }
  return gpus;
}

// Every pair, so that one run shows everything that is wrong.
Result<void> enable_peer_access(const std::vector<int>& gpus) {
  std::string missing;
  for (const int from : gpus) {
    for (const int to : gpus) {
      int can = 0;
      if (from == to) continue;
      if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can == 0) {
        missing += fmt::format("{}GPU {} -> GPU {}", missing.empty() ? "" : ", ", from, to);
        continue;
      }
      const CurrentGpu current(from);
      const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
      (void)cudaGetLastError();
      if (status == cudaSuccess || status == cudaErrorPeerAccessAlreadyEnabled) continue;
      missing += fmt::format("{}GPU {} -> GPU {} ({})", missing.empty() ? "" : ", ", from, to, cudaGetErrorName(status));
    }
  }
  if (missing.empty()) return {};
  return unavailable(fmt::format("no peer access for {}; the ranks write into each other's memory: take GPUs joined by NVLink with "
                                 "CUDA_VISIBLE_DEVICES, or show one GPU only to run all ranks on it", missing));
}

Result<void> prepare(const std::vector<int>& gpus) {
  for (const int gpu : gpus) {
    const CurrentGpu current(gpu);
    if (auto done = prepare_device(); !done) return done;
  }
  return {};
}

Result<Topology> one_gpu_each(const std::vector<Gpu>& gpus, int ranks) {
  Topology topology;
  topology.end_rank = ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    topology.gpu.push_back(gpus[rank].number);
    topology.thread_blocks.push_back(gpus[rank].multiprocessors);
  }
  if (auto enabled = enable_peer_access(topology.gpu); !enabled) return enabled.error();
  if (auto done = prepare(topology.gpu); !done) return done.error();
  topology.description = ranks == 1 ? fmt::format("1 rank on GPU {} ({})", gpus[0].number, gpus[0].name)
                                    : fmt::format("{} ranks on {} GPUs ({}), one each", ranks, ranks, gpus[0].name);
  return topology;
}

Result<Topology> all_on_one_gpu(const Gpu& gpu, size_t gpus, int ranks) {
  const int share = gpu.multiprocessors / ranks;
  if (share < 1) {
    return unavailable(fmt::format("{} ranks on GPU {} ({}): its {} multiprocessors are the limit of ranks it can hold together; use fewer ranks "
                                   "or show as many GPUs as ranks", ranks, gpu.number, gpu.name, gpu.multiprocessors));
  }
  if (auto done = prepare({gpu.number}); !done) return done.error();
  Topology topology;
  topology.end_rank = ranks;
  topology.gpu.assign(ranks, gpu.number);
  topology.thread_blocks.assign(ranks, share);
  topology.description = fmt::format("{} ranks on GPU {} ({}), {} thread blocks each, since only {} Hopper GPU{} visible", ranks, gpu.number,
                                     gpu.name, share, gpus, gpus == 1 ? " is" : "s are");
  return topology;
}

// The GPU of a rank of a world: the one its caller counts from 1, or the thread's current one.
Result<Gpu> named_gpu(const std::vector<Gpu>& gpus, int number) {
  const bool is_current = number < 0;
  if (is_current) {
    if (auto got = check(cudaGetDevice(&number), "asking for the current GPU"); !got) return got.error();
  }
  std::string found;
  for (const Gpu& gpu : gpus) {
    if (gpu.number == number) return gpu;
    found += fmt::format("{}{}", found.empty() ? "" : ", ", gpu.number);
  }
  const std::string which = is_current ? fmt::format("GPU {}, the calling thread's current one,", number)
                                       : fmt::format("GPU {} (options->gpu is {}, counted from 1)", number, number + 1);
  return unavailable(fmt::format("{} is not a Hopper GPU that this process sees; Hopper GPUs here: {}", which, found));
}

}  // namespace

Result<Topology> world_topology(const WorldGpu& world) {
  auto gpus = hopper_gpus();
  if (!gpus) return gpus.error();
  auto gpu = named_gpu(gpus.value(), world.gpu);
  if (!gpu) return gpu.error();
  const Gpu& found = gpu.value();
  const int share = found.multiprocessors / world.ranks_per_gpu;
  if (share < 1) {
    return unavailable(fmt::format("options->ranks_per_gpu is {}, but GPU {} ({}) has {} multiprocessors, one a rank at least", world.ranks_per_gpu,
                                   found.number, found.name, found.multiprocessors));
  }
  if (auto done = prepare({found.number}); !done) return done.error();
  Topology topology;
  topology.first_rank = world.rank;
  topology.end_rank = world.rank + 1;
  topology.is_world = true;
  topology.gpu.assign(world.ranks, -1);
  topology.gpu[world.rank] = found.number;
  topology.thread_blocks.assign(world.ranks, share);
  topology.description = fmt::format("rank {} of {} on GPU {} ({}), {} thread blocks", world.rank, world.ranks, found.number, found.name, share);
  return topology;
}

Result<Topology> choose_topology(int ranks) {
  auto gpus = hopper_gpus();
  if (!gpus) return gpus.error();
  const std::vector<Gpu>& found = gpus.value();
  return static_cast<int>(found.size()) >= ranks ? one_gpu_each(found, ranks) : all_on_one_gpu(found[0], found.size(), ranks);
}

}  // namespace monomoe::cuda
