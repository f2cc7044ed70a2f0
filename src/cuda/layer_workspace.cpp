// See layer_workspace.hpp.
#include "cuda/layer_workspace.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "cuda/fault_text.hpp"

namespace monomoe::cuda {
namespace {

// Launches of several ranks wait for each other, so those of two calls must not mix on one GPU: a call waits for the one before.
std::mutex& one_call_at_a_time() {
  static std::mutex lock;
  return lock;
}

bool is_host_memory(const void* pointer) {
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, pointer);
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status != cudaSuccess || attributes.type == cudaMemoryTypeUnregistered || attributes.type == cudaMemoryTypeHost;
}

Result<void> grow(DeviceBuffer& buffer, int64_t bytes, const char* what) {
  if (buffer.bytes() >= bytes) return {};
  buffer = DeviceBuffer();
  auto made = DeviceBuffer::make(bytes, what);
  if (!made) return made.error();
  buffer = made.take();
  return {};
}

// One input: pointer becomes GPU memory that holds the same. room: bytes the buffer then has at least.
template <class T>
Result<void> stage_input(DeviceBuffer& buffer, const T*& pointer, int64_t bytes, int64_t room, const char* what, cudaStream_t stream) {
  if (bytes == 0 || !is_host_memory(pointer)) return {};
  if (auto grown = grow(buffer, max_of(bytes, room), what); !grown) return grown;
  auto copied = check(cudaMemcpyAsync(buffer.data(), pointer, bytes, cudaMemcpyHostToDevice, stream), std::string("copying ") + what);
  pointer = reinterpret_cast<const T*>(buffer.data());
  return copied;
}

}  // namespace

Result<std::unique_ptr<Workspace>> LayerWorkspace::make(const Topology& topology, const Problem& problem, int64_t max_slots,
                                                        uint32_t timeout_ms, LaunchVariant variant, const WorldRank* world) {
  std::unique_ptr<LayerWorkspace> workspace(new LayerWorkspace(topology, problem, max_slots, timeout_ms, variant));
  workspace->staging_.resize(problem.ranks);
  workspace->memory_.resize(problem.ranks);
  workspace->streams_.resize(problem.ranks);
  for (int32_t rank = topology.first_rank; rank < topology.end_rank; ++rank) {
    const CurrentGpu current(topology.gpu[rank]);
    auto memory = RankWorkspace::make(problem, max_slots, variant);
    if (!memory) {
      return Error{memory.error().status, fmt::format("rank {} on GPU {}: {}; lower the capacity or use more GPUs", rank, topology.gpu[rank],
                                                      memory.error().message)};
    }
    workspace->memory_[rank] = memory.take();
    auto stream = make_stream();
    if (!stream) return stream.error();
    workspace->streams_[rank] = stream.take();
  }
  // Last: the ranks of a world may write into each other's memory as soon as they have met.
  if (auto made = workspace->make_symmetric(world); !made) return made.error();
  return std::unique_ptr<Workspace>(std::move(workspace));
}

Result<void> LayerWorkspace::make_symmetric(const WorldRank* world) {
  const SymmetricLayout layout = symmetric_layout(problem_);
  if (world == nullptr) {
    auto made = DeviceMemory::make(topology_.gpu, layout);
    if (!made) return made.error();
    symmetric_ = made.take();
    return {};
  }
  const int gpu = topology_.gpu[world->rank];
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    cudaPointerAttributes place{};
    const bool is_own = rank == world->rank, is_known = cudaPointerGetAttributes(&place, world->peers[rank]) == cudaSuccess;
    if (!is_known) (void)cudaGetLastError();
    if (!is_own && !is_known) continue;  // of a GPU that this process does not see the runtime may know no place; the exchange below reaches it or says why not
    const bool is_gpu = is_known && place.type == cudaMemoryTypeDevice;
    if (is_gpu && (!is_own || place.device == gpu)) continue;
    const std::string found = is_gpu ? fmt::format("memory of GPU {}", place.device) : "not GPU memory";
    const std::string wanted = is_own ? fmt::format("GPU {}, which this rank runs on", gpu) : fmt::format("rank {}'s GPU, mapped for GPU {}", rank, gpu);
    return usage_error(fmt::format("options->peers[{}] is {}, wanted memory of {}", rank, found, wanted));
  }
  symmetric_ = std::make_unique<ExternalDeviceMemory>(world->peers, layout.bytes, gpu);
  return exchange_fingerprints(*symmetric_, problem_, WorldBackend::kCuda, *world);
}

LayerWorkspace::~LayerWorkspace() {
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    const CurrentGpu current(topology_.gpu[rank]);
    cudaDeviceSynchronize();  // calls on streams may still use the memory
  }
}

