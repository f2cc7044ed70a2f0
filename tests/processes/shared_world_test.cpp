// Worlds of include/monomoe/world.h as processes: they find each other, share memory, lose one of them in mid-call, and go on in a new world.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "monomoe/world.h"
#include "processes/world.hpp"

namespace monomoe::processes {
namespace {

constexpr const char* kSharedLine = "ranks=1 experts=6 topk=3 tokens=30 hidden=128 inter=64 w=mxfp4 seed=511";
constexpr int64_t kEach = 10;

std::string fresh_name() {
  static int count = 0;
  return "processes-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

struct LeaveWorld {
  void operator()(monomoe_world* world) const { monomoe_world_leave(world, nullptr); }
};
struct FreeMemory {
  void operator()(monomoe_world_memory* memory) const { monomoe_world_memory_destroy(memory); }
};

// A member of a world of three whose memory the library shares out.
struct Shared {
  Member& member;
  std::unique_ptr<monomoe_world, LeaveWorld> world;
  std::unique_ptr<monomoe_world_memory, FreeMemory> memory;

  explicit Shared(Member& of) : member(of) {}
  ~Shared() { end(); }
  void end() {
    member.workspace.reset();
    memory.reset();
    world.reset();
  }
  monomoe_status join(const std::string& name, int64_t capacity, uint32_t timeout_ms) {
    end();
    monomoe_world_options options{};
    options.struct_size = sizeof(options);
    options.name = name.c_str();
    options.ranks = member.ranks;
    options.rank = member.rank;
    options.timeout_ms = timeout_ms;
    monomoe_world* joined = nullptr;
    monomoe_status status = monomoe_world_join(&options, &joined);
    world.reset(joined);
    const Options own{.capacity = capacity, .timeout_ms = timeout_ms};
    if (status == MONOMOE_OK) status = member.make_context(own);
    if (status == MONOMOE_OK) status = member.make_weights(own);
    monomoe_world_memory* made = nullptr;
    if (status == MONOMOE_OK)
      status = monomoe_world_memory_create(world.get(), MONOMOE_BACKEND_CPU, 0, symmetric_bytes(member.layer, member.ranks, capacity), &made);
    memory.reset(made);
    if (status != MONOMOE_OK) return status;
    member.peers.assign(monomoe_world_memory_peers(made), monomoe_world_memory_peers(made) + member.ranks);
    return member.make_workspace(own);
  }
  monomoe_status forward() { return member.forward(kEach * member.rank, kEach); }
};

int open_files() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:monomoe ") != std::string::npos ? 1 : 0;
  return count;
}

TEST(SharedWorld, GivesTheBitsAndEndsInAnyOrder) {
  const AbiLayer layer(kSharedLine);
  for (const int32_t last : {0, 1, 2}) {
    World world(layer, 3, kEach);
    const std::string name = fresh_name();
    world.start(Home::kProcesses, [&](Member& member) {
      const int files = open_files();
      {
        Shared shared(member);
        if (member.report(0, shared.join(name, kEach, 20000)) != MONOMOE_OK) return;
        for (int call = 0; call < 5; ++call) {
          if (member.report(1, shared.forward()) != MONOMOE_OK) return;
        }
        if (member.rank == last) {  // all others are gone when this one takes its memory down
          member.step(1);
          member.await_go(1);
        }
      }
      member.report(2, open_files() == files && shared_mappings() == 0 ? MONOMOE_OK : MONOMOE_INTERNAL);
      member.step(2);
    });
    world.await_step(last, 1);
    for (int32_t rank = 0; rank < 3; ++rank) {
      if (rank != last) world.await_step(rank, 2);
    }
    world.go(last, 1);
    world.finish();
    for (int32_t rank = 0; rank < 3; ++rank) {
      for (int at = 0; at < 3; ++at) EXPECT_EQ(world.report(rank, at).status, MONOMOE_OK) << rank << " " << at << " " << world.report(rank, at).sentence;
    }
    EXPECT_TRUE(contract::same_bits(world.y(30), layer.expected(), 128));
  }
}

// Rank 1 is killed inside its second call; the others' calls name it, and they go on with a new process in a new world.
TEST(SharedWorld, AProcessKilledInMidCallIsReplaced) {
  const AbiLayer layer(kSharedLine);
  World world(layer, 3, kEach);
  const std::string first = fresh_name(), second = fresh_name();
  const auto rebuilt = [&](Shared& shared) {
    if (shared.member.report(5, shared.join(second, kEach, 20000)) == MONOMOE_OK) shared.member.report(6, shared.forward());
  };
  world.start(Home::kProcesses, [&](Member& member) {
    Shared shared(member);
    if (member.report(0, shared.join(first, kEach, 700)) != MONOMOE_OK) return;
    if (member.report(1, shared.forward()) != MONOMOE_OK) return;
    member.step(1);
    member.await_go(1);
    if (member.rank == 1) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ::kill(getpid(), SIGKILL);
      }).detach();
    }
    member.report(2, shared.forward());  // rank 2 comes when rank 1 is gone
    member.report(3, monomoe_world_gather(shared.world.get(), nullptr, 0, nullptr));
    member.step(2);
    member.await_go(2);
    rebuilt(shared);
  });
  for (int32_t rank = 0; rank < 3; ++rank) world.await_step(rank, 1);
  world.clear_y();
  world.go(0, 1);
  world.go(1, 1);
  world.await_end(1, SIGKILL);
  world.go(2, 1);
  for (const int32_t rank : {0, 2}) {
    world.await_step(rank, 2);
    EXPECT_EQ(world.report(rank, 2).status, MONOMOE_TIMEOUT) << world.report(rank, 2).sentence;
    EXPECT_TRUE(world.report(rank, 2).names("rank 1 did not")) << world.report(rank, 2).sentence;
    EXPECT_EQ(world.report(rank, 3).status, MONOMOE_TIMEOUT);
    EXPECT_TRUE(world.report(rank, 3).names("rank 1 will not come any more: its process")) << world.report(rank, 3).sentence;
  }
  EXPECT_TRUE(world.untouched(0, 30));
  world.go(0, 2);
  world.go(2, 2);
  world.start_process(1, [&](Member& member) {
    Shared shared(member);
    rebuilt(shared);
  });
  world.finish();
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(world.report(rank, 5).status, MONOMOE_OK) << world.report(rank, 5).sentence;
    ASSERT_EQ(world.report(rank, 6).status, MONOMOE_OK) << world.report(rank, 6).sentence;
  }
  EXPECT_TRUE(contract::same_bits(world.y(30), layer.expected(), 128));
}

