// How the processes of a world find each other: rank r listens under the world's name and its number, connects to the ranks below it and is
// connected to by those above. The names are abstract addresses: no file, gone with the process.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "comm/world.hpp"
#include "plan/problem.h"

namespace monomoe {
namespace {

constexpr size_t kMaxName = 64;
constexpr auto kRetry = std::chrono::milliseconds(5);

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

// The user's number keeps worlds of different users apart; a stranger who takes it on purpose is found out by his credentials.
Address address_of(const std::string& world, int32_t rank) {
  const std::string text = fmt::format("monomoe/{}/{}/{}", geteuid(), world, rank);
  Address address;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, text.data(), std::min(text.size(), sizeof(address.name.sun_path) - 1));
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

Result<FileDescriptor> open_socket() {
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.is_open()) return made;
  return unavailable(fmt::format("a local socket cannot be made: {}; raise the limit of open files (ulimit -n), or use fewer ranks", std::strerror(errno)));
}

Result<void> check_options(const WorldOptions& options) {
  const auto legal = [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' ||
           letter == '-';
  };
  if (options.name.empty() || options.name.size() > kMaxName || !std::ranges::all_of(options.name, legal))
    return usage_error(fmt::format("the world's name is '{}', wanted 1 to {} letters, digits and '.', '_', '-'", options.name, kMaxName));
  if (options.ranks < 1 || options.ranks > kMaxRanks)
    return usage_error(fmt::format("ranks of world '{}' is {}, wanted 1..{}", options.name, options.ranks, kMaxRanks));
  if (options.rank < 0 || options.rank >= options.ranks)
    return usage_error(fmt::format("rank of world '{}' is {}, wanted 0..{}", options.name, options.rank, options.ranks - 1));
  return {};
}

Result<FileDescriptor> listen_as(const WorldOptions& options) {
  auto listener = open_socket();
  if (!listener) return listener.error();
  const Address address = address_of(options.name, options.rank);
  if (bind(listener.value().get(), address.get(), address.bytes) != 0) {
    if (errno == EADDRINUSE)
      return usage_error(fmt::format("rank {} of world '{}' is another process already; start each rank once, and give each world a name of its own",
                                     options.rank, options.name));
    return unavailable(fmt::format("rank {} cannot be reached by the others: bind: {}", options.rank, std::strerror(errno)));
  }
  if (listen(listener.value().get(), kMaxRanks) != 0)
    return unavailable(fmt::format("rank {} cannot be reached by the others: listen: {}", options.rank, std::strerror(errno)));
  return listener;
}

// The process at the other end, which must be of the same user; 0 where the system does not tell.
Result<int32_t> process_of(int socket) {
  ucred who{};
  socklen_t bytes = sizeof(who);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0)
    return unavailable(fmt::format("the system does not say which process a rank is: {}", std::strerror(errno)));
  if (who.uid != geteuid())
    return usage_error(fmt::format("process {} of another user (number {}) answers in this world's name; choose another name", who.pid, who.uid));
  return who.pid;
}

std::span<const std::byte> bytes_of(const Hello& hello) { return std::as_bytes(std::span(&hello, 1)); }

Hello hello_of(const WorldOptions& options) {
  Hello hello;
  hello.ranks = options.ranks;
  hello.rank = options.rank;
  std::memcpy(hello.version, options.library_version.data(), std::min(options.library_version.size(), sizeof(hello.version) - 1));
  return hello;
}

}  // namespace

Result<std::unique_ptr<World>> World::join(const WorldOptions& options) {
  if (auto legal = check_options(options); !legal) return legal.error();
  std::unique_ptr<World> world(new World(options));
  auto formed = world->form();
  if (formed) formed = world->gather(WorldStep::kJoin, {}, {});  // nobody goes on before all have seen all
  if (formed) return world;
  world->leave(formed.error().message);
  return formed.error();
}

Result<void> World::form() {
  const Deadline end = deadline();
  auto listener = listen_as(options_);
  if (!listener) return listener.error();
  for (int32_t rank = 0; rank < options_.rank; ++rank) {
    if (auto connected = connect_to(rank, end); !connected) return connected;
  }
  return await_ranks(listener.value(), end);
}

Result<void> World::connect_to(int32_t rank, Deadline end) {
  const Address address = address_of(options_.name, rank);
  for (;;) {
    auto made = open_socket();
    if (!made) return made.error();
    const int socket = made.value().get();
    if (connect(socket, address.get(), address.bytes) == 0) {
      auto process = process_of(socket);
      if (!process) return process.error();
      pids_[rank] = process.value();
      sockets_[rank] = made.take();
      const Hello hello = hello_of(options_);
      return send(rank, MessageKind::kHello, WorldStep::kJoin, bytes_of(hello), -1, end);
    }
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
      return unavailable(fmt::format("rank {} cannot reach rank {}: connect: {}", options_.rank, rank, std::strerror(errno)));
    if (milliseconds_left(end) == 0) return missing("join", {rank});
    std::this_thread::sleep_for(kRetry);
  }
}

