// SPDX-License-Identifier: Apache-2.0
//
// Sockets, and the numbers and texts of TVM's protocol on them.
#ifndef ROMOU_PHONE_SOCKETS_H_
#define ROMOU_PHONE_SOCKETS_H_

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace romou::phone {

constexpr int kHandshakeMs = 5000;  // a client that says nothing keeps nobody waiting for longer

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
  void reset(int fd = -1);

 private:
  int fd_;
};

/// The other side is gone, or does not speak the protocol.
struct Disconnected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Limit how long one send or receive waits; 0: for ever.
void set_patience(int fd, int milliseconds);

// Each raises Disconnected.
void send_all(int fd, const void* bytes, size_t count);
void receive_all(int fd, void* bytes, size_t count);
void send_number(int fd, int32_t value);
int32_t receive_number(int fd);
void send_text(int fd, std::string_view text);
std::string receive_text(int fd, size_t limit);

/// Call `use(const addrinfo&) -> bool` with each address of the host until it accepts one; return the last reason if it accepts none.
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
Handle listen_on(const std::string& host, int port);
int port_of(int fd);
bool is_loopback(int fd);
std::string peer_name(const sockaddr_storage& address, socklen_t length);

}  // namespace romou::phone

#endif  // ROMOU_PHONE_SOCKETS_H_
