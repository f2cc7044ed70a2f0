// What the processes of a world send each other: whole messages over local sockets, with at most one open file attached, and a deadline on
// every wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "comm/file_descriptor.hpp"

namespace monomoe {

// Raise with any change of the messages or of the order in which they are sent.
inline constexpr uint32_t kWorldProtocol = 1;
// Two of these fit a socket's buffer, so that ranks one step apart never wait for each other to read.
inline constexpr size_t kMaxPayload = 32 << 10;

enum class MessageKind : uint32_t { kHello = 1, kGather = 2, kFile = 3, kLeave = 4 };

struct MessageHeader {
  uint32_t magic = 0x4D6F4557;
  MessageKind kind = MessageKind::kHello;
  uint32_t step = 0;   // kGather, kFile: what the exchange is for, see WorldStep
  uint32_t bytes = 0;  // of what follows
};

// How a process presents itself; first in every version, so that versions can be compared.
struct Hello {
  uint32_t protocol = kWorldProtocol;
  int32_t ranks = 0, rank = 0;
  char version[20] = {};  // of the library
};

struct Message {
  MessageHeader header;
  std::vector<std::byte> payload;
  FileDescriptor file;
};

using Deadline = std::chrono::steady_clock::time_point;
int milliseconds_left(Deadline deadline);  // rounded up, 0 when it has passed

enum class SocketEnd { kFine, kLate, kClosed };

// kLate: the other side's buffer was full until the deadline. kClosed: it is gone.
SocketEnd send_message(int socket, MessageKind kind, uint32_t step, std::span<const std::byte> payload, int file, Deadline deadline);
// One whole message; a message that is none of ours counts as closed.
SocketEnd receive_message(int socket, Message& message, Deadline deadline);

}  // namespace monomoe
