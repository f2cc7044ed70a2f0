// Ranks of a world on the CUDA backend: each a context of its own over memory that the test allocates and hands in, in a thread or in a
// process (CUDA IPC). All share one GPU, so that one is enough; the bits are the CPU backend's.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <functional>
#include <thread>

#include "cuda/external_rank.hpp"

namespace monomoe::cuda_test {
namespace {

// Ranks as threads of this process. Everything that allocates is done before any rank launches.
struct ExternalWorld {
  ExternalWorld(const AbiLayer& of, int32_t count, uint32_t timeout_ms = 10000) : layer(of), rows(contract::even_rows(60, 4)) {
    rows.resize(count);
    if (count > 2) rows[2] = 0;  // a rank without tokens
    for (int32_t rank = 0; rank < count; ++rank) ranks.push_back(std::make_unique<ExternalRank>(layer, count, rank, timeout_ms));
    memory = zeroed(count, ranks[0]->symmetric_bytes());
    int64_t first = 0;
    for (int32_t rank = 0; rank < count; ++rank) {
      firsts.push_back(first);
      first += rows[rank];
    }
  }
  // Each rank's body in a thread of its own.
  void run(const std::function<void(ExternalRank&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
    for (std::thread& thread : threads) thread.join();
  }
  void join() {
    const std::vector<void*> peers = addresses(memory);
    run([&](ExternalRank& rank) { EXPECT_EQ(rank.join(peers), MONOMOE_OK) << monomoe_last_error(); });
  }
  void write_tokens() {
    for (const auto& rank : ranks) rank->tokens.write(layer, firsts[rank->rank], rows[rank->rank]);
  }
  void expect_bits() {
    const std::vector<uint16_t> want = cpu_bits(layer, 60);
    for (const auto& rank : ranks) {
      const int64_t count = rows[rank->rank];
      ASSERT_EQ(rank->status(), MONOMOE_OK) << monomoe_last_error();
      EXPECT_TRUE(contract::same_bits(rank->tokens.output(count), cuda_test::rows(want, firsts[rank->rank], count, 512), 512))
          << rank->rank;
    }
  }

  const AbiLayer& layer;
  std::vector<int64_t> rows, firsts;
  std::vector<cuda::DeviceBuffer> memory;  // outlives the ranks' workspaces
  std::vector<std::unique_ptr<ExternalRank>> ranks;
};

class External : public GpuTest {};

TEST_F(External, RanksOnStreamsGiveTheBitsOfTheCpu) {
  const AbiLayer layer(kExternalLine);
  for (const int32_t count : {1, 2, 4}) {
    ExternalWorld world(layer, count);
    world.join();
    std::barrier together(count);
    for (int round = 0; round < 3; ++round) {
      world.write_tokens();
      world.run([&](ExternalRank& rank) {
        for (int call = 0; call < 6; ++call) {
          const int64_t tokens = call == 5 ? world.rows[rank.rank] : world.rows[rank.rank] * (call + rank.rank) % 5;
          EXPECT_EQ(rank.forward(rank.tokens.tokens(tokens), true), MONOMOE_OK) << monomoe_last_error();
        }
        together.arrive_and_wait();
        ok(cudaStreamSynchronize(rank.stream.get()));
      });
      world.expect_bits();
    }
  }
}

TEST_F(External, BlockingCallsWithHostMemory) {
  const AbiLayer layer(kExternalLine);
  const std::vector<uint16_t> want = cpu_bits(layer, 60);
  for (const int32_t count : {1, 2, 4}) {
    ExternalWorld world(layer, count);
    world.join();
    std::vector<uint16_t> y;
    const auto tokens = layer.tokens(world.rows, y);
    for (int round = 0; round < 3; ++round) {
      std::fill(y.begin(), y.end(), uint16_t{0xAAAA});
      world.run([&](ExternalRank& rank) { EXPECT_EQ(rank.forward(tokens[rank.rank], false), MONOMOE_OK) << monomoe_last_error(); });
      EXPECT_TRUE(contract::same_bits(y, rows(want, 0, static_cast<int64_t>(y.size()) / 512, 512), 512)) << count;
    }
  }
}

TEST_F(External, ARefusedRankTakesPartWithoutTokensAndTheOthersOutputIsWhole) {
  const AbiLayer layer(kExternalLine);
  ExternalWorld world(layer, 2);
  world.join();
  world.write_tokens();
  for (const bool on_stream : {true, false}) {
    world.run([&](ExternalRank& rank) {
      if (rank.rank == 0) {
        EXPECT_EQ(rank.forward(rank.tokens.tokens(15), on_stream), MONOMOE_OK) << monomoe_last_error();
      } else {
        EXPECT_EQ(rank.forward(rank.tokens.tokens(kCapacity + 1), on_stream), MONOMOE_USAGE);
        EXPECT_NE(std::string(monomoe_last_error()).find("rank 1: 41 tokens exceed the capacity of 40"), std::string::npos)
            << monomoe_last_error();
      }
      ok(cudaStreamSynchronize(rank.stream.get()));
    });
    EXPECT_TRUE(contract::same_bits(world.ranks[0]->tokens.output(15), cpu_bits(layer, 15), 512));
  }
  world.run([&](ExternalRank& rank) { EXPECT_EQ(rank.forward(rank.tokens.tokens(15), false), MONOMOE_OK) << monomoe_last_error(); });
  world.expect_bits();
}

// Rank 0 gives up; what it waited for stands in its own record, and the other ranks learn that it did.
TEST_F(External, ASilentRankEndsTheCallOnAllRanks) {
  const AbiLayer layer(kExternalLine);
  ExternalWorld world(layer, 4, 200);
  world.join();
  world.write_tokens();
  world.run([&](ExternalRank& rank) {
    if (rank.rank == 3) return;
    EXPECT_NE(rank.forward(rank.tokens.tokens(15), false), MONOMOE_OK);
    EXPECT_NE(std::string(monomoe_last_error()).find("rank 3"), std::string::npos) << monomoe_last_error();
    EXPECT_EQ(rank.status(), MONOMOE_POISONED);
  });
}

TEST_F(External, RanksThatDifferAndMemoryThatDoesNotFitAreRejected) {
  const AbiLayer layer(kExternalLine);
  ExternalWorld world(layer, 2, 2000);
  const std::vector<void*> peers = addresses(world.memory);
  world.run([&](ExternalRank& rank) {
    EXPECT_EQ(rank.join(peers, rank.rank == 0 ? 40 : 20), MONOMOE_USAGE);
    const std::string text = rank.rank == 0 ? "capacity is 40 on rank 0 and 20 on rank 1" : "capacity is 20 on rank 1 and 40 on rank 0";
    EXPECT_NE(std::string(monomoe_last_error()).find(text), std::string::npos) << monomoe_last_error();
  });
  // The memory is not zero any more, and that is noticed.
  EXPECT_EQ(world.ranks[0]->join(peers), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("is memory that is not zero"), std::string::npos) << monomoe_last_error();
  std::vector<unsigned char> pages(1 << 20);
  void* const host = pages.data() + (1024 - reinterpret_cast<uintptr_t>(pages.data()) % 1024);
  EXPECT_EQ(world.ranks[0]->join({peers[0], host}), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("options->peers[1] is not GPU memory"), std::string::npos) << monomoe_last_error();
  EXPECT_EQ(world.ranks[1]->join({peers[0], host}), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("wanted memory of GPU 0, which this rank runs on"), std::string::npos)
      << monomoe_last_error();
}

constexpr int kWorldRanks = 2;

struct Child {
  pid_t process = -1;
  int to = -1, from = -1;
};

// The program lies beside this one.
Child start_rank(int rank, const std::string& world, const std::string& way) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cuda_rank_process";
  const std::string number = std::to_string(rank);
  int down[2], up[2];
  EXPECT_EQ(pipe(down), 0);
  EXPECT_EQ(pipe(up), 0);
  const pid_t process = fork();
  if (process == 0) {
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    for (const int file : {down[0], down[1], up[0], up[1]}) close(file);
    execl(program.c_str(), program.c_str(), number.c_str(), world.c_str(), way.c_str(), static_cast<char*>(nullptr));
    _exit(99);
  }
  close(down[0]);
  close(up[1]);
  return {process, down[1], up[0]};
}

// Passes each rank's handle on to the other.
bool exchange_handles(const Child (&children)[kWorldRanks]) {
  cudaIpcMemHandle_t handles[kWorldRanks] = {};
  bool exchanged = true;
  for (int rank = 0; rank < kWorldRanks; ++rank) exchanged &= receive(children[rank].from, &handles[rank], sizeof(handles[rank]));
  for (int rank = 0; rank < kWorldRanks && exchanged; ++rank)
    exchanged &= send(children[rank].to, &handles[1 - rank], sizeof(handles[rank]));
  return exchanged;
}

// pipe: memory handed in from outside; file, ipc: the library's own exchange, in this way.
void expect_bits_of_two_processes(const std::string& way) {
  signal(SIGPIPE, SIG_IGN);  // a rank that ended early is told by its exit code
  const AbiLayer layer(kExternalLine);
  const std::string world = "cuda-test-" + std::to_string(getpid()) + "-" + way;
  Child children[kWorldRanks];
  for (int rank = 0; rank < kWorldRanks; ++rank) children[rank] = start_rank(rank, world, way);
  std::vector<uint16_t> y(60 * 512);
  const bool exchanged = (way != "pipe" || exchange_handles(children)) && receive(children[0].from, y.data(), 40 * 512 * 2) &&
                         receive(children[1].from, y.data() + 40 * 512, 20 * 512 * 2);
  for (const Child& child : children) {
    EXPECT_TRUE(!exchanged || way != "pipe" || send(child.to, "", 1));
    close(child.to);
    close(child.from);
    int status = 0;
    EXPECT_EQ(waitpid(child.process, &status, 0), child.process);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), 0) << "how far the rank came: see run_world_rank, 99: no cuda_rank_process beside this program";
  }
  ASSERT_TRUE(exchanged);
  EXPECT_TRUE(contract::same_bits(y, cpu_bits(layer, 60), 512));
}

TEST_F(External, TwoProcessesOverCudaIpcFromOutside) { expect_bits_of_two_processes("pipe"); }
TEST_F(External, TwoProcessesOverTheLibrarysFiles) { expect_bits_of_two_processes("file"); }
TEST_F(External, TwoProcessesOverTheLibrarysCudaIpc) { expect_bits_of_two_processes("ipc"); }

}  // namespace
}  // namespace monomoe::cuda_test