// Answers of the ranks below, and the ranks above as they come.
Result<void> World::await_ranks(const FileDescriptor& listener, Deadline end) {
  std::vector<FileDescriptor> newcomers;
  std::vector<bool> known(sockets_.size());
  known[options_.rank] = true;
  for (;;) {
    std::vector<int32_t> still;
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      if (!known[rank]) still.push_back(rank);
    }
    if (still.empty()) return {};
    std::vector<pollfd> entries = {{listener.get(), POLLIN, 0}};
    // Closed ones, -1, are passed over; of a rank that is known only its end matters: it may be ahead.
    for (size_t rank = 0; rank < sockets_.size(); ++rank) entries.push_back({sockets_[rank].get(), static_cast<short>(known[rank] ? 0 : POLLIN), 0});
    for (const FileDescriptor& socket : newcomers) entries.push_back({socket.get(), POLLIN, 0});
    const int ready = poll(entries.data(), entries.size(), milliseconds_left(end));
    if (ready == 0 && milliseconds_left(end) == 0) return missing("join", still);
    // The kernel refuses more entries than the process may have files.
    if (ready < 0 && errno != EINTR)
      return unavailable(fmt::format("rank {} cannot wait for {} ranks: poll: {}; raise the limit of open files (ulimit -n)", options_.rank, still.size(),
                                     std::strerror(errno)));
    if (ready <= 0) continue;
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      if (entries[static_cast<size_t>(rank) + 1].revents == 0) continue;
      if (known[rank]) return last_words(rank);
      auto answer = receive(rank, MessageKind::kHello, WorldStep::kJoin, std::nullopt, end);
      if (!answer) return answer.error();
      if (auto agrees = check_hello(answer.value(), rank); !agrees) return agrees.error();
      known[rank] = true;
    }
    for (size_t i = newcomers.size(); i-- > 0;) {
      Message message;
      if (entries[i + 1 + sockets_.size()].revents == 0) continue;
      const SocketEnd got = receive_message(newcomers[i].get(), message, end);
      FileDescriptor socket = std::move(newcomers[i]);
      newcomers.erase(newcomers.begin() + static_cast<ptrdiff_t>(i));
      if (got != SocketEnd::kFine) continue;  // it came and went: whoever it was may come again
      const Hello own = hello_of(options_);
      (void)send_message(socket.get(), MessageKind::kHello, static_cast<uint32_t>(WorldStep::kJoin), bytes_of(own), -1, end);
      auto rank = check_hello(message, -1);
      if (!rank) return rank.error();
      auto process = process_of(socket.get());
      if (!process) return process.error();
      pids_[rank.value()] = process.value();
      sockets_[rank.value()] = std::move(socket);
      known[rank.value()] = true;
    }
    if (entries[0].revents != 0) {
      if (auto taken = take_newcomer(listener, newcomers); !taken) return taken;
    }
  }
}

Result<void> World::take_newcomer(const FileDescriptor& listener, std::vector<FileDescriptor>& newcomers) {
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) {
    newcomers.push_back(std::move(socket));
    return {};
  }
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return {};
  return unavailable(fmt::format("rank {} cannot take in another rank: accept: {}; raise the limit of open files (ulimit -n)", options_.rank,
                                 std::strerror(errno)));
}

// The rank that says hello. expected: -1 for a newcomer, which must be above this rank and new.
Result<int32_t> World::check_hello(const Message& message, int32_t expected) const {
  Hello theirs;
  const Hello own = hello_of(options_);
  if (message.header.kind != MessageKind::kHello || message.payload.size() < sizeof(theirs.protocol) + sizeof(theirs.ranks) + sizeof(theirs.rank))
    return internal_error(fmt::format("a process that is no rank answers in the name of world '{}'", options_.name));
  std::memcpy(&theirs, message.payload.data(), std::min(message.payload.size(), sizeof(theirs)));
  theirs.version[sizeof(theirs.version) - 1] = '\0';
  const auto differ = [&](std::string_view what, const auto& ours, const auto& other) {
    return usage_error(fmt::format("{} is {} on rank {} and {} on rank {}; all ranks of a world need the same library and the same number of ranks", what,
                                   ours, own.rank, other, theirs.rank));
  };
  if (theirs.protocol != own.protocol) return differ("the world protocol", own.protocol, theirs.protocol);
  if (std::strcmp(theirs.version, own.version) != 0) return differ("the library version", own.version, static_cast<const char*>(theirs.version));
  if (theirs.ranks != own.ranks) return differ("the number of ranks", own.ranks, theirs.ranks);
  const bool is_new = theirs.rank > own.rank && theirs.rank < own.ranks && !sockets_[static_cast<size_t>(theirs.rank)].is_open();
  if (expected >= 0 ? theirs.rank == expected : is_new) return theirs.rank;
  return usage_error(fmt::format("two processes are rank {} of world '{}'; start each rank once", theirs.rank, options_.name));
}

}  // namespace monomoe
