// Calls on streams and in CUDA graphs: captured at the first call, replayed with other contents, several sizes on one workspace.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "cuda/device_call.hpp"
#include "reference/random_layer.hpp"

namespace monomoe::cuda_test {
namespace {

constexpr const char* kLine = "ranks=1 experts=6 topk=3 tokens=64 hidden=512 inter=192 w=nvfp4 seed=401 limit=3 dist=masked";
constexpr const char* kFp8Line = "ranks=1 experts=6 topk=3 tokens=64 hidden=512 inter=192 w=fp8 seed=402";

struct GraphCloser {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphCloser>;

Graph capture(DeviceSession& session, int32_t rank, int64_t count) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  const cuda::CurrentGpu current(gpu_of(rank, static_cast<int32_t>(session.streams.size())));
  EXPECT_EQ(cudaStreamBeginCapture(session.streams[rank].get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(session.enqueue(rank, count), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(cudaStreamEndCapture(session.streams[rank].get(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  return Graph(executable);
}

// The same experts, other tokens: x, ids and weights of another seed.
AbiLayer with_tokens_of(const AbiLayer& layer, uint64_t seed) {
  Case c = layer.c;
  c.seed = seed;
  AbiLayer other(layer.c);
  const RandomLayer tokens = random_layer(c);
  other.random.x = tokens.x;
  other.random.ids = tokens.ids;
  other.random.weights = tokens.weights;
  return other;
}

class Graphs : public GpuTest {};

TEST_P(Graphs, CapturedAtFirstUseAndReplayedWithOtherContents) {
  for (const char* line : {kLine, kFp8Line}) {
    const AbiLayer layer(line);
    DeviceSession session(layer, 1, 64, GetParam());
    const Graph graph = capture(session, 0, 21);
    for (const uint64_t seed : {11u, 12u, 13u}) {
      const AbiLayer now = with_tokens_of(layer, seed);
      session.tokens[0].write(now, 0, 64);
      ASSERT_EQ(cudaGraphLaunch(graph.get(), session.streams[0].get()), cudaSuccess);
      session.synchronise();
      ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
      EXPECT_TRUE(contract::same_bits(session.tokens[0].output(21), cpu_bits(now, 21), 512)) << line << " seed " << seed;
    }
  }
}

TEST_P(Graphs, SeveralSizesOnOneWorkspaceInAnyOrderAmongPlainCalls) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 1, 64, GetParam());
  session.tokens[0].write(layer, 0, 64);
  const std::vector<uint16_t> want = cpu_bits(layer, 64);
  const Graph small = capture(session, 0, 5), large = capture(session, 0, 64);
  for (const int step : {1, 0, 0, 2, 1, 2, 0, 1, 1, 0}) {
    const int64_t count = step == 0 ? 5 : step == 1 ? 64 : 33;
    session.tokens[0].write(layer, 0, 64);
    if (step == 2) ASSERT_EQ(session.enqueue(0, 33), MONOMOE_OK) << monomoe_last_error();
    else ASSERT_EQ(cudaGraphLaunch((step == 0 ? small : large).get(), session.streams[0].get()), cudaSuccess);
    session.synchronise();
    EXPECT_TRUE(contract::same_bits(session.tokens[0].output(count), rows(want, 0, count, 512), 512)) << count;
  }
  ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
}

TEST_P(Graphs, OneGraphForEachOfThreeRanks) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 3, 30, GetParam());
  const std::vector<int64_t> counts = {30, 0, 17}, firsts = {0, 30, 30};
  const std::vector<uint16_t> want = cpu_bits(layer, 47);
  std::vector<Graph> graphs;
  for (int rank = 0; rank < 3; ++rank) graphs.push_back(capture(session, rank, counts[rank]));
  for (int round = 0; round < 5; ++round) {
    for (int rank = 0; rank < 3; ++rank) session.tokens[rank].write(layer, firsts[rank], counts[rank]);
    for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(cudaGraphLaunch(graphs[rank].get(), session.streams[rank].get()), cudaSuccess);
    session.synchronise();
    ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(contract::same_bits(session.tokens[rank].output(counts[rank]), rows(want, firsts[rank], counts[rank], 512), 512)) << rank;
    }
  }
}

// A number of tokens in memory of a rank's GPU.
class DeviceCount {
 public:
  DeviceCount() {
    auto made = cuda::DeviceBuffer::make(8, "a number of tokens");
    EXPECT_TRUE(made.ok());
    buffer_ = made.take();
  }
  // As a framework does: in the order of the stream, before the graph.
  void write(int64_t count, const TestStream& stream) {
    ok(cudaMemcpyAsync(buffer_.data(), &count, 8, cudaMemcpyHostToDevice, stream.get()));
    ok(cudaStreamSynchronize(stream.get()));
  }
  const cuda::DeviceBuffer& buffer() const { return buffer_; }

