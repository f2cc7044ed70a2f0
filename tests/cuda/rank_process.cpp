// One rank of two, as a process: cuda_rank_process RANK WORLD pipe|file|ipc. With pipe the test passes a CUDA IPC handle on, over standard input and
// output; else the ranks share memory as include/monomoe/world.h does, in this way. The output goes to standard output.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda/external_rank.hpp"
#include "monomoe/world.h"

namespace monomoe::cuda_test {
namespace {

constexpr int kRanks = 2;

// Memory of both ranks, and what must be given back.
struct Peers {
  std::vector<void*> addresses;
  std::vector<cuda::DeviceBuffer> own;       // pipe
  void* opened = nullptr;                    // pipe
  monomoe_world* world = nullptr;            // else
  monomoe_world_memory* memory = nullptr;    // else
};

int fail(int code, int32_t self) {
  std::fprintf(stderr, "rank %d: %s\n", self, monomoe_last_error());
  return code;
}

int share_by_pipe(int32_t self, int64_t bytes, Peers& peers) {
  peers.own = zeroed(1, bytes);
  cudaIpcMemHandle_t own{}, theirs{};
  if (cudaIpcGetMemHandle(&own, peers.own[0].data()) != cudaSuccess) return 11;
  if (!send(STDOUT_FILENO, &own, sizeof(own)) || !receive(STDIN_FILENO, &theirs, sizeof(theirs))) return 12;
  if (cudaIpcOpenMemHandle(&peers.opened, theirs, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) return 13;
  peers.addresses.assign(kRanks, peers.own[0].data());
  peers.addresses[1 - self] = peers.opened;
  return 0;
}

int share_in_world(int32_t self, int64_t bytes, const std::string& name, monomoe_sharing sharing, Peers& peers) {
  monomoe_world_options options{};
  options.struct_size = sizeof(options);
  options.name = name.c_str();
  options.ranks = kRanks;
  options.rank = self;
  options.timeout_ms = 60000;
  options.sharing = sharing;
  if (monomoe_world_join(&options, &peers.world) != MONOMOE_OK) return fail(21, self);
  monomoe_context_options placed{};
  placed.struct_size = sizeof(placed);
  placed.backend = MONOMOE_BACKEND_CUDA;
  placed.gpu = 1;
  if (monomoe_world_place(peers.world, &placed, nullptr) != MONOMOE_OK) return fail(22, self);
  if (placed.gpu != 1 || placed.ranks_per_gpu != kRanks || placed.rank != self) return 23;
  if (monomoe_world_memory_create(peers.world, MONOMOE_BACKEND_CUDA, placed.gpu, bytes, &peers.memory) != MONOMOE_OK) return fail(24, self);
  void* const* addresses = monomoe_world_memory_peers(peers.memory);
  peers.addresses.assign(addresses, addresses + kRanks);
  return 0;
}

// Exit codes tell how far it came; sentences go to standard error.
int run_world_rank(int32_t self, const std::string& name, const std::string& way) {
  const AbiLayer layer(kExternalLine);
  ExternalRank rank(layer, kRanks, self, 20000);
  Peers peers;
  const int64_t bytes = rank.symmetric_bytes();
  const int shared = way == "pipe" ? share_by_pipe(self, bytes, peers)
                                   : share_in_world(self, bytes, name, way == "ipc" ? MONOMOE_SHARING_IPC : MONOMOE_SHARING_FILE, peers);
  if (shared != 0) return shared;
  if (rank.join(peers.addresses) != MONOMOE_OK) return fail(14, self);
  const int64_t count = self == 0 ? 40 : 20;
  rank.tokens.write(layer, self * 40, count);
  for (int call = 0; call < 4; ++call) {
    const bool on_stream = call % 2 == 0;
    if (rank.forward(rank.tokens.tokens(count), on_stream) != MONOMOE_OK) return fail(15, self);
    if (cudaStreamSynchronize(rank.stream.get()) != cudaSuccess) return 16;
  }
  if (rank.status() != MONOMOE_OK) return fail(17, self);
  const std::vector<uint16_t> y = rank.tokens.output(count);
  // Memory that the test passed on stays until the other one has ended its calls too; a world's may go in any order.
  char end = 0;
  const bool told = send(STDOUT_FILENO, y.data(), y.size() * 2) && (way != "pipe" || receive(STDIN_FILENO, &end, 1));
  rank.workspace.reset();
  if (way == "pipe") return told && cudaIpcCloseMemHandle(peers.opened) == cudaSuccess ? 0 : 18;
  monomoe_world_memory_destroy(peers.memory);
  monomoe_world_leave(peers.world, nullptr);
  return told && cudaDeviceSynchronize() == cudaSuccess ? 0 : 19;
}

}  // namespace
}  // namespace monomoe::cuda_test

int main(int argc, char** argv) { return argc == 4 ? monomoe::cuda_test::run_world_rank(std::atoi(argv[1]), argv[2], argv[3]) : 10; }
