// The helpers of world.hpp.
#include "processes/world.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "comm/flags.hpp"

namespace monomoe::processes {
namespace {

void* map_pages(int file, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) throw std::runtime_error("mmap failed");
  return data;
}

void await_word(uint32_t& word, uint32_t value) {
  while (look(word) < value) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

monomoe_workspace_options workspace_options(const AbiLayer& layer, const Options& options) {
  monomoe_workspace_options out{};
  out.struct_size = sizeof(out);
  out.topk = options.topk == 0 ? static_cast<int32_t>(layer.c.problem.topk) : options.topk;
  out.hidden = layer.c.problem.hidden;
  out.max_intermediate = layer.c.problem.intermediate;
  out.capacity = options.capacity;
  return out;
}

monomoe_status create_context(int32_t ranks, int32_t rank, uint32_t timeout_ms, monomoe_context** context) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.backend = MONOMOE_BACKEND_CPU;
  options.num_threads = 2;
  options.timeout_ms = timeout_ms;
  options.world_ranks = ranks;
  options.rank = rank;
  return monomoe_context_create(&options, context);
}

}  // namespace

SharedPages::SharedPages(int64_t bytes) : file_(memfd_create("monomoe-test", 0)), bytes_(bytes) {
  if (file_ < 0 || ftruncate(file_, bytes) != 0) throw std::runtime_error("memfd_create failed");
  data_ = map_pages(file_, bytes);
}

SharedPages::~SharedPages() {
  munmap(data_, static_cast<size_t>(bytes_));
  close(file_);
}

void* SharedPages::map_again() const { return map_pages(file_, bytes_); }

monomoe_status Member::report(int at, monomoe_status status) {
  Report& out = board->reports[at];
  if (status != MONOMOE_OK) std::snprintf(out.sentence, sizeof(out.sentence), "%s", monomoe_last_error());
  out.status = status;
  return status;
}

void Member::step(uint32_t reached) { publish(board->step, reached); }
void Member::await_go(uint32_t value) { await_word(board->go, value); }

monomoe_status Member::make_context(const Options& options) {
  workspace.reset();
  weights.reset();
  monomoe_context* made = nullptr;
  const monomoe_status status = create_context(options.world_ranks == 0 ? ranks : options.world_ranks, rank, options.timeout_ms, &made);
  context.reset(made);
  return status;
}

monomoe_status Member::make_weights(const Options& options, const monomoe_placement* placement) {
  std::vector<monomoe_expert> own(layer.experts.size());
  const auto even = PlacementTable::even(static_cast<int64_t>(own.size()), options.world_ranks == 0 ? ranks : options.world_ranks);
  for (int32_t e = 0; e < static_cast<int32_t>(own.size()); ++e) {
    bool is_own = placement == nullptr && even.value().view().has_copy(e, rank);
    for (int64_t i = 0; placement != nullptr && i < placement->count; ++i)
      is_own |= placement->expert[i] == e && placement->rank[i] == rank;
    if (is_own) own[e] = layer.experts[e];
  }
  monomoe_layer description = layer.layer(placement);
  description.experts = own.data();
  description.tag = options.tag;
  monomoe_weights* made = nullptr;
  const monomoe_status status = monomoe_weights_create(context.get(), &description, &made);
  weights.reset(made);
  return status;
}

monomoe_status Member::make_workspace(const Options& options) {
  monomoe_workspace_options sizes = workspace_options(layer, options);
  sizes.max_experts = monomoe_weights_max_local_experts(weights.get());
  sizes.peers = peers.data();
  monomoe_workspace* made = nullptr;
  const monomoe_status status = monomoe_workspace_create(context.get(), &sizes, &made);
  workspace.reset(made);
  return status;
}

monomoe_status Member::join(const Options& options) {
  monomoe_status status = make_context(options);
  if (status == MONOMOE_OK) status = make_weights(options);
  if (status == MONOMOE_OK) status = make_workspace(options);
  return report(0, status);
}

monomoe_tokens Member::tokens(int64_t first, int64_t count) const {
  const Problem& p = layer.c.problem;
  monomoe_tokens one{};
  one.struct_size = sizeof(one);
  one.x_dtype = MONOMOE_DTYPE_BF16;
  one.num_tokens = count;
  one.ids_dtype = MONOMOE_DTYPE_I64;
  one.x = layer.random.x.data() + first * p.hidden;
  one.topk_ids = layer.random.ids.data() + first * p.topk;
  one.topk_weights = layer.random.weights.data() + first * p.topk;
  one.y = y + first * p.hidden;
  return one;
}

