// One MoE layer as a serving engine runs it: a process per GPU, symmetric memory handed in through CUDA IPC, and one CUDA graph that serves
// changing numbers of tokens, read by the launch from GPU memory. Run: serve CHECKPOINT_DIR LAYER RANKS
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "monomoe/monomoe.hpp"

namespace moe = monomoe::api;

constexpr int kMaxRanks = 64, kCapacity = 256;

// What the processes share: where each rank's memory is, and a place to meet.
struct Meeting {
  pthread_barrier_t barrier;
  cudaIpcMemHandle_t memory[kMaxRanks];
};

void cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(MONOMOE_UNAVAILABLE);
}

template <class T>
T take(moe::Expected<T> expected) {
  if (expected) return std::move(expected).value();
  std::fprintf(stderr, "%s: %s\n", monomoe_status_name(expected.failure().status), expected.failure().message.c_str());
  std::exit(expected.failure().status);
}

template <class T>
T* gpu_array(size_t count) {
  void* memory = nullptr;
  cuda(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  cuda(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
  return static_cast<T*>(memory);
}

// This rank's symmetric memory, zeroed, and the other ranks' as this process sees it.
std::vector<void*> share_memory(Meeting& meeting, int rank, int ranks, int64_t bytes) {
  std::vector<void*> peers(ranks);
  peers[rank] = gpu_array<char>(bytes);
  cuda(cudaIpcGetMemHandle(&meeting.memory[rank], peers[rank]), "cudaIpcGetMemHandle");
  cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  pthread_barrier_wait(&meeting.barrier);
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank)
      cuda(cudaIpcOpenMemHandle(&peers[peer], meeting.memory[peer], cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  }
  return peers;
}

// The graph's inputs and output, at fixed addresses.
struct Batch {
  uint16_t* x;
  int64_t* ids;
  float* weights;
  uint16_t* y;
  int64_t* num_tokens;
};

Batch make_batch(int64_t hidden, int topk) {
  const Batch batch = {gpu_array<uint16_t>(kCapacity * hidden), gpu_array<int64_t>(kCapacity * topk), gpu_array<float>(kCapacity * topk),
                       gpu_array<uint16_t>(kCapacity * hidden), gpu_array<int64_t>(1)};
  const std::vector<uint16_t> ones(kCapacity * hidden, 0x3F80);  // bf16
  const std::vector<float> shares(kCapacity * topk, 1.0f / static_cast<float>(topk));
  std::vector<int64_t> ids(kCapacity * topk);
  for (size_t slot = 0; slot < ids.size(); ++slot) ids[slot] = static_cast<int64_t>(slot) % topk;
  cuda(cudaMemcpy(batch.x, ones.data(), ones.size() * sizeof(ones[0]), cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda(cudaMemcpy(batch.ids, ids.data(), ids.size() * sizeof(ids[0]), cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda(cudaMemcpy(batch.weights, shares.data(), shares.size() * sizeof(shares[0]), cudaMemcpyHostToDevice), "cudaMemcpy");
  return batch;
}

// A call for up to kCapacity tokens as a graph. Capturing enqueues nothing, so the ranks need not capture together.
cudaGraphExec_t capture(const moe::Weights& weights, moe::Workspace& workspace, int rank, const Batch& batch, cudaStream_t stream) {
  monomoe_tokens tokens = {};
  tokens.x_dtype = MONOMOE_DTYPE_BF16;
  tokens.ids_dtype = MONOMOE_DTYPE_I64;
  tokens.num_tokens = kCapacity;
  tokens.num_tokens_device = batch.num_tokens;
  tokens.x = batch.x;
  tokens.topk_ids = batch.ids;
  tokens.topk_weights = batch.weights;
  tokens.y = batch.y;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  take(moe::forward_rank(weights, workspace, rank, tokens, stream));
  cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return ready;
}

// Steps with different numbers of tokens on each rank, none among them. Every rank replays in every step.
void serve(cudaGraphExec_t graph, moe::Workspace& workspace, int rank, const Batch& batch, cudaStream_t stream) {
  for (int step = 0; step < 4; ++step) {
    const int64_t count = (rank + step) % 4 == 0 ? 0 : 16 * (rank + step) % kCapacity;
    cuda(cudaMemcpyAsync(batch.num_tokens, &count, sizeof(count), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    cuda(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    uint16_t first = 0;
    cuda(cudaMemcpyAsync(&first, batch.y, sizeof(first), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    take(workspace.status());  // how the launch ended
    std::printf("rank %d, step %d: %3d tokens, y[0][0] = 0x%04x (bf16)\n", rank, step, static_cast<int>(count), first);
  }
}

void run_rank(Meeting& meeting, const char* folder, int layer, int rank, int ranks) {
  int gpus = 0;
  cuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  const int gpu = rank % gpus;
  cuda(cudaSetDevice(gpu), "cudaSetDevice");
  monomoe_context_options options = {};
  options.backend = MONOMOE_BACKEND_CUDA;
  options.gpu = gpu + 1;
  options.ranks_per_gpu = (ranks + gpus - 1) / gpus;
  const moe::Context context = take(moe::Context::create_rank(ranks, rank, options));
  const moe::Checkpoint checkpoint = take(moe::Checkpoint::open(folder));
  const monomoe_layer_info info = take(checkpoint.layer_info(layer));
  const moe::Weights weights = take(checkpoint.weights(context, layer));  // this rank's experts only
  const moe::WorkspaceSize size = {.topk = info.topk, .hidden = info.hidden, .intermediate = info.intermediate, .capacity = kCapacity};
  const int64_t bytes = take(moe::Workspace::symmetric_bytes(context, size));
  const std::vector<void*> peers = share_memory(meeting, rank, ranks, bytes);
  moe::Workspace workspace = take(moe::Workspace::create(context, weights, size, peers));  // waits for the other ranks

  cudaStream_t stream = nullptr;
  cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  const Batch batch = make_batch(info.hidden, info.topk);
  const cudaGraphExec_t graph = capture(weights, workspace, rank, batch, stream);
  serve(graph, workspace, rank, batch, stream);
  cuda(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  pthread_barrier_wait(&meeting.barrier);  // nobody's memory goes while another may write it
}

int main(int argc, char** argv) {
  const int ranks = argc == 4 ? std::atoi(argv[3]) : 0;
  if (ranks < 1 || ranks > kMaxRanks) return std::fprintf(stderr, "usage: serve CHECKPOINT_DIR LAYER RANKS\n"), MONOMOE_USAGE;
  void* page = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return std::perror("mmap"), MONOMOE_UNAVAILABLE;
  Meeting& meeting = *static_cast<Meeting*>(page);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting.barrier, &shared, static_cast<unsigned>(ranks));
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {  // before the first CUDA call: a forked process cannot use its parent's
    children.push_back(fork());
    if (children.back() < 0) return std::perror("fork"), MONOMOE_UNAVAILABLE;
    if (children.back() == 0) {
      run_rank(meeting, argv[1], std::atoi(argv[2]), rank, ranks);
      std::exit(0);
    }
  }
  int failed = 0, status = 0;
  for (int waiting = ranks; waiting > 0 && wait(&status) > 0;) {
    --waiting;
    if (status == 0) continue;
    if (failed == 0) failed = WIFEXITED(status) ? WEXITSTATUS(status) : MONOMOE_INTERNAL;
    for (const pid_t child : children) kill(child, SIGTERM);  // they would wait for it at the meeting
  }
  return failed;
}
