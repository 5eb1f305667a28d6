// SPDX-License-Identifier: Apache-2.0
//
// A byte stream over a string, for saving and loading modules.
#ifndef ROMOU_DEVICE_RUNTIME_STREAM_H_
#define ROMOU_DEVICE_RUNTIME_STREAM_H_

#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace romou {

/// Writes append to `content`. Reads continue after the last read, and return fewer bytes at the end.
class StringStream final : public tvm::support::Stream {
 public:
  explicit StringStream(std::string text = {}) : content(std::move(text)) {}

  using Stream::Read;
  using Stream::Write;

  size_t Read(void* bytes, size_t count) final {
    const size_t available = std::min(count, content.size() - position_);
    std::memcpy(bytes, content.data() + position_, available);
    position_ += available;
    return available;
  }

  size_t Write(const void* bytes, size_t count) final {
    content.append(static_cast<const char*>(bytes), count);
    return count;
  }

  std::string content;

 private:
  size_t position_ = 0;
};

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_STREAM_H_