 private:
  cuda::DeviceBuffer buffer_;
};

Graph capture_counted(DeviceSession& session, const DeviceCount& count, int64_t most) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  const monomoe_tokens call = session.tokens[0].tokens_counted_by(count.buffer(), most);
  const cudaStream_t stream = session.streams[0].get();
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(monomoe_forward_rank(session.weights.get(), session.workspace.get(), 0, &call, stream, nullptr), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  return Graph(executable);
}

TEST_P(Graphs, OneGraphForEveryNumberOfTokensReadFromTheGpu) {
  for (const char* line : {kLine, kFp8Line}) {
    const AbiLayer layer(line);
    DeviceSession session(layer, 1, 64, GetParam());
    DeviceCount count;
    const Graph large = capture_counted(session, count, 64), small = capture_counted(session, count, 9), fixed = capture(session, 0, 30);
    const std::vector<uint16_t> want = cpu_bits(layer, 64);
    for (const int64_t tokens : {64, 0, 1, 9, 33, 0, 8, 64, 7, 2}) {
      session.tokens[0].write(layer, 0, 64);
      count.write(tokens, session.streams[0]);
      for (const Graph* graph : {&fixed, tokens <= 9 ? &small : &large, &large}) {
        session.tokens[0].write(layer, 0, 64);  // y anew
        ASSERT_EQ(cudaGraphLaunch(graph->get(), session.streams[0].get()), cudaSuccess);
        session.synchronise();
        const int64_t written = graph == &fixed ? 30 : tokens;
        EXPECT_TRUE(contract::same_bits(session.tokens[0].output(written), rows(want, 0, written, 512), 512)) << line << " " << tokens;
        const std::vector<uint16_t> all = session.tokens[0].output(64);
        EXPECT_TRUE(std::all_of(all.begin() + written * 512, all.end(), [](uint16_t bits) { return bits == 0xEEEE; })) << line << " " << tokens;
      }
    }
    ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
  }
}

TEST_P(Graphs, ANumberOfTokensThatCannotBeIsNamedAndNothingIsWritten) {
  const AbiLayer layer(kLine);
  for (const int64_t bad : {int64_t{21}, int64_t{-1}, int64_t{1} << 40}) {
    DeviceSession session(layer, 1, 64, GetParam(), 2000);
    DeviceCount count;
    const Graph graph = capture_counted(session, count, 20);
    session.tokens[0].write(layer, 0, 64);
    count.write(bad, session.streams[0]);
    ASSERT_EQ(cudaGraphLaunch(graph.get(), session.streams[0].get()), cudaSuccess);
    session.synchronise();
    EXPECT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_POISONED);
    const std::string text = "rank 0: num_tokens_device holds " + std::to_string(bad) + ", wanted 0..20";
    EXPECT_NE(std::string(monomoe_last_error()).find(text), std::string::npos) << monomoe_last_error();
    EXPECT_EQ(session.tokens[0].output(64), std::vector<uint16_t>(64 * 512, 0xEEEE));
  }
}

TEST_P(Graphs, ANumberOfTokensInMemoryTheLaunchCannotReadIsRefused) {
  const AbiLayer layer(kLine);
  DeviceSession session(layer, 1, 64, GetParam());
  DeviceCount count;
  const int64_t on_host = 3;
  const auto refused = [&](monomoe_tokens call, void* stream, const std::string& naming) {
    EXPECT_EQ(monomoe_forward_rank(session.weights.get(), session.workspace.get(), 0, &call, stream, nullptr), MONOMOE_USAGE);
    EXPECT_NE(std::string(monomoe_last_error()).find(naming), std::string::npos) << monomoe_last_error();
  };
  monomoe_tokens call = session.tokens[0].tokens_counted_by(count.buffer(), 20);
  refused(call, nullptr, "num_tokens_device is set in a call that blocks");
  call.num_tokens_device = &on_host;
  refused(call, session.streams[0].get(), "num_tokens_device is host memory");
  call.num_tokens_device = reinterpret_cast<const int64_t*>(count.buffer().data() + 4);
  refused(call, session.streams[0].get(), "num_tokens_device is not aligned");
  call = session.tokens[0].tokens_counted_by(count.buffer(), 65);
  refused(call, session.streams[0].get(), "65 tokens exceed the capacity of 64");
  session.synchronise();
  EXPECT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
}

// The unfused launch has kernels that wait between kernels that others wait for, so the streams of virtual ranks need hardware queues of their own.
// CUDA reads this when it starts.
const bool kQueuesOfTheirOwn = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;

// Four ranks with two layers on one workspace and changing numbers of tokens, one rank often idle. The output of the last call counts.
struct Rehearsal {
  static constexpr int kRanks = 4, kTokens = 16;
  AbiLayer layer{kLine}, second{"ranks=1 experts=8 topk=3 tokens=64 hidden=512 inter=96 w=mxfp4 seed=403"};
  DeviceSession session;
  WeightsHandle other = second.weights(session.context);
  int calls;

