// See world_message.hpp. Sockets are of type SEQPACKET: the kernel keeps messages whole.
#include "comm/world_message.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace monomoe {
namespace {

// Waits for the events; false: the deadline has passed.
bool wait_for(int socket, short events, Deadline deadline) {
  pollfd entry{socket, events, 0};
  for (;;) {
    const int ready = poll(&entry, 1, milliseconds_left(deadline));
    if (ready > 0) return true;
    if (ready == 0 && milliseconds_left(deadline) == 0) return false;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
  }
}

struct alignas(cmsghdr) FileRoom {
  char bytes[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace

int milliseconds_left(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

SocketEnd send_message(int socket, MessageKind kind, uint32_t step, std::span<const std::byte> payload, int file, Deadline deadline) {
  MessageHeader header;
  header.kind = kind;
  header.step = step;
  header.bytes = static_cast<uint32_t>(payload.size());
  iovec parts[] = {{&header, sizeof(header)}, {const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = payload.empty() ? 1 : 2;
  FileRoom room;
  if (file >= 0) {
    message.msg_control = room.bytes;
    message.msg_controllen = sizeof(room.bytes);
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &file, sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return SocketEnd::kFine;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return SocketEnd::kClosed;
    if (!wait_for(socket, POLLOUT, deadline)) return SocketEnd::kLate;
  }
}

SocketEnd receive_message(int socket, Message& message, Deadline deadline) {
  std::vector<std::byte> bytes(kMaxPayload);
  iovec parts[] = {{&message.header, sizeof(message.header)}, {bytes.data(), bytes.size()}};
  msghdr raw{};
  FileRoom room;
  ssize_t got = 0;
  bool was_reset = false;
  for (;;) {
    raw = {};
    raw.msg_iov = parts;
    raw.msg_iovlen = 2;
    raw.msg_control = room.bytes;
    raw.msg_controllen = sizeof(room.bytes);
    got = recvmsg(socket, &raw, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0) break;
    if (errno == EINTR) continue;
    // Told once if the other side ended with something unread; what it had sent before is still there.
    if (errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return SocketEnd::kClosed;
    if (!wait_for(socket, POLLIN, deadline)) return SocketEnd::kLate;
  }
  if (const cmsghdr* control = CMSG_FIRSTHDR(&raw);
      control != nullptr && control->cmsg_type == SCM_RIGHTS && control->cmsg_len == CMSG_LEN(sizeof(int))) {
    int file = -1;
    std::memcpy(&file, CMSG_DATA(control), sizeof(int));
    message.file = FileDescriptor(file);
  }
  const auto header_bytes = static_cast<ssize_t>(sizeof(message.header));
  if (got < header_bytes || message.header.magic != MessageHeader{}.magic || message.header.bytes != got - header_bytes) return SocketEnd::kClosed;
  bytes.resize(message.header.bytes);
  message.payload = std::move(bytes);
  return SocketEnd::kFine;
}

}  // namespace monomoe