Result<RankCall> LayerWorkspace::stage(int32_t rank, const RankCall& call, int64_t hidden) {
  RankCall staged = call;
  if (call.num_tokens == 0) return staged;
  const CurrentGpu current(topology_.gpu[rank]);
  Staging& staging = staging_[rank];
  const cudaStream_t stream = streams_[rank].get();
  const int64_t tokens = call.num_tokens, routes = tokens * problem_.topk;
  // A rank of a world makes room for all calls at once: to free a buffer waits for the GPU, and launches of other ranks there may wait for this one.
  const int64_t room = topology_.is_world ? problem_.capacity : 0;
  const int64_t row = hidden * (call.x_scales != nullptr ? 1 : 2), scales = call.x_scales != nullptr ? hidden / kBlockK * 4 : 0;
  if (auto done = stage_input(staging.x, staged.x, tokens * row, room * hidden * 2, "x", stream); !done) return done.error();
  if (auto done = stage_input(staging.x_scales, staged.x_scales, tokens * scales, room * scales, "x_scales", stream); !done) return done.error();
  const int64_t id_bytes = routes * (call.wide_ids ? 8 : 4);
  if (auto done = stage_input(staging.ids, staged.topk_ids, id_bytes, room * problem_.topk * 8, "topk_ids", stream); !done) return done.error();
  if (auto done = stage_input(staging.weights, staged.topk_weights, routes * 4, room * problem_.topk * 4, "topk_weights", stream); !done) {
    return done.error();
  }
  if (is_host_memory(call.y)) {
    if (auto grown = grow(staging.y, max_of(tokens, room) * hidden * 2, "y"); !grown) return grown.error();
    staged.y = reinterpret_cast<uint16_t*>(staging.y.data());
  }
  return staged;
}

Params LayerWorkspace::params(const LayerWeights& weights, int32_t rank, const RankCall& call) const {
  Params p{};
  p.problem = weights.problem();
  p.problem.topk = problem_.topk;
  p.problem.ranks = problem_.ranks;
  p.problem.capacity = problem_.capacity;
  p.experts = expert_layout(weights.problem());
  p.symmetric = symmetric_layout(problem_);
  p.local = gpu_workspace_layout(problem_, max_slots_);
  p.self = rank;
  p.num_slots = weights.rank(rank).num_slots();
  for (int32_t peer = 0; peer < ranks(); ++peer) p.peers[peer] = reinterpret_cast<uint8_t*>(symmetric_->base(peer));
  p.workspace = memory_[rank].local();
  p.scratch = memory_[rank].scratch();
  p.state = memory_[rank].state();
  p.error = memory_[rank].error();
  p.packed_experts = weights.rank(rank).packed_experts();
  p.serving = weights.rank(rank).serving();
  p.swiglu_limit = weights.swiglu_limit();
  p.layer_tag = weights.tag();
  p.timeout_ns = uint64_t{timeout_ms_} * 1'000'000;
  p.num_tokens = call.num_tokens;
  p.num_tokens_device = call.num_tokens_device;
  p.x = call.x;
  p.x_scales = call.x_scales;
  p.topk_ids = call.topk_ids;
  p.wide_ids = call.wide_ids;
  p.topk_weights = call.topk_weights;
  p.y = call.y;
  return p;
}

RankLaunch LayerWorkspace::rank_launch(const LayerWeights& weights, int32_t rank, const RankCall& call) const {
  return {variant_, params(weights, rank, call), topology_.thread_blocks[rank], memory_[rank].unfused(), max_slots_};
}

Result<void> LayerWorkspace::launch(const RankLaunch& launch, int index, cudaStream_t stream) const {
  const int32_t rank = launch.params.self;
  const CurrentGpu current(topology_.gpu[rank]);
  (void)cudaGetLastError();  // of an earlier call, perhaps the caller's: not this launch's
  auto launched = launch_part(launch, index, stream);
  if (launched) return {};
  return Error{launched.error().status, fmt::format("rank {} on GPU {}: {}", rank, topology_.gpu[rank], launched.error().message)};
}

// Waits for every rank here, then looks at the records, then writes the outputs.
Result<void> LayerWorkspace::finish(std::span<const RankCall> calls, std::span<const RankCall> staged, int64_t hidden) {
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    const CurrentGpu current(topology_.gpu[rank]);
    auto done = check(cudaStreamSynchronize(streams_[rank].get()), fmt::format("running rank {} on GPU {}", rank, topology_.gpu[rank]));
    if (!done) poison(done.error());
  }
  if (auto fine = condition(); !fine) return fine;
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    if (staged[rank].y == calls[rank].y || calls[rank].num_tokens == 0) continue;
    const CurrentGpu current(topology_.gpu[rank]);
    const int64_t bytes = calls[rank].num_tokens * hidden * 2;
    const cudaStream_t stream = streams_[rank].get();
    auto copied = check(cudaMemcpyAsync(calls[rank].y, staged[rank].y, bytes, cudaMemcpyDeviceToHost, stream), "copying y");
    if (copied) copied = check(cudaStreamSynchronize(stream), "copying y");
    if (!copied) return copied;
  }
  return {};
}

