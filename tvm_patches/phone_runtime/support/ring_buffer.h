// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: the bytes between an RPC endpoint and its socket.
#ifndef TVM_SUPPORT_RING_BUFFER_H_
#define TVM_SUPPORT_RING_BUFFER_H_

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace tvm::support {

/// Bytes in the order of their arrival, contiguous in memory. Bytes that were read are dropped when room is needed.
class RingBuffer {
 public:
  size_t bytes_available() const { return end_ - begin_; }

  /// Make room for `bytes` unread bytes in all.
  void Reserve(size_t bytes) {
    if (begin_ + bytes <= data_.size()) return;
    std::memmove(data_.data(), data_.data() + begin_, bytes_available());
    end_ -= begin_;
    begin_ = 0;
    // A packet may hold a whole module or tensor: its memory goes back once smaller ones follow.
    const bool is_oversized = data_.size() > kKeptBytes && bytes < data_.size() / 4;
    if (bytes <= data_.size() && !is_oversized) return;
    data_.resize(std::max({bytes, end_, kInitialBytes}));
    if (is_oversized) data_.shrink_to_fit();
  }

  void Write(const void* bytes, size_t count) {
    if (end_ + count > data_.size()) {
      // Doubling keeps many small writes linear in time.
      const size_t needed = bytes_available() + count;
      Reserve(needed > data_.size() ? 2 * needed : needed);
    }
    if (count != 0) std::memcpy(data_.data() + end_, bytes, count);
    end_ += count;
  }

  void Read(void* bytes, size_t count) {
    TVM_FFI_ICHECK_GE(bytes_available(), count) << "an RPC packet is shorter than it says";
    if (count != 0) std::memcpy(bytes, data_.data() + begin_, count);
    Drop(count);
  }

  /// Let `send(const char*, size_t) -> size_t` take up to `limit` bytes. Return the number that it took.
  template <typename F>
  size_t ReadWithCallback(F send, size_t limit) {
    const size_t taken = send(data_.data() + begin_, std::min(limit, bytes_available()));
    Drop(taken);
    return taken;
  }

  /// Let `receive(char*, size_t) -> size_t` give up to `limit` bytes. Return the number that it gave.
  template <typename F>
  size_t WriteWithCallback(F receive, size_t limit) {
    Reserve(bytes_available() + limit);
    const size_t given = receive(data_.data() + end_, limit);
    end_ += given;
    return given;
  }

 private:
  static constexpr size_t kInitialBytes = 4 << 10;
  static constexpr size_t kKeptBytes = 1 << 20;

  void Drop(size_t count) {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
  }

  std::vector<char> data_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_RING_BUFFER_H_
