// SPDX-License-Identifier: Apache-2.0
//
// Handshakes of TVM's protocol with many clients at a time, so that no client waits for another one.
#ifndef ROMOU_PHONE_HANDSHAKES_H_
#define ROMOU_PHONE_HANDSHAKES_H_

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "process.h"
#include "sockets.h"

namespace romou::phone {

// tvm/rpc/base.py.
inline constexpr int32_t kMagic = 0xff271, kMismatch = kMagic + 2;

/// A new client and the bytes that it sent so far: magic and length of its greeting come first.
struct Guest {
  static constexpr size_t kHeadBytes = 8, kMaxKeyBytes = 4096;

  Handle connection;
  std::string peer;
  int64_t until_ms = 0;
  std::string received;

  std::string greeting() const { return received.substr(kHeadBytes); }

  /// Read from the client and return whether its greeting is complete. Raises Disconnected if the client is gone, or does not speak the protocol.
  bool read() {
    while (const size_t missing = missing_bytes()) {
      char piece[kHeadBytes + kMaxKeyBytes];
      const ssize_t n = recv(connection.get(), piece, std::min(missing, sizeof(piece)), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
      if (n <= 0) throw Disconnected(n == 0 ? "closed by the other side" : std::strerror(errno));
      received.append(piece, static_cast<size_t>(n));
    }
    return true;
  }

 private:
  size_t missing_bytes() const {
    if (received.size() < kHeadBytes) return kHeadBytes - received.size();
    int32_t head[2];
    std::memcpy(head, received.data(), sizeof(head));
    if (head[0] != kMagic || head[1] < 0 || static_cast<size_t>(head[1]) > kMaxKeyBytes) throw Disconnected("it does not speak TVM's protocol");
    return kHeadBytes + static_cast<size_t>(head[1]) - received.size();
  }
};

/// Clients that connected and have not been served.
class Guests {
 public:
  /// Return the first client with a complete greeting, or none after `milliseconds` or at a signal.
  std::optional<Guest> next(int listener, int milliseconds) {
    const int64_t end_ms = now_ms() + milliseconds;
    while (!stopping) {
      for (auto guest = waiting_.begin(); guest != waiting_.end();) {
        try {
          if (guest->read()) {
            std::optional<Guest> found(std::move(*guest));
            waiting_.erase(guest);
            return found;
          }
          if (now_ms() > guest->until_ms) throw Disconnected("it said too little in " + std::to_string(kHandshakeMs) + " ms");
          ++guest;
        } catch (const Disconnected& error) {
          say("refused %s: %s", guest->peer.c_str(), error.what());
          guest = waiting_.erase(guest);
        }
      }
      int64_t until_ms = end_ms;
      std::vector<pollfd> watched = {{listener, POLLIN, 0}};
      for (const Guest& guest : waiting_) {
        until_ms = std::min(until_ms, guest.until_ms + 1);
        watched.push_back({guest.connection.get(), POLLIN, 0});
      }
      const int64_t left_ms = until_ms - now_ms();
      if (now_ms() >= end_ms) break;
      if (poll(watched.data(), watched.size(), static_cast<int>(std::max<int64_t>(left_ms, 0))) < 0) break;
      if (watched[0].revents != 0) accept_one(listener);
    }
    return std::nullopt;
  }

  /// Close this process's copies of the sockets without a message to the clients. For a child process, which does not serve them.
  void clear() { waiting_.clear(); }

 private:
  static constexpr size_t kMostGuests = 64;

  void accept_one(int listener) {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    Handle connection(accept4(listener, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
    if (!connection) return;
    if (waiting_.size() == kMostGuests) waiting_.erase(waiting_.begin());
    waiting_.push_back(Guest{std::move(connection), peer_name(address, length), now_ms() + kHandshakeMs, {}});
  }

  std::vector<Guest> waiting_;
};

}  // namespace romou::phone

#endif  // ROMOU_PHONE_HANDSHAKES_H_