monomoe_status Member::forward(int64_t first, int64_t count) {
  const monomoe_tokens call = tokens(first, count);
  return monomoe_forward_rank(weights.get(), workspace.get(), rank, &call, nullptr, nullptr);
}

int64_t symmetric_bytes(const AbiLayer& layer, int32_t ranks, int64_t capacity) {
  monomoe_context* raw = nullptr;
  EXPECT_EQ(create_context(ranks, 0, 0, &raw), MONOMOE_OK) << monomoe_last_error();
  const ContextHandle context(raw);
  const monomoe_workspace_options options = workspace_options(layer, {.capacity = capacity});
  int64_t bytes = 0;
  EXPECT_EQ(monomoe_symmetric_bytes(context.get(), &options, &bytes), MONOMOE_OK) << monomoe_last_error();
  return bytes;
}

World::World(const AbiLayer& layer, int32_t ranks, int64_t capacity)
    : layer_(layer),
      ranks_(ranks),
      bytes_(symmetric_bytes(layer, ranks, capacity)),
      board_(ranks * static_cast<int64_t>(sizeof(RankBoard))),
      output_(layer.c.tokens * layer.c.problem.hidden * 2) {
  for (int32_t rank = 0; rank < ranks; ++rank) memory_.push_back(std::make_unique<SharedPages>(bytes_));
  for (int32_t rank = 0; rank < ranks; ++rank) boards()[rank] = {};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (Report& report : boards()[rank].reports) report.status = -1;
  }
  clear_y();
}

void World::clear_y() { std::fill_n(static_cast<uint16_t*>(output_.data()), layer_.c.tokens * layer_.c.problem.hidden, uint16_t{0xAAAA}); }

std::vector<uint16_t> World::y(int64_t tokens) const {
  const auto* begin = static_cast<const uint16_t*>(output_.data());
  return {begin, begin + tokens * layer_.c.problem.hidden};
}

bool World::untouched(int64_t first, int64_t tokens) const {
  const auto* begin = static_cast<const uint16_t*>(output_.data()) + first * layer_.c.problem.hidden;
  return std::all_of(begin, begin + tokens * layer_.c.problem.hidden, [](uint16_t bits) { return bits == 0xAAAA; });
}

void World::run_rank(int32_t rank, bool map_again, const std::function<void(Member&)>& body) {
  std::vector<void*> peers;
  for (const auto& pages : memory_) peers.push_back(map_again ? pages->map_again() : pages->data());
  Member member(layer_, rank, ranks_, peers, &boards()[rank], static_cast<uint16_t*>(output_.data()));
  body(member);
}

void World::start_process(int32_t rank, const std::function<void(Member&)>& body) {
  children_[rank] = fork();
  if (children_[rank] != 0) return;
  try {
    run_rank(rank, true, body);
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}

void World::start(Home home, std::function<void(Member&)> body) {
  children_.assign(ranks_, -1);
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    if (home == Home::kThreads)
      threads_.emplace_back([this, rank, body] { run_rank(rank, false, body); });
    else
      start_process(rank, body);
  }
}

void World::zero_memory() {
  for (const auto& pages : memory_) std::memset(pages->data(), 0, static_cast<size_t>(bytes_));
}

void World::finish() {
  for (std::thread& thread : threads_) thread.join();
  for (const pid_t child : children_) {
    int status = 0;
    if (child < 0) continue;  // killed by the test
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child's status " << status;
  }
  threads_.clear();
  children_.clear();
}

void World::kill(int32_t rank) {
  ::kill(children_[rank], SIGKILL);
  await_end(rank, SIGKILL);
}

void World::await_end(int32_t rank, int signal) {
  int status = 0;
  EXPECT_EQ(waitpid(children_[rank], &status, 0), children_[rank]);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
  children_[rank] = -1;
}

void World::await_step(int32_t rank, uint32_t value) const { await_word(boards()[rank].step, value); }
void World::go(int32_t rank, uint32_t value) { publish(boards()[rank].go, value); }

}  // namespace monomoe::processes
