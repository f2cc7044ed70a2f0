// One rank of two, as a process: cuda_rank_process RANK. Handles of memory and the output go over standard input and output.
#include <cstdio>
#include <cstdlib>

#include "cuda/external_rank.hpp"

namespace monomoe::cuda_test {
namespace {

constexpr int kRanks = 2;

// Exit codes tell how far it came; sentences go to standard error.
int run_world_rank(int32_t self) {
  const AbiLayer layer(kExternalLine);
  ExternalRank rank(layer, kRanks, self, 20000);
  auto memory = zeroed(1, rank.symmetric_bytes());
  cudaIpcMemHandle_t own{}, theirs{};
  if (cudaIpcGetMemHandle(&own, memory[0].data()) != cudaSuccess) return 11;
  if (!send(STDOUT_FILENO, &own, sizeof(own)) || !receive(STDIN_FILENO, &theirs, sizeof(theirs))) return 12;
  std::vector<void*> peers(kRanks, memory[0].data());
  if (cudaIpcOpenMemHandle(&peers[1 - self], theirs, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) return 13;
  if (rank.join(peers) != MONOMOE_OK) return std::fprintf(stderr, "rank %d: %s\n", self, monomoe_last_error()), 14;
  const int64_t count = self == 0 ? 40 : 20;
  rank.tokens.write(layer, self * 40, count);
  for (int call = 0; call < 4; ++call) {
    const bool on_stream = call % 2 == 0;
    if (rank.forward(rank.tokens.tokens(count), on_stream) != MONOMOE_OK)
      return std::fprintf(stderr, "rank %d: %s\n", self, monomoe_last_error()), 15;
    if (cudaStreamSynchronize(rank.stream.get()) != cudaSuccess) return 16;
  }
  if (rank.status() != MONOMOE_OK) return std::fprintf(stderr, "rank %d: %s\n", self, monomoe_last_error()), 17;
  const std::vector<uint16_t> y = rank.tokens.output(count);
  // The memory stays until the other one has ended its calls too.
  char end = 0;
  const bool told = send(STDOUT_FILENO, y.data(), y.size() * 2) && receive(STDIN_FILENO, &end, 1);
  rank.workspace.reset();
  return told && cudaIpcCloseMemHandle(peers[1 - self]) == cudaSuccess ? 0 : 18;
}

}  // namespace
}  // namespace monomoe::cuda_test

int main(int argc, char** argv) { return argc == 2 ? monomoe::cuda_test::run_world_rank(std::atoi(argv[1])) : 10; }
