// See layer_bench.hpp.
#include "cuda/bench/layer_bench.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/bench/gemm_rate.hpp"
#include "cuda/bench/kernels.hpp"
#include "cuda/unfused/steps.hpp"

namespace monomoe::cuda {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;  // five times the L2
constexpr int kWarmUps = 2, kReadSamples = 9;
constexpr uint8_t kFirstPoison = 0xFF, kLaterPoison = 0;

// The flush takes about 70 us, the host about 4 us for a launch.
int flushes_to_enqueue(int launches) { return 1 + launches / 8; }

Result<void> launched(const char* doing) { return check(cudaGetLastError(), doing); }

}  // namespace

Result<std::unique_ptr<Bench>> LayerBench::make(const Topology& topology) {
  std::unique_ptr<LayerBench> bench(new LayerBench(topology));
  for (int32_t rank = topology.first_rank; rank < topology.end_rank; ++rank) {
    if (auto added = bench->add_rank(rank); !added) return added.error();
  }
  const int first = bench->gpus_[0].number;
  const CurrentGpu current(first);
  auto gate = make_event();
  if (!gate) return gate.error();
  bench->gate_ = gate.take();
  cudaDeviceProp device{};
  if (auto read = check(cudaGetDeviceProperties(&device, first), "reading the GPU's name"); !read) return read.error();
  bench->device_ = device.name;
  return std::unique_ptr<Bench>(std::move(bench));
}

LayerBench::~LayerBench() {
  for (const Gpu& gpu : gpus_) {
    const CurrentGpu current(gpu.number);
    cudaDeviceSynchronize();  // launches of a call that failed may still use the buffers
  }
}

Result<void> LayerBench::add_gpu(int number) {
  Gpu gpu;
  gpu.number = number;
  auto read = check(cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, number), "counting multiprocessors");
  if (!read) return read;
  auto flush = DeviceBuffer::make(kFlushBytes, "emptying the L2"), sink = DeviceBuffer::make(16, "emptying the L2");
  if (!flush) return flush.error();
  if (!sink) return sink.error();
  auto flushed = make_event();
  if (!flushed) return flushed.error();
  gpu.flush = flush.take();
  gpu.sink = sink.take();
  gpu.flushed = flushed.take();
  gpus_.push_back(std::move(gpu));
  return {};
}

Result<void> LayerBench::add_rank(int32_t rank) {
  const int number = topology_.gpu[rank];
  const CurrentGpu current(number);
  auto gpu = std::ranges::find(gpus_, number, &Gpu::number);
  if (gpu == gpus_.end()) {
    if (auto added = add_gpu(number); !added) return added;
    gpu = std::prev(gpus_.end());
  }
  gpu->ranks.push_back(num_ranks());
  auto stream = make_stream();
  if (!stream) return stream.error();
  auto timer = EventPair::make();
  if (!timer) return timer.error();
  Rank made;
  made.number = rank;
  made.gpu = number;
  made.thread_blocks = topology_.thread_blocks[rank];
  made.stream = stream.take();
  made.timer = timer.take();
  ranks_.push_back(std::move(made));
  return {};
}

Result<void> LayerBench::upload(DeviceBuffer& buffer, const void* data, int64_t bytes, const Rank& rank) const {
  if (buffer.bytes() < bytes) {
    buffer = DeviceBuffer();
    auto made = DeviceBuffer::make(bytes, "the benchmark's tokens");
    if (!made) return made.error();
    buffer = made.take();
  }
  if (data == nullptr || bytes == 0) return {};
  const cudaStream_t stream = rank.stream.get();
  if (auto done = check(cudaMemcpyAsync(buffer.data(), data, bytes, cudaMemcpyHostToDevice, stream), "copying tokens"); !done) return done;
  return check(cudaStreamSynchronize(stream), "copying tokens");
}

Result<LayerBench::Prepared> LayerBench::prepare(const BenchRequest& request) {
  Prepared call{static_cast<LayerWeights&>(*request.weights), static_cast<LayerWorkspace&>(*request.workspace), {}, request.hidden, request.world, {}, nullptr};
  for (int32_t r = 0; r < num_ranks(); ++r) {
    const CurrentGpu current(ranks_[r].gpu);
    Rank& rank = ranks_[r];
    const BenchInput& input = request.ranks[r];
    if (auto done = upload(rank.x, input.x.data(), static_cast<int64_t>(input.x.size_bytes()), rank); !done) return done.error();
    if (auto done = upload(rank.ids, input.ids.data(), static_cast<int64_t>(input.ids.size_bytes()), rank); !done) return done.error();
    if (auto done = upload(rank.weights, input.weights.data(), static_cast<int64_t>(input.weights.size_bytes()), rank); !done) return done.error();
    if (auto done = upload(rank.y, nullptr, input.num_tokens * request.hidden * 2, rank); !done) return done.error();
    RankCall one;
    one.num_tokens = input.num_tokens;
    one.x = rank.x.data();
    one.topk_ids = rank.ids.data();
    one.topk_weights = reinterpret_cast<const float*>(rank.weights.data());
    one.y = reinterpret_cast<uint16_t*>(rank.y.data());
    call.calls.push_back(one);
  }
  return Result<Prepared>(std::move(call));
}

