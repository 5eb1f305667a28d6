// SPDX-License-Identifier: Apache-2.0
//
// Sockets.
#include "sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/time.h>
#include <unistd.h>

#include "process.h"

namespace romou::phone {

void Handle::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

void set_patience(int fd, int milliseconds) {
  const timeval limit{milliseconds / 1000, (milliseconds % 1000) * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void send_all(int fd, const void* bytes, size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count != 0;) {
    const ssize_t n = send(fd, at, count, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

void receive_all(int fd, void* bytes, size_t count) {
  for (char* at = static_cast<char*>(bytes); count != 0;) {
    const ssize_t n = recv(fd, at, count, 0);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(n == 0 ? "closed by the other side" : std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

// TVM's protocol is little-endian on every machine that it runs on.
void send_number(int fd, int32_t value) { send_all(fd, &value, sizeof(value)); }
int32_t receive_number(int fd) {
  int32_t value = 0;
  receive_all(fd, &value, sizeof(value));
  return value;
}
void send_text(int fd, std::string_view text) {
  send_number(fd, static_cast<int32_t>(text.size()));
  send_all(fd, text.data(), text.size());
}
std::string receive_text(int fd, size_t limit) {
  const int32_t size = receive_number(fd);
  if (size < 0 || static_cast<size_t>(size) > limit) throw Disconnected("it does not speak TVM's protocol");
  std::string text(static_cast<size_t>(size), '\0');
  receive_all(fd, text.data(), text.size());
  return text;
}

Handle listen_on(const std::string& host, int port) {
  Handle listener;
  const std::string reason = try_addresses(host, port, AI_PASSIVE, [&](const addrinfo& at) {
    listener.reset(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return bind(listener.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(listener.get(), 16) == 0;
  });
  if (!reason.empty()) refuse("cannot listen on " + host + ":" + std::to_string(port) + ": " + reason);
  return listener;
}

namespace {

sockaddr_storage own_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

}  // namespace

int port_of(int fd) {
  const sockaddr_storage address = own_address(fd);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(int fd) {
  const sockaddr_storage address = own_address(fd);
  if (address.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

std::string peer_name(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return std::string(host) + ":" + port;
}

}  // namespace romou::phone
