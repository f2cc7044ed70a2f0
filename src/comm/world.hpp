// The ranks of a world as processes of one machine: a local socket between every two of them, over which they exchange bytes and open files.
// The sockets have no name in any folder, so a world leaves nothing behind however its processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "comm/file_descriptor.hpp"
#include "comm/world_message.hpp"

namespace monomoe {

struct WorldOptions {
  std::string name;  // the same on all ranks, and another for each world of this machine's user
  int32_t ranks = 1, rank = 0;
  uint32_t timeout_ms = 30000;
  std::string_view library_version;
};

// What an exchange is for: ranks that are at different steps notice.
enum class WorldStep : uint32_t { kJoin = 1, kPlace, kMemory, kMap, kMapped, kCaller, kVerify, kBench };

// One call at a time. After a failure the world is useless: every later call returns the first one's error.
class World {
 public:
  // Collective: returns when all ranks are there and agree on version and number of ranks.
  static Result<std::unique_ptr<World>> join(const WorldOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int32_t ranks() const { return static_cast<int32_t>(sockets_.size()); }
  int32_t rank() const { return options_.rank; }
  const std::string& name() const { return options_.name; }

  // Collective. all: [ranks] pieces of mine.size() bytes, at most kMaxPayload each, in the order of the ranks.
  // kTimeout: a rank did not come, or its process has ended, naming it; kRejected: it left, with its reason; kUsage: it is at another step.
  Result<void> gather(WorldStep step, std::span<const std::byte> mine, std::span<std::byte> all);
  // Collective. Every rank's open file, [ranks]; the own entry is closed. file stays the caller's.
  Result<std::vector<FileDescriptor>> exchange_files(WorldStep step, int file);
  // Tells the others that this rank leaves, and why if it is not done: their next exchange, or the one they wait in, returns kRejected.
  void leave(std::string_view reason);
  // Waits until every other rank has left or its process has ended, for so long at most. After leave().
  bool await_others_left(uint32_t milliseconds);

 private:
  explicit World(const WorldOptions& options) : options_(options), sockets_(static_cast<size_t>(options.ranks)), pids_(sockets_.size()) {}
  Result<void> form();
  Result<void> connect_to(int32_t rank, Deadline deadline);
  Result<void> await_ranks(const FileDescriptor& listener, Deadline deadline);
  Result<void> take_newcomer(const FileDescriptor& listener, std::vector<FileDescriptor>& newcomers);
  Result<int32_t> check_hello(const Message& message, int32_t expected) const;
  Error missing(std::string_view what, const std::vector<int32_t>& ranks) const;
  Error ended(int32_t rank) const;
  Error last_words(int32_t rank) const;
  Error left(int32_t rank, const Message& message) const;
  Result<Message> receive(int32_t rank, MessageKind kind, WorldStep step, std::optional<size_t> bytes, Deadline deadline);
  Result<void> send(int32_t rank, MessageKind kind, WorldStep step, std::span<const std::byte> payload, int file, Deadline deadline);
  Deadline deadline() const { return std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms); }
  Result<void> usable() const { return broken_ ? Result<void>(*broken_) : Result<void>{}; }
  template <class T>
  Result<T> fail(Error error) {
    broken_ = error;
    return error;
  }

  WorldOptions options_;
  std::vector<FileDescriptor> sockets_;  // [ranks]; the own one is closed
  std::vector<int32_t> pids_;            // [ranks]; 0 where not known
  std::optional<Error> broken_;
  bool has_left_ = false;
};

}  // namespace monomoe
