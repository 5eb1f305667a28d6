// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: the TCP functions of rpc_socket_impl.cc.
#ifndef TVM_SUPPORT_SOCKET_H_
#define TVM_SUPPORT_SOCKET_H_

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tvm::support {

/// A resolved host and port, for IPv4 and IPv6.
class SockAddr {
 public:
  SockAddr(const char* host, int port) : text_(std::string(host) + ":" + std::to_string(port)) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int code = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found); code != 0) {
      TVM_FFI_THROW(ValueError) << "cannot resolve " << text_ << ": " << gai_strerror(code);
    }
    std::memcpy(&storage_, found->ai_addr, found->ai_addrlen);
    length_ = found->ai_addrlen;
    freeaddrinfo(found);
  }
  int ss_family() const { return storage_.ss_family; }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  std::string AsString() const { return text_; }

 private:
  std::string text_;
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

struct Socket {
  [[noreturn]] static void Error(const char* what) { TVM_FFI_THROW(InternalError) << what << ": " << std::strerror(errno); }
};

/// A handle. As in TVM, copies share the socket, and only Close closes it.
class TCPSocket : public Socket {
 public:
  using SockType = int;

  TCPSocket() = default;
  explicit TCPSocket(SockType handle) : handle_(handle) {}

  void Create(int family) {
    handle_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (handle_ < 0) Error("socket");
  }
  bool Connect(const SockAddr& to) {
    // Requests are small and wait for an answer each.
    const int on = 1;
    setsockopt(handle_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return connect(handle_, to.address(), to.length()) == 0;
  }
  bool BadSocket() const { return handle_ < 0; }
  void Close() {
    if (handle_ >= 0) close(handle_);
    handle_ = -1;
  }
  ssize_t Send(const void* bytes, size_t count) { return Retry([&] { return send(handle_, bytes, count, MSG_NOSIGNAL); }); }
  ssize_t Recv(void* bytes, size_t count) { return Retry([&] { return recv(handle_, bytes, count, 0); }); }
  size_t SendAll(const void* bytes, size_t count) {
    return All(count, [&](size_t done) { return Send(static_cast<const char*>(bytes) + done, count - done); });
  }
  size_t RecvAll(void* bytes, size_t count) {
    return All(count, [&](size_t done) { return Recv(static_cast<char*>(bytes) + done, count - done); });
  }

 private:
  template <typename F>
  static ssize_t Retry(F call) {
    ssize_t result;
    do {
      result = call();
    } while (result < 0 && errno == EINTR);
    return result;
  }
  /// Return the number of bytes transferred before the end or an error.
  template <typename F>
  static size_t All(size_t count, F part) {
    size_t done = 0;
    while (done < count) {
      const ssize_t n = part(done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  int handle_ = -1;
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_SOCKET_H_