Result<void> LayerWorkspace::run(std::span<Weights* const> weights, std::span<const RankCall> calls, double* wall) {
  // A rank of a world has its call alone; the others come from elsewhere, perhaps from another thread of this process.
  std::unique_lock lock(one_call_at_a_time(), std::defer_lock);
  if (!topology_.is_world) lock.lock();
  const auto begin = std::chrono::steady_clock::now();
  const auto layer = [&](int32_t rank) -> const LayerWeights& { return static_cast<const LayerWeights&>(*weights[rank]); };
  const int64_t hidden = problem_.hidden;
  // All of the staging before any launch: it may allocate, and that may wait for launches that wait for this rank.
  std::vector<RankCall> staged(calls.size());
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    auto one = stage(rank, calls[rank], hidden);
    if (!one) return one.error();
    staged[rank] = one.take();
  }
  std::vector<RankLaunch> launches;
  launches.resize(calls.size());
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) launches[rank] = rank_launch(layer(rank), rank, staged[rank]);
  Result<void> launched;
  for (int index = 0; index < num_launches(variant_) && launched; ++index) {
    for (int32_t rank = topology_.first_rank; rank < topology_.end_rank && launched; ++rank) launched = launch(launches[rank], index, streams_[rank].get());
  }
  if (!launched) poison(launched.error());  // ranks that were launched wait for the others, run into the timeout and leave
  if (auto done = finish(calls, staged, hidden); !done) return done;
  if (wall != nullptr) *wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {};
}

Result<void> LayerWorkspace::enqueue(Weights& weights, int32_t rank, const RankCall& call, void* stream) {
  const RankLaunch one = rank_launch(static_cast<const LayerWeights&>(weights), rank, call);
  for (int index = 0; index < num_launches(variant_); ++index) {
    auto launched = launch(one, index, static_cast<cudaStream_t>(stream));
    if (launched) continue;
    if (index > 0) poison(launched.error());  // half a call: the others wait for the rest
    return launched;
  }
  return {};
}

Result<void> LayerWorkspace::enqueue_part(const LayerWeights& weights, int32_t rank, const RankCall& call, int part, const TraceBuffer& trace,
                                          cudaStream_t stream) {
  RankLaunch one = rank_launch(weights, rank, call);
  one.params.trace = trace.events;
  one.params.trace_events = trace.per_block;
  auto launched = launch(one, part, stream);
  if (!launched && (part > 0 || ranks() > 1)) poison(launched.error());  // half a call
  return launched;
}

bool LayerWorkspace::is_capturing(int32_t rank, void* stream) const {
  const CurrentGpu current(topology_.gpu[rank]);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) (void)cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

Result<void> LayerWorkspace::condition() const {
  {
    const std::lock_guard lock(cause_lock_);
    if (cause_) return *cause_;
  }
  // The rank that gave up tells more than those that left because of it.
  const DeviceError* of_peer = nullptr;
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    DeviceError* record = memory_[rank].error();
    const auto code = static_cast<DeviceErrorCode>(std::atomic_ref(record->code).load(std::memory_order_acquire));
    if (code == DeviceErrorCode::kPeerAborted) of_peer = record;
    else if (code != DeviceErrorCode::kNone) return fault_error(*record, problem_, timeout_ms_);
  }
  return of_peer == nullptr ? Result<void>{} : fault_error(*of_peer, problem_, timeout_ms_);
}

void LayerWorkspace::poison(Error cause) {
  const std::lock_guard lock(cause_lock_);
  if (!cause_) cause_ = std::move(cause);
}

Result<void> LayerWorkspace::fill(uint8_t byte) {
  const SymmetricLayout symmetric = symmetric_layout(problem_);
  const WorkspaceLayout local = gpu_workspace_layout(problem_, max_slots_);
  for (int32_t rank = topology_.first_rank; rank < topology_.end_rank; ++rank) {
    const CurrentGpu current(topology_.gpu[rank]);
    std::byte* shared = symmetric_->base(rank) + symmetric.route_ids;
    uint8_t* own = memory_[rank].local() + local.own_scales;
    if (auto done = check(cudaMemset(shared, byte, symmetric.bytes - symmetric.route_ids), "filling symmetric memory"); !done) return done;
    if (auto done = check(cudaMemset(own, byte, local.bytes - local.own_scales), "filling the workspace"); !done) return done;
    const int64_t unfused = memory_[rank].unfused_bytes();
    if (auto done = check(unfused > 0 ? cudaMemset(memory_[rank].unfused(), byte, unfused) : cudaSuccess, "filling fp32 sums"); !done) return done;
    if (auto done = check(cudaDeviceSynchronize(), "filling the workspace"); !done) return done;
  }
  return {};
}

}  // namespace monomoe::cuda
