// SPDX-License-Identifier: Apache-2.0
//
// Sockets, and the numbers and texts of TVM's protocol on them. A lost connection raises Disconnected.
#ifndef ROMOU_PHONE_SOCKETS_H_
#define ROMOU_PHONE_SOCKETS_H_

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "process.h"

namespace romou::phone {

inline constexpr int kHandshakeMs = 5000;  // for a whole handshake

/// A file descriptor that is closed with its owner.
class Handle {
 public:
  explicit Handle(int fd = -1) : fd_(fd) {}
  Handle(Handle&& other) noexcept : fd_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Handle() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

/// The other side is gone, or does not speak the protocol.
struct Disconnected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Limit the time of one send or receive. 0 for no limit.
inline void set_patience(int fd, int milliseconds) {
  const timeval limit{milliseconds / 1000, (milliseconds % 1000) * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

inline void send_all(int fd, const void* bytes, size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count != 0;) {
    const ssize_t n = send(fd, at, count, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

inline void receive_all(int fd, void* bytes, size_t count) {
  for (char* at = static_cast<char*>(bytes); count != 0;) {
    const ssize_t n = recv(fd, at, count, 0);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(n == 0 ? "closed by the other side" : std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

// TVM's protocol is little-endian on every machine that it runs on.
inline void send_number(int fd, int32_t value) { send_all(fd, &value, sizeof(value)); }
inline int32_t receive_number(int fd) {
  int32_t value = 0;
  receive_all(fd, &value, sizeof(value));
  return value;
}
inline void send_text(int fd, std::string_view text) {
  send_number(fd, static_cast<int32_t>(text.size()));
  send_all(fd, text.data(), text.size());
}
inline std::string receive_text(int fd, size_t limit) {
  const int32_t size = receive_number(fd);
  if (size < 0 || static_cast<size_t>(size) > limit) throw Disconnected("it does not speak TVM's protocol");
  std::string text(static_cast<size_t>(size), '\0');
  receive_all(fd, text.data(), text.size());
  return text;
}

/// Call `use(const addrinfo&) -> bool` with each address of the host until it accepts one. Return the reason of the last failure if it accepts none.
template <typename F>
std::string try_addresses(const std::string& host, int port, int flags, F use) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0) return gai_strerror(code);
  std::string reason = "no address";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (use(*each)) {
      reason.clear();
      break;
    }
    reason = std::strerror(errno);
  }
  freeaddrinfo(found);
  return reason;
}

/// Listen on a port, or end the program with a message. Port 0: any free one.
inline Handle listen_on(const std::string& host, int port) {
  Handle listener;
  const std::string reason = try_addresses(host, port, AI_PASSIVE, [&](const addrinfo& at) {
    listener.reset(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return bind(listener.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(listener.get(), 128) == 0;
  });
  if (!reason.empty()) refuse("cannot listen on " + host + ":" + std::to_string(port) + ": " + reason);
  return listener;
}

inline sockaddr_storage own_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

inline int port_of(int fd) {
  const sockaddr_storage address = own_address(fd);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

inline bool is_loopback(int fd) {
  const sockaddr_storage address = own_address(fd);
  if (address.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

inline std::string peer_name(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return std::string(host) + ":" + port;
}

}  // namespace romou::phone

#endif  // ROMOU_PHONE_SOCKETS_H_