Result<GraphExec> LayerBench::capture(const Prepared& call, int32_t rank) const {
  const CurrentGpu current(ranks_[rank].gpu);
  const cudaStream_t stream = ranks_[rank].stream.get();
  if (auto begun = check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph"); !begun) return begun.error();
  Result<void> enqueued;
  for (int part = 0; part < call.workspace.num_parts() && enqueued; ++part) {
    enqueued = call.workspace.enqueue_part(call.weights, ranks_[rank].number, call.calls[rank], part, {}, stream);
  }
  cudaGraph_t graph = nullptr;
  auto ended = check(cudaStreamEndCapture(stream, &graph), "capturing the graph");
  if (!enqueued) ended = enqueued;
  cudaGraphExec_t exec = nullptr;
  if (ended) ended = check(cudaGraphInstantiate(&exec, graph, 0), "making the graph");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!ended) return ended.error();
  GraphExec made(exec);
  if (auto sent = check(cudaGraphUpload(exec, stream), "uploading the graph"); !sent) return sent.error();
  if (auto done = check(cudaStreamSynchronize(stream), "uploading the graph"); !done) return done.error();
  return Result<GraphExec>(std::move(made));
}

Result<void> LayerBench::flush(const Gpu& gpu, cudaStream_t stream, int times) const {
  for (int i = 0; i < times; ++i) {
    read_memory(gpu.flush.data(), gpu.flush.bytes(), reinterpret_cast<uint32_t*>(gpu.sink.data()), gpu.multiprocessors, stream);
    if (auto done = launched("emptying the L2"); !done) return done;
  }
  return {};
}

Result<void> LayerBench::meet(const Prepared& call) const {
  if (call.world == nullptr) return {};
  if (auto come = call.world->gather(WorldStep::kBench, {}, {}); !come) return come;
  const CurrentGpu current(ranks_[0].gpu);
  for (int part = 0; part < call.workspace.num_parts(); ++part) {
    if (auto done = call.workspace.enqueue_part(call.weights, ranks_[0].number, {}, part, {}, ranks_[0].stream.get()); !done) return done;
  }
  return {};
}

Result<void> LayerBench::open_gate(const Prepared& call, uint8_t poison, int flushes) const {
  for (const Gpu& gpu : gpus_) {
    const CurrentGpu current(gpu.number);
    const cudaStream_t stream = ranks_[gpu.ranks[0]].stream.get();
    for (const int32_t rank : gpu.ranks) {
      const int64_t bytes = call.calls[rank].num_tokens * call.hidden * 2;
      if (bytes == 0) continue;
      if (auto done = check(cudaMemsetAsync(call.calls[rank].y, poison, bytes, stream), "poisoning y"); !done) return done;
    }
    if (auto met = meet(call); !met) return met;
    if (auto done = flush(gpu, stream, flushes); !done) return done;
    if (auto done = check(cudaEventRecord(gpu.flushed.get(), stream), "recording an event"); !done) return done;
  }
  const CurrentGpu current(gpus_[0].number);
  const cudaStream_t first = ranks_[0].stream.get();
  for (const Gpu& gpu : gpus_) {
    if (auto done = check(cudaStreamWaitEvent(first, gpu.flushed.get(), 0), "waiting for an event"); !done) return done;
  }
  if (auto done = check(cudaEventRecord(gate_.get(), first), "recording an event"); !done) return done;
  for (int32_t rank = 1; rank < num_ranks(); ++rank) {
    if (auto done = check(cudaStreamWaitEvent(ranks_[rank].stream.get(), gate_.get(), 0), "waiting for an event"); !done) return done;
  }
  return {};
}

// Part by part over all ranks, as LayerWorkspace::run does it.
Result<void> LayerBench::enqueue(const Prepared& call) const {
  const int parts = call.workspace.num_parts();
  if (!call.graphs.empty()) {
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      const CurrentGpu current(ranks_[rank].gpu);
      if (auto done = check(cudaGraphLaunch(call.graphs[rank].get(), ranks_[rank].stream.get()), "launching the graph"); !done) return done;
    }
    return {};
  }
  for (int part = 0; part < parts; ++part) {
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      TraceBuffer trace;
      if (call.trace != nullptr) {
        const DeviceBuffer& buffer = (*call.trace)[rank * parts + part];
        trace.events = reinterpret_cast<TraceEvent*>(buffer.data());
        trace.per_block = static_cast<int32_t>(buffer.bytes() / static_cast<int64_t>(sizeof(TraceEvent)) / ranks_[rank].thread_blocks);
      }
      const Rank& one = ranks_[rank];
      if (auto done = call.workspace.enqueue_part(call.weights, one.number, call.calls[rank], part, trace, one.stream.get()); !done) return done;
    }
  }
  return {};
}

