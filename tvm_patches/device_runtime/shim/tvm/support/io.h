// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes from <tvm/runtime/tensor.h> but does not ship.
// Only what those headers name is declared: a byte stream with typed reads and writes through Serializer<T>.
#ifndef TVM_SUPPORT_IO_H_
#define TVM_SUPPORT_IO_H_

#include <cstddef>
#include <cstdint>

namespace tvm::support {

/// Specialised per type. `enabled`: whether the type can be streamed.
template <typename T, typename Enable = void>
struct Serializer {
  static constexpr bool enabled = false;
};

class Stream {
 public:
  virtual size_t Read(void* bytes, size_t count) = 0;
  virtual size_t Write(const void* bytes, size_t count) = 0;
  virtual ~Stream() = default;

  template <typename T>
  void Write(const T& value) {
    static_assert(Serializer<T>::enabled, "this type has no Serializer");
    Serializer<T>::Write(this, value);
  }

  template <typename T>
  bool Read(T* value) {
    static_assert(Serializer<T>::enabled, "this type has no Serializer");
    return Serializer<T>::Read(this, value);
  }

  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (const T* end = values + count; values != end; ++values) Write<T>(*values);
  }

  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (const T* end = values + count; values != end; ++values) {
      if (!Read<T>(values)) return false;
    }
    return true;
  }
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_IO_H_
