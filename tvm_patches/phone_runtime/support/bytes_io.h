// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: streams over a string.
#ifndef TVM_SUPPORT_BYTES_IO_H_
#define TVM_SUPPORT_BYTES_IO_H_

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm::support {

/// Reads content that outlives the stream.
class BytesInStream : public Stream {
 public:
  explicit BytesInStream(const std::string& content) : data_(content.data()), left_(content.size()) {}
  explicit BytesInStream(const ffi::Bytes& content) : data_(content.data()), left_(content.size()) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* bytes, size_t count) override {
    count = std::min(count, left_);
    if (count != 0) std::memcpy(bytes, data_, count);
    data_ += count;
    left_ -= count;
    return count;
  }
  size_t Write(const void*, size_t) override { return 0; }

 private:
  const char* data_;
  size_t left_;
};

/// Appends to a string.
class BytesOutStream : public Stream {
 public:
  explicit BytesOutStream(std::string* result) : result_(result) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) override { return 0; }
  size_t Write(const void* bytes, size_t count) override {
    result_->append(static_cast<const char*>(bytes), count);
    return count;
  }

 private:
  std::string* result_;
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_BYTES_IO_H_