Result<void> LayerBench::wait(const Prepared& call) const {
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    if (auto done = check(cudaStreamSynchronize(ranks_[rank].stream.get()), fmt::format("running rank {}", ranks_[rank].number)); !done) return done;
  }
  return call.workspace.condition();
}

Result<double> LayerBench::sample(const Prepared& call, BenchMode mode, uint8_t poison) const {
  const bool many = mode == BenchMode::kBackToBack;
  const int launches = num_ranks() * call.workspace.num_parts();
  if (auto done = open_gate(call, poison, flushes_to_enqueue(launches)); !done) return done.error();
  if (many) {  // what the caches then hold is what a call leaves there
    if (auto done = enqueue(call); !done) return done.error();
  }
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    if (auto done = ranks_[rank].timer.begin(ranks_[rank].stream.get()); !done) return done.error();
  }
  const int calls = many ? kBackToBackCalls : 1;
  for (int i = 0; i < calls; ++i) {
    if (auto done = enqueue(call); !done) return done.error();
  }
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    if (auto done = ranks_[rank].timer.end(ranks_[rank].stream.get()); !done) return done.error();
  }
  if (auto done = wait(call); !done) return done.error();
  double slowest = 0;
  for (const Rank& rank : ranks_) {
    auto seconds = rank.timer.seconds();
    if (!seconds) return seconds.error();
    slowest = std::max(slowest, seconds.value() / calls);
  }
  return slowest;
}

Result<std::vector<std::vector<uint16_t>>> LayerBench::outputs(const Prepared& call) const {
  std::vector<std::vector<uint16_t>> all;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    const RankCall& one = call.calls[rank];
    const cudaStream_t stream = ranks_[rank].stream.get();
    all.emplace_back(one.num_tokens * call.hidden);
    std::vector<uint16_t>& y = all.back();
    if (y.empty()) continue;
    if (auto done = check(cudaMemcpyAsync(y.data(), one.y, y.size() * 2, cudaMemcpyDeviceToHost, stream), "copying y"); !done) return done.error();
    if (auto done = check(cudaStreamSynchronize(stream), "copying y"); !done) return done.error();
  }
  return all;
}

// Events between the launches delay them a little, so this is a run of its own.
Result<std::vector<BenchStep>> LayerBench::steps(const Prepared& call, int repeats) const {
  const int parts = call.workspace.num_parts();
  std::vector<BenchStep> steps;
  if (parts == 1 || topology_.gpu.size() != 1) return steps;
  const CurrentGpu current(ranks_[0].gpu);
  const cudaStream_t stream = ranks_[0].stream.get();
  std::vector<EventPair> timers;
  for (int part = 0; part < parts; ++part) {
    auto timer = EventPair::make();
    if (!timer) return timer.error();
    timers.push_back(timer.take());
    steps.push_back({call.workspace.part_name(part), {}});
  }
  for (int i = 0; i < repeats; ++i) {
    if (auto done = open_gate(call, kLaterPoison, flushes_to_enqueue(3 * parts)); !done) return done.error();
    for (int part = 0; part < parts; ++part) {
      if (auto done = timers[part].begin(stream); !done) return done.error();
      if (auto done = call.workspace.enqueue_part(call.weights, 0, call.calls[0], part, {}, stream); !done) return done.error();
      if (auto done = timers[part].end(stream); !done) return done.error();
    }
    if (auto done = wait(call); !done) return done.error();
    for (int part = 0; part < parts; ++part) {
      auto seconds = timers[part].seconds();
      if (!seconds) return seconds.error();
      steps[part].seconds.push_back(seconds.value());
    }
  }
  return steps;
}

Result<BenchSamples> LayerBench::run(const BenchRequest& request) {
  auto prepared = prepare(request);
  if (!prepared) return prepared.error();
  Prepared& call = prepared.value();
  BenchSamples samples;
  if (auto done = sample(call, BenchMode::kCold, kFirstPoison); !done) return done.error();
  auto first = outputs(call);
  if (!first) return first.error();
  samples.first = first.take();
  for (int32_t rank = 0; rank < num_ranks() && request.mode == BenchMode::kGraph; ++rank) {
    auto graph = capture(call, rank);
    if (!graph) return graph.error();
    call.graphs.push_back(graph.take());
  }
  for (int i = 0; i < kWarmUps + request.repeats; ++i) {
    auto seconds = sample(call, request.mode, kLaterPoison);
    if (!seconds) return seconds.error();
    if (i >= kWarmUps) samples.seconds.push_back(seconds.value());
  }
  auto last = outputs(call);
  if (!last) return last.error();
  samples.last = last.take();
  auto steps = this->steps(call, request.repeats);
  if (!steps) return steps.error();
  samples.steps = steps.take();
  return samples;
}

