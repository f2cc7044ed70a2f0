// Processes (here: threads) that find each other under a name, and what they say of one another when they differ, stay away or leave.
#include "comm/world.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

namespace monomoe {
namespace {

std::string fresh_name() {
  static std::atomic<int> count{0};
  return "unit-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

WorldOptions options(const std::string& name, int32_t ranks, int32_t rank, uint32_t timeout_ms = 20000) { return {name, ranks, rank, timeout_ms, "1.2.3"}; }

// Each rank's body in a thread; the sentence of its failure, "" for none.
template <class Body>
std::vector<std::string> run_ranks(int32_t ranks, Body body) {
  std::vector<std::string> sentences(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Result<void> result = body(rank);
      if (!result) sentences[static_cast<size_t>(rank)] = result.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return sentences;
}

bool names(const std::string& sentence, const std::string& words) { return sentence.find(words) != std::string::npos; }

// Local sockets of this name in the system's table.
int sockets_named(const std::string& name) {
  std::ifstream table("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(table, line);) count += names(line, name) ? 1 : 0;
  return count;
}

TEST(World, RanksGatherAndPassFilesAndLeaveNothing) {
  const std::string name = fresh_name();
  const auto sentences = run_ranks(4, [&](int32_t rank) -> Result<void> {
    auto world = World::join(options(name, 4, rank));
    if (!world) return world.error();
    for (int round = 0; round < 50; ++round) {
      const int32_t mine = rank * 100 + round;
      int32_t all[4] = {};
      if (auto done = world.value()->gather(WorldStep::kCaller, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))); !done) return done;
      for (int32_t other = 0; other < 4; ++other) EXPECT_EQ(all[other], other * 100 + round);
    }
    const FileDescriptor file(memfd_create("unit", MFD_CLOEXEC));
    EXPECT_EQ(write(file.get(), &rank, sizeof(rank)), static_cast<ssize_t>(sizeof(rank)));
    auto files = world.value()->exchange_files(WorldStep::kMap, file.get());
    if (!files) return files.error();
    for (int32_t other = 0; other < 4; ++other) {
      int32_t read = -1;
      EXPECT_EQ(files.value()[other].is_open(), other != rank);
      if (other == rank) continue;
      EXPECT_EQ(pread(files.value()[other].get(), &read, sizeof(read), 0), static_cast<ssize_t>(sizeof(read)));
      EXPECT_EQ(read, other);
    }
    std::vector<std::byte> large(kMaxPayload), together(4 * kMaxPayload);
    std::memset(large.data(), rank + 1, large.size());
    for (int round = 0; round < 5; ++round) {
      if (auto done = world.value()->gather(WorldStep::kCaller, large, together); !done) return done;
      for (size_t other = 0; other < 4; ++other) EXPECT_EQ(together[other * kMaxPayload + kMaxPayload - 1], static_cast<std::byte>(other + 1));
    }
    return {};
  });
  for (const std::string& sentence : sentences) EXPECT_EQ(sentence, "");
  EXPECT_EQ(sockets_named(name), 0);
}

TEST(World, OneRankIsAWorld) {
  auto world = World::join(options(fresh_name(), 1, 0));
  ASSERT_TRUE(world.ok()) << world.error().message;
  const int32_t mine = 7;
  int32_t all = 0;
  EXPECT_TRUE(world.value()->gather(WorldStep::kCaller, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(&all, 1))).ok());
  EXPECT_EQ(all, 7);
}

TEST(World, DifferentVersionsAndSizesAreToldNamingBoth) {
  const std::string name = fresh_name();
  auto sentences = run_ranks(2, [&](int32_t rank) -> Result<void> {
    WorldOptions own = options(name, 2, rank);
    if (rank == 1) own.library_version = "1.2.4";
    auto world = World::join(own);
    return world ? Result<void>{} : world.error();
  });
  EXPECT_TRUE(names(sentences[0], "the library version is 1.2.3 on rank 0 and 1.2.4 on rank 1")) << sentences[0];
  EXPECT_TRUE(names(sentences[1], "the library version is 1.2.4 on rank 1 and 1.2.3 on rank 0")) << sentences[1];
  const std::string second = fresh_name();
  sentences = run_ranks(2, [&](int32_t rank) -> Result<void> {
    auto world = World::join(options(second, 2 + rank, rank));
    return world ? Result<void>{} : world.error();
  });
  EXPECT_TRUE(names(sentences[0], "the number of ranks is 2 on rank 0 and 3 on rank 1")) << sentences[0];
  EXPECT_TRUE(names(sentences[1], "the number of ranks is 3 on rank 1 and 2 on rank 0")) << sentences[1];
}

TEST(World, WhoDoesNotComeIsNamed) {
  const std::string name = fresh_name();
  const auto sentences = run_ranks(4, [&](int32_t rank) -> Result<void> {
    if (rank == 1 || rank == 3) return {};
    auto world = World::join(options(name, 4, rank, 300));
    return world ? Result<void>{} : world.error();
  });
  EXPECT_TRUE(names(sentences[0], "ranks 1, 3 did not join world '" + name + "' within 300 ms") || names(sentences[0], "rank 2 gave up")) << sentences[0];
  EXPECT_TRUE(names(sentences[2], "rank 1 did not join world '" + name + "' within 300 ms")) << sentences[2];
  EXPECT_EQ(sockets_named(name), 0);
}

TEST(World, ARankThatComesLateIsWaitedForAndASecondOneIsRefused) {
  const std::string name = fresh_name();
  std::atomic<bool> is_refused{false};
  const auto sentences = run_ranks(3, [&](int32_t rank) -> Result<void> {
    if (rank == 0) {  // rank 1 twice: the second finds the name taken
      while (!is_refused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    auto world = World::join(options(name, 2, rank == 2 ? 1 : rank));
    if (!world && names(world.error().message, "rank 1 of world '" + name + "' is another process already")) is_refused = true;
    return world ? Result<void>{} : world.error();
  });
  EXPECT_EQ(sentences[0], "");
  EXPECT_NE(sentences[1].empty(), sentences[2].empty()) << sentences[1] << sentences[2];
  EXPECT_TRUE(is_refused);
}

TEST(World, ARankThatLeavesSaysWhyAndTheWorldIsUseless) {
  const std::string name = fresh_name();
  const auto sentences = run_ranks(3, [&](int32_t rank) -> Result<void> {
    auto world = World::join(options(name, 3, rank));
    if (!world) return world.error();
    if (rank == 1) {
      world.value()->leave("no tokens today");
      EXPECT_FALSE(world.value()->gather(WorldStep::kCaller, {}, {}).ok());
      return {};
    }
    const auto first = world.value()->gather(WorldStep::kCaller, {}, {});
    const auto second = world.value()->gather(WorldStep::kCaller, {}, {});
    EXPECT_EQ(first.ok() ? "" : first.error().message, second.ok() ? "" : second.error().message);
    EXPECT_TRUE(!first.ok() && first.error().status == Status::kRejected);
    return first;
  });
  EXPECT_TRUE(names(sentences[0], "rank 1 gave up: no tokens today") || names(sentences[0], "rank 2 has left")) << sentences[0];
  EXPECT_TRUE(names(sentences[2], "rank 1 gave up: no tokens today") || names(sentences[2], "rank 0 has left")) << sentences[2];
}

TEST(World, RanksAtDifferentStepsAreTold) {
  const std::string name = fresh_name();
  const auto sizes = run_ranks(2, [&](int32_t rank) -> Result<void> {
    auto world = World::join(options(name, 2, rank));
    if (!world) return world.error();
    const std::vector<std::byte> mine(8 + static_cast<size_t>(rank));
    std::vector<std::byte> all(64);
    return world.value()->gather(WorldStep::kCaller, mine, all);
  });
  EXPECT_TRUE(names(sizes[0], "rank 0 brings 8 bytes") && names(sizes[0], "rank 1 brings 9")) << sizes[0];
  EXPECT_TRUE(names(sizes[1], "rank 1 brings 9 bytes") && names(sizes[1], "rank 0 brings 8")) << sizes[1];
  const std::string second = fresh_name();
  const auto steps = run_ranks(2, [&](int32_t rank) -> Result<void> {
    auto world = World::join(options(second, 2, rank));
    if (!world) return world.error();
    return world.value()->gather(rank == 0 ? WorldStep::kPlace : WorldStep::kMemory, {}, {});
  });
  EXPECT_TRUE(names(steps[0], "rank 0 is at choosing GPUs of world") && names(steps[0], "rank 1 at making memory")) << steps[0];
  EXPECT_TRUE(names(steps[1], "rank 1 is at making memory of world") && names(steps[1], "rank 0 at choosing GPUs")) << steps[1];
}

TEST(World, BadNamesAndNumbersAreRefused) {
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a b"), std::string(65, 'x')}) {
    auto world = World::join(options(name, 1, 0));
    ASSERT_FALSE(world.ok());
    EXPECT_TRUE(names(world.error().message, "wanted 1 to 64 letters")) << world.error().message;
  }
  EXPECT_TRUE(names(World::join(options("x", 65, 0)).error().message, "ranks of world 'x' is 65, wanted 1..64"));
  EXPECT_TRUE(names(World::join(options("x", 2, 2)).error().message, "rank of world 'x' is 2, wanted 0..1"));
}

}  // namespace
}  // namespace monomoe
