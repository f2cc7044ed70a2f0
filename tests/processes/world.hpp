// Ranks of a world as the tests run them: each with a context, weights and a workspace of its own, in a thread or in a process of its own,
// over memory they share. What a rank finds out it leaves in shared memory, and the test's own process asserts it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "contract/abi_layer.hpp"
#include "plan/flags.h"

namespace monomoe::processes {

using contract::AbiLayer;
using contract::ContextHandle;
using contract::WeightsHandle;
using contract::WorkspaceHandle;

// Zero pages that this process and its children share.
class SharedPages {
 public:
  explicit SharedPages(int64_t bytes);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  void* data() const { return data_; }
  // Another mapping of the same pages, for the process that asks; never unmapped.
  void* map_again() const;

 private:
  int file_ = -1;
  int64_t bytes_ = 0;
  void* data_ = nullptr;
};

// One call's or creation's end.
struct Report {
  int32_t status = -1;  // monomoe_status; -1: not reached
  char sentence[480] = {};
  bool names(const std::string& text) const { return std::string(sentence).find(text) != std::string::npos; }
};

inline constexpr int kReports = 8;
struct RankBoard {
  Report reports[kReports];
  uint32_t step;  // what the rank has reached, for the test's own process and for other ranks to wait for
  uint32_t go;    // set by the test's own process
};

struct Options {
  int64_t capacity = 0;
  int32_t world_ranks = 0, topk = 0;  // 0: as the layer has it
  uint32_t timeout_ms = 20000;
  uint64_t tag = 7;
};

// One rank inside its thread or process.
class Member {
 public:
  Member(const AbiLayer& layer, int32_t rank, int32_t ranks, std::vector<void*> peers, RankBoard* board, uint16_t* y)
      : layer(layer), rank(rank), ranks(ranks), peers(std::move(peers)), board(board), y(y) {}

  // Reports the status as number `at`, with the sentence of this thread.
  monomoe_status report(int at, monomoe_status status);
  void step(uint32_t reached);
  void await_go(uint32_t value);
  monomoe_status make_context(const Options& options);
  // Only the experts placed on this rank are given: the entries of the others are zero.
  monomoe_status make_weights(const Options& options, const monomoe_placement* placement = nullptr);
  monomoe_status make_workspace(const Options& options);
  // All three; reports the workspace's creation as number 0.
  monomoe_status join(const Options& options);
  // Tokens [first, first + count) of the layer; their y goes to the board's output.
  monomoe_tokens tokens(int64_t first, int64_t count) const;
  monomoe_status forward(int64_t first, int64_t count);

  const AbiLayer& layer;
  int32_t rank, ranks;
  std::vector<void*> peers;
  RankBoard* board;
  uint16_t* y;  // [tokens of the layer, hidden], shared by all ranks
  ContextHandle context;
  WeightsHandle weights;
  WorkspaceHandle workspace;
};

// Bytes of a rank's symmetric memory.
int64_t symmetric_bytes(const AbiLayer& layer, int32_t ranks, int64_t capacity);

enum class Home { kThreads, kProcesses };

// The memory of all ranks, their boards and the output.
class World {
 public:
  World(const AbiLayer& layer, int32_t ranks, int64_t capacity);
  // Starts the ranks; body is each rank's. Call finish() for every start.
  void start(Home home, std::function<void(Member&)> body);
  // Every rank has ended; a process that ended other than by itself has its signal in exits.
  void finish();
  void run(Home home, std::function<void(Member&)> body) {
    start(home, std::move(body));
    finish();
  }
  void kill(int32_t rank);  // SIGKILL, and waits for its end
  void await_end(int32_t rank, int signal);  // by this signal, which it sends itself
  // A new process for a rank whose last one is gone.
  void start_process(int32_t rank, const std::function<void(Member&)>& body);
  void zero_memory();
  void await_step(int32_t rank, uint32_t value) const;
  void go(int32_t rank, uint32_t value);
  SymmetricFlags& flags(int32_t rank) const { return *static_cast<SymmetricFlags*>(memory_[rank]->data()); }
  const Report& report(int32_t rank, int at) const { return boards()[rank].reports[at]; }
  std::vector<uint16_t> y(int64_t tokens) const;  // of the first tokens
  bool untouched(int64_t first, int64_t tokens) const;
  void clear_y();

 private:
  RankBoard* boards() const { return static_cast<RankBoard*>(board_.data()); }
  void run_rank(int32_t rank, bool map_again, const std::function<void(Member&)>& body);

  const AbiLayer& layer_;
  int32_t ranks_;
  int64_t bytes_;  // of one rank's memory
  std::vector<std::unique_ptr<SharedPages>> memory_;
  SharedPages board_, output_;
  std::vector<pid_t> children_;  // [ranks]; -1: none
  std::vector<std::thread> threads_;
};

}  // namespace monomoe::processes