Result<std::vector<GpuRead>> LayerBench::read(const BenchRequest& request) {
  const auto& weights = static_cast<const LayerWeights&>(*request.weights);
  const int64_t expert_bytes = expert_layout(weights.problem()).bytes;
  std::vector<GpuRead> reads;
  for (const Gpu& gpu : gpus_) {
    const CurrentGpu current(gpu.number);
    const Rank& first = ranks_[gpu.ranks[0]];
    const cudaStream_t stream = first.stream.get();
    GpuRead read;
    read.gpu = gpu.number;
    for (int i = 0; i < kReadSamples; ++i) {
      read.bytes = 0;
      if (request.world != nullptr) {  // those that share a GPU read at the same time
        if (auto come = request.world->gather(WorldStep::kBench, {}, {}); !come) return come.error();
      }
      if (auto done = flush(gpu, stream, 1); !done) return done.error();
      if (auto done = first.timer.begin(stream); !done) return done.error();
      for (const int32_t rank : gpu.ranks) {
        // Which experts they are makes no difference to the time: as many from the first on lie in one piece.
        const int64_t bytes = request.ranks[rank].touched_slots * expert_bytes;
        read.bytes += bytes;
        if (bytes == 0) continue;
        read_memory(weights.rank(ranks_[rank].number).slot(0), bytes, reinterpret_cast<uint32_t*>(gpu.sink.data()), gpu.multiprocessors, stream);
        if (auto done = launched("reading the weights"); !done) return done.error();
      }
      if (auto done = first.timer.end(stream); !done) return done.error();
      auto seconds = first.timer.seconds();
      if (!seconds) return seconds.error();
      read.seconds.push_back(seconds.value());
    }
    reads.push_back(std::move(read));
  }
  return reads;
}

Result<GemmRate> LayerBench::gemm() {
  const CurrentGpu current(gpus_[0].number);
  return measure_gemm(gpus_[0].multiprocessors);
}

Result<LaunchTrace> LayerBench::trace(const BenchRequest& request) {
  auto prepared = prepare(request);
  if (!prepared) return prepared.error();
  Prepared& call = prepared.value();
  constexpr int64_t kEvents = 2048;  // of a thread block and launch
  const int parts = call.workspace.num_parts();
  std::vector<DeviceBuffer> buffers;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    for (int part = 0; part < parts; ++part) {
      auto buffer = DeviceBuffer::make(ranks_[rank].thread_blocks * kEvents * static_cast<int64_t>(sizeof(TraceEvent)), "the trace");
      if (!buffer) return buffer.error();
      buffers.push_back(buffer.take());
      if (auto done = check(cudaMemset(buffers.back().data(), 0, buffers.back().bytes()), "clearing the trace"); !done) return done.error();
    }
    if (auto done = check(cudaDeviceSynchronize(), "clearing the trace"); !done) return done.error();
  }
  for (int i = 0; i < kWarmUps; ++i) {
    if (auto done = sample(call, BenchMode::kCold, kLaterPoison); !done) return done.error();
  }
  call.trace = &buffers;
  if (auto done = sample(call, BenchMode::kCold, kLaterPoison); !done) return done.error();
  LaunchTrace trace;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const CurrentGpu current(ranks_[rank].gpu);
    const int32_t blocks = ranks_[rank].thread_blocks;
    trace.thread_blocks += blocks;
    for (int part = 0; part < parts; ++part) {
      const DeviceBuffer& buffer = buffers[rank * parts + part];
      std::vector<TraceEvent> events(blocks * kEvents);
      if (auto done = check(cudaMemcpy(events.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "reading the trace"); !done) {
        return done.error();
      }
      for (int64_t i = 0; i < static_cast<int64_t>(events.size()); ++i) {
        const TraceEvent& event = events[i];
        if (event.time[3] == 0) continue;
        if (i % kEvents == kEvents - 1) trace.complete = false;
        TracedTask task{ranks_[rank].number, static_cast<int32_t>(i / kEvents), event.kind, event.tile, event.count, event.block, {}};
        std::copy(std::begin(event.time), std::end(event.time), task.time);
        trace.tasks.push_back(task);
      }
    }
  }
  return trace;
}

}  // namespace monomoe::cuda
