// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: tensors as text in JSON.
#ifndef TVM_SUPPORT_BASE64_H_
#define TVM_SUPPORT_BASE64_H_

#include <tvm/ffi/extra/base64.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm::support {

/// Collects all written bytes. Finish writes them as base64.
class Base64OutStream : public Stream {
 public:
  explicit Base64OutStream(Stream* text) : text_(text) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) override { return 0; }
  size_t Write(const void* bytes, size_t count) override {
    content_.append(static_cast<const char*>(bytes), count);
    return count;
  }
  void Finish() {
    const std::string encoded = ffi::Base64Encode(TVMFFIByteArray{content_.data(), content_.size()});
    text_->Write(encoded.data(), encoded.size());
    content_.clear();
  }

 private:
  Stream* text_;
  std::string content_;
};

/// Reads base64 up to its end. InitPosition decodes it.
class Base64InStream : public Stream {
 public:
  explicit Base64InStream(Stream* text) : text_(text) {}

  using Stream::Read;
  using Stream::Write;

  void InitPosition() {
    std::string encoded;
    char piece[4096];
    while (const size_t count = text_->Read(piece, sizeof(piece))) encoded.append(piece, count);
    const ffi::Bytes decoded = ffi::Base64Decode(TVMFFIByteArray{encoded.data(), encoded.size()});
    content_.assign(decoded.data(), decoded.size());
    position_ = 0;
  }
  size_t Read(void* bytes, size_t count) override {
    count = std::min(count, content_.size() - position_);
    if (count != 0) std::memcpy(bytes, content_.data() + position_, count);
    position_ += count;
    return count;
  }
  size_t Write(const void*, size_t) override { return 0; }

 private:
  Stream* text_;
  std::string content_;
  size_t position_ = 0;
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_BASE64_H_
