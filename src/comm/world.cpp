// The exchanges of a world whose processes know each other; see world.hpp.
#include "comm/world.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

namespace monomoe {
namespace {

const char* step_name(uint32_t step) {
  switch (static_cast<WorldStep>(step)) {
    case WorldStep::kJoin: return "joining";
    case WorldStep::kPlace: return "choosing GPUs";
    case WorldStep::kMemory: return "making memory";
    case WorldStep::kMap: return "mapping memory";
    case WorldStep::kMapped: return "mapping memory (end)";
    case WorldStep::kCaller: return "an exchange of its program";
    case WorldStep::kVerify: return "verifying a case";
    case WorldStep::kBench: return "a benchmark";
  }
  return "a step this library does not know";
}

std::string list_of(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

World::~World() { leave({}); }

void World::leave(std::string_view reason) {
  if (has_left_) return;
  has_left_ = true;
  if (!broken_)
    broken_ = usage_error(fmt::format("rank {} has left world '{}'{}{}", options_.rank, options_.name, reason.empty() ? "" : ": ", reason));
  reason = reason.substr(0, 4096);
  // Whoever does not read it now finds it before the end of the socket.
  for (const FileDescriptor& socket : sockets_) {
    if (socket.is_open())
      (void)send_message(socket.get(), MessageKind::kLeave, 0, std::as_bytes(std::span(reason.data(), reason.size())), -1, std::chrono::steady_clock::now());
  }
}

bool World::await_others_left(uint32_t milliseconds) {
  const Deadline end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  for (FileDescriptor& socket : sockets_) {
    while (socket.is_open()) {
      Message message;
      const SocketEnd got = receive_message(socket.get(), message, end);
      if (got == SocketEnd::kLate) return false;
      if (got == SocketEnd::kClosed || message.header.kind == MessageKind::kLeave) socket = FileDescriptor();
    }
  }
  return true;
}

Error World::missing(std::string_view what, const std::vector<int32_t>& ranks) const {
  return {Status::kTimeout, fmt::format("rank {}: {} did not {} world '{}' within {} ms; every rank joins under the same name, on the same machine, and "
                                        "takes the same steps",
                                        options_.rank, list_of(ranks), what, options_.name, options_.timeout_ms)};
}

Error World::ended(int32_t rank) const {
  const std::string process = pids_[rank] > 0 ? fmt::format(" (number {})", pids_[rank]) : std::string();
  return {Status::kTimeout, fmt::format("rank {}: rank {} will not come any more: its process{} has ended; form a new world under another name", options_.rank,
                                        rank, process)};
}

Error World::left(int32_t rank, const Message& message) const {
  const std::string reason(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  return {Status::kRejected, reason.empty() ? fmt::format("rank {}: rank {} has left world '{}'", options_.rank, rank, options_.name)
                                            : fmt::format("rank {} gave up: {}", rank, reason)};
}

Result<void> World::send(int32_t rank, MessageKind kind, WorldStep step, std::span<const std::byte> payload, int file, Deadline end) {
  const SocketEnd sent = send_message(sockets_[rank].get(), kind, static_cast<uint32_t>(step), payload, file, end);
  if (sent == SocketEnd::kLate) return missing(fmt::format("take part in {} of", step_name(static_cast<uint32_t>(step))), {rank});
  return sent == SocketEnd::kFine ? Result<void>{} : last_words(rank);
}

// Of a rank that is gone: what it said before tells more.
Error World::last_words(int32_t rank) const {
  Message last;
  while (receive_message(sockets_[rank].get(), last, std::chrono::steady_clock::now()) == SocketEnd::kFine) {
    if (last.header.kind == MessageKind::kLeave) return left(rank, last);
  }
  return ended(rank);
}

// The next message of the rank, which must be of this kind and step; bytes: how many, if that is known.
Result<Message> World::receive(int32_t rank, MessageKind kind, WorldStep step, std::optional<size_t> bytes, Deadline end) {
  Message message;
  const SocketEnd got = receive_message(sockets_[rank].get(), message, end);
  const auto wanted = static_cast<uint32_t>(step);
  if (got == SocketEnd::kLate) return missing(fmt::format("take part in {} of", step_name(wanted)), {rank});
  if (got == SocketEnd::kClosed) return ended(rank);
  if (message.header.kind == MessageKind::kLeave) return left(rank, message);
  if (message.header.kind == kind && message.header.step == wanted && (!bytes || *bytes == message.payload.size())) return message;
  if (message.header.kind == kind && message.header.step == wanted)
    return usage_error(fmt::format("rank {} brings {} bytes to {} of world '{}', rank {} brings {}; all ranks bring the same number", options_.rank, *bytes,
                                   step_name(wanted), options_.name, rank, message.payload.size()));
  return usage_error(fmt::format("rank {} is at {} of world '{}' and rank {} at {}; all ranks take the same steps in the same order", options_.rank,
                                 step_name(wanted), options_.name, rank, step_name(message.header.step)));
}

Result<void> World::gather(WorldStep step, std::span<const std::byte> mine, std::span<std::byte> all) {
  if (auto fine = usable(); !fine) return fine;
  if (mine.size() > kMaxPayload)
    return usage_error(fmt::format("{} bytes are more than one exchange takes, {}; use memory that the ranks share", mine.size(), kMaxPayload));
  const Deadline end = deadline();
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    if (rank == options_.rank) continue;
    if (auto sent = send(rank, MessageKind::kGather, step, mine, -1, end); !sent) return fail<void>(sent.error());
  }
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    std::byte* const to = all.data() + static_cast<size_t>(rank) * mine.size();
    if (rank == options_.rank) {
      if (!mine.empty()) std::memcpy(to, mine.data(), mine.size());
      continue;
    }
    auto got = receive(rank, MessageKind::kGather, step, mine.size(), end);
    if (!got) return fail<void>(got.error());
    if (!mine.empty()) std::memcpy(to, got.value().payload.data(), mine.size());
  }
  return {};
}

Result<std::vector<FileDescriptor>> World::exchange_files(WorldStep step, int file) {
  using Files = std::vector<FileDescriptor>;
  if (auto fine = usable(); !fine) return fine.error();
  const Deadline end = deadline();
  const std::byte mark{1};  // a message that only carries a file
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    if (rank == options_.rank) continue;
    if (auto sent = send(rank, MessageKind::kFile, step, {&mark, 1}, file, end); !sent) return fail<Files>(sent.error());
  }
  Files files(sockets_.size());
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    if (rank == options_.rank) continue;
    auto got = receive(rank, MessageKind::kFile, step, 1, end);
    if (!got) return fail<Files>(got.error());
    files[rank] = std::move(got.value().file);
    if (!files[rank].is_open())
      return fail<Files>(unavailable(fmt::format("rank {}: the file of rank {} did not arrive: this process has too many open files; raise the limit of open "
                                                 "files (ulimit -n), or use fewer ranks",
                                                 options_.rank, rank)));
  }
  return files;
}

}  // namespace monomoe