TEST(SharedWorld, DifferentCapacitiesAreToldNamingBoth) {
  const AbiLayer layer(kSharedLine);
  World world(layer, 2, kEach);
  const std::string name = fresh_name();
  world.run(Home::kProcesses, [&](Member& member) {
    Shared shared(member);
    member.report(0, shared.join(name, kEach + 2 * member.rank, 20000));
  });
  for (int32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(world.report(rank, 0).status, MONOMOE_USAGE);
  EXPECT_TRUE(world.report(0, 0).names("capacity is 10 on rank 0 and 12 on rank 1")) << world.report(0, 0).sentence;
  EXPECT_TRUE(world.report(1, 0).names("capacity is 12 on rank 1 and 10 on rank 0")) << world.report(1, 0).sentence;
}

TEST(SharedWorld, PlaceTakesOneBackendForAll) {
  const AbiLayer layer(kSharedLine);
  World world(layer, 2, kEach);
  const std::string name = fresh_name(), other = fresh_name();
  world.run(Home::kProcesses, [&](Member& member) {
    const auto place = [&](const std::string& in, monomoe_backend backend, int at) {
      monomoe_world_options options{};
      options.struct_size = sizeof(options);
      options.name = in.c_str();
      options.ranks = 2;
      options.rank = member.rank;
      monomoe_world* raw = nullptr;
      if (member.report(at, monomoe_world_join(&options, &raw)) != MONOMOE_OK) return;
      const std::unique_ptr<monomoe_world, LeaveWorld> joined(raw);
      monomoe_context_options context{};
      context.struct_size = sizeof(context);
      context.backend = backend;
      if (member.report(at, monomoe_world_place(raw, &context, nullptr)) != MONOMOE_OK) return;
      const bool fits = context.world_ranks == 2 && context.rank == member.rank && context.backend == MONOMOE_BACKEND_CPU && context.gpu == 0;
      if (!fits) member.report(at, MONOMOE_INTERNAL);
    };
    place(name, MONOMOE_BACKEND_CPU, 0);
    place(other, member.rank == 0 ? MONOMOE_BACKEND_CPU : MONOMOE_BACKEND_CUDA, 1);
  });
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.report(rank, 0).status, MONOMOE_OK) << world.report(rank, 0).sentence;
    EXPECT_EQ(world.report(rank, 1).status, MONOMOE_USAGE);
    EXPECT_TRUE(world.report(rank, 1).names("options->backend is 1 on rank 0 and 2 on rank 1")) << world.report(rank, 1).sentence;
  }
}

}  // namespace
}  // namespace monomoe::processes
