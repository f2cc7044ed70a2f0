// Bandwidth of rows pushed over peer memory, a process a GPU: peer_rows WORLD RANKS RANK [file|ipc]. Every rank pushes at once, so both directions
// of each link are busy. Rows are those of hidden 4096: dispatch 4096 codes + 128 bytes of scales (a row to one peer each), combine 8192 bytes of
// bf16. What arrived is compared. Rank 0 prints one JSON object.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "push_rows.hpp"
#include "world_rank.hpp"

using namespace monomoe::bench;

namespace {

constexpr int64_t kMostRows = 8192 * 6;
constexpr int kRounds = 12, kWarmUp = 2;

struct Pattern {
  const char* name;
  int64_t row_bytes;
};
constexpr Pattern kPatterns[] = {{"dispatch", 4608}, {"combine", 8192}};  // 4224 bytes rounded up to whole stores of a warp

struct Buffers {
  uint8_t* from = nullptr;
  MemoryHandle memory;
  std::vector<uint8_t*> peers;  // this rank's place in each other rank's memory
};

// A byte that tells whose row it is.
int mark(int rank) { return 17 + rank; }

int64_t place_bytes() { return kMostRows * kPatterns[1].row_bytes; }

Buffers make_buffers(const WorldRank& self) {
  Buffers buffers;
  void* from = nullptr;
  must(cudaMalloc(&from, static_cast<size_t>(place_bytes())), "allocating rows");
  buffers.from = static_cast<uint8_t*>(from);
  must(cudaMemset(buffers.from, mark(self.rank), static_cast<size_t>(place_bytes())), "filling rows");
  // A place for each other rank; ranks before this one come first.
  buffers.memory = self.memory(place_bytes() * std::max(self.ranks - 1, 1));
  void* const* peers = monomoe_world_memory_peers(buffers.memory.get());
  for (int32_t peer = 0; peer < self.ranks; ++peer) {
    if (peer == self.rank) continue;
    const int64_t block = self.rank < peer ? self.rank : self.rank - 1;
    buffers.peers.push_back(static_cast<uint8_t*>(peers[peer]) + block * place_bytes());
  }
  must(cudaDeviceSynchronize(), "filling rows");
  return buffers;
}

// Median microseconds of this rank.
double time_push(const WorldRank& self, const Push& push, int blocks) {
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin), "making an event");
  must(cudaEventCreate(&end), "making an event");
  std::vector<float> us;
  for (int round = 0; round < kRounds + kWarmUp; ++round) {
    self.barrier();
    must(cudaEventRecord(begin, cudaStreamPerThread), "recording an event");
    must(push_rows(push, blocks, cudaStreamPerThread), "pushing rows");
    must(cudaEventRecord(end, cudaStreamPerThread), "recording an event");
    must(cudaEventSynchronize(end), "pushing rows");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "reading an event");
    if (round >= kWarmUp) us.push_back(ms * 1000);
  }
  must(cudaEventDestroy(begin), "destroying an event");
  must(cudaEventDestroy(end), "destroying an event");
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

// Rows that did not arrive as their sender has them.
int64_t wrong_rows(const WorldRank& self, const Buffers& buffers, const Push& push) {
  int64_t wrong = 0;
  const auto* own = static_cast<const uint8_t*>(monomoe_world_memory_peers(buffers.memory.get())[self.rank]);
  std::vector<uint8_t> rows(static_cast<size_t>(push.rows * push.row_bytes));
  for (int32_t src = 0; src < self.ranks; ++src) {
    if (src == self.rank) continue;
    const int64_t block = src < self.rank ? src : src - 1, turn = self.rank < src ? self.rank : self.rank - 1;
    must(cudaMemcpy(rows.data(), own + block * place_bytes(), rows.size(), cudaMemcpyDeviceToHost), "reading rows");
    for (int64_t row = 0; row < push.rows; ++row) {
      if (row % push.num_peers != turn) continue;
      const auto begin = rows.begin() + row * push.row_bytes;
      wrong += std::all_of(begin, begin + push.row_bytes, [&](uint8_t byte) { return byte == mark(src); }) ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) fail("usage: peer_rows WORLD RANKS RANK [file|ipc]");
  const std::string way = argc > 4 ? argv[4] : "auto";
  const monomoe_sharing sharing = way == "file" ? MONOMOE_SHARING_FILE : way == "ipc" ? MONOMOE_SHARING_IPC : MONOMOE_SHARING_AUTO;
  const WorldRank self = join(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), sharing, 60000);
  if (self.ranks < 2) fail("peer_rows: wanted 2 ranks or more");
  const Buffers buffers = make_buffers(self);
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, self.device()), "counting multiprocessors");
  nlohmann::ordered_json report = {{"ranks", self.ranks}, {"why", self.why}, {"memory", monomoe_world_memory_how(buffers.memory.get())}, {"rows", nlohmann::ordered_json::array()}};
  double wrong = 0;
  for (const Pattern& pattern : kPatterns) {
    for (const int64_t rows : {int64_t{8}, int64_t{64}, int64_t{512}, int64_t{4096}, int64_t{24576}, kMostRows}) {
      for (const int blocks : {16, sms}) {
        Push push{};
        push.from = buffers.from;
        std::copy(buffers.peers.begin(), buffers.peers.end(), push.to);
        push.num_peers = self.ranks - 1;
        push.rows = rows;
        push.row_bytes = pattern.row_bytes;
        must(cudaMemset(monomoe_world_memory_peers(buffers.memory.get())[self.rank], 0, static_cast<size_t>(place_bytes() * (self.ranks - 1))), "clearing rows");
        must(cudaDeviceSynchronize(), "clearing rows");
        const std::vector<double> us = self.gather(time_push(self, push, blocks));
        if (blocks == sms) {
          for (const double one : self.gather(static_cast<double>(wrong_rows(self, buffers, push)))) wrong += one;
        }
        const double slowest = *std::max_element(us.begin(), us.end());
        report["rows"].push_back({{"pattern", pattern.name}, {"rows", rows}, {"row_bytes", pattern.row_bytes}, {"thread_blocks", blocks}, {"us_slowest_rank", slowest},
                                  {"gb_per_s_each_way", rows * pattern.row_bytes / slowest * 1e-3}});
      }
    }
  }
  report["wrong_rows"] = wrong;
  if (self.rank == 0) std::printf("%s\n", report.dump().c_str());
  self.barrier();
  return wrong == 0 ? 0 : 1;
}