  Rehearsal(int count, monomoe_launch launch) : session(layer, kRanks, kTokens, launch, 3000), calls(count) {
    for (int rank = 0; rank < kRanks; ++rank) session.tokens[rank].write(layer, rank * kTokens, kTokens);
  }
  monomoe_status enqueue(int call, int rank) {
    const bool idle = rank == 3 && call % 3 != 0;
    const int64_t count = call == calls - 1 ? kTokens : idle ? 0 : static_cast<int64_t>(random_bits(7, call, rank) % (kTokens + 1));
    const monomoe_tokens tokens = session.tokens[rank].tokens(count);
    const monomoe_weights* weights = (calls - call) % 2 == 0 ? other.get() : session.weights.get();
    return monomoe_forward_rank(weights, session.workspace.get(), rank, &tokens, session.streams[rank].get(), nullptr);
  }
  void expect_bits() {
    session.synchronise();
    ASSERT_EQ(monomoe_workspace_status(session.workspace.get()), MONOMOE_OK) << monomoe_last_error();
    const std::vector<uint16_t> want = cpu_bits(layer, kRanks * kTokens);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(contract::same_bits(session.tokens[rank].output(kTokens), rows(want, rank * kTokens, kTokens, 512), 512)) << rank;
    }
  }
};

void pause_stream(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(microseconds)));
}

// No wait between the calls; now and then one rank's stream stands still while the others run on.
TEST_P(Graphs, TwoThousandCallsBackToBackWithRanksDelayed) {
  Rehearsal rehearsal(2000, GetParam());
  for (int call = 0; call < rehearsal.calls; ++call) {
    for (int i = 0; i < Rehearsal::kRanks; ++i) {
      const int rank = (i + call) % Rehearsal::kRanks;
      if (random_bits(8, call, rank) % 40 == 0) {
        void* const pause = reinterpret_cast<void*>(static_cast<uintptr_t>(random_bits(9, call, rank) % 500));
        ASSERT_EQ(cudaLaunchHostFunc(rehearsal.session.streams[rank].get(), pause_stream, pause), cudaSuccess);
      }
      ASSERT_EQ(rehearsal.enqueue(call, rank), MONOMOE_OK) << call << ": " << monomoe_last_error();
    }
  }
  rehearsal.expect_bits();
}

// Every rank has a thread; none runs more than a few calls ahead, since a full launch queue of the GPU stops the other threads too.
TEST_P(Graphs, AThreadForEachRank) {
  Rehearsal rehearsal(512, GetParam());
  std::barrier together(Rehearsal::kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < Rehearsal::kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      int failures = 0;
      for (int call = 0; call < rehearsal.calls; ++call) {
        if (rehearsal.enqueue(call, rank) != MONOMOE_OK) ++failures;
        if (call % 8 == 7) together.arrive_and_wait();
      }
      EXPECT_EQ(failures, 0) << "rank " << rank;
    });
  }
  for (std::thread& thread : threads) thread.join();
  rehearsal.expect_bits();
}

INSTANTIATE_TEST_SUITE_P(Launches, Graphs, kEveryLaunch, launch_name);

}  // namespace
}  // namespace monomoe::cuda_test
