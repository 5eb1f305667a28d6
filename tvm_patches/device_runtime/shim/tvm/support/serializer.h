// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for the second header missing from apache-tvm 0.27.0.post1 (see io.h beside it). The byte layout is TVM's, so that a
// module saved by the wheel without an OpenCL runtime loads here: little-endian scalars, a 64-bit count before every sequence.
#ifndef TVM_SUPPORT_SERIALIZER_H_
#define TVM_SUPPORT_SERIALIZER_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/endian.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tvm::support {

static_assert(std::endian::native == std::endian::little, "the stream layout is little-endian");

namespace shim {

/// Read a count and then call `element()` for each element. Return false as soon as one is missing.
template <typename F>
bool read_sequence(Stream* stream, F element) {
  uint64_t count = 0;
  if (stream->Read(&count, sizeof(count)) != sizeof(count)) return false;
  while (count-- != 0) {
    if (!element()) return false;
  }
  return true;
}

inline void write_count(Stream* stream, size_t size) {
  uint64_t count = size;
  stream->Write(&count, sizeof(count));
}

/// Text and bytes: a count and the raw content.
template <typename T>
struct RawSequence {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const T& value) {
    write_count(stream, value.size());
    if (value.size() != 0) stream->Write(value.data(), value.size());
  }
  static bool Read(Stream* stream, T* value) {
    uint64_t count = 0;
    if (stream->Read(&count, sizeof(count)) != sizeof(count)) return false;
    // Allocate memory piece by piece while there are bytes, because a damaged file may claim any number of bytes.
    std::string content;
    for (uint64_t done = 0; done < count; done = content.size()) {
      content.resize(done + std::min<uint64_t>(count - done, std::max<uint64_t>(done, 1 << 16)));
      if (stream->Read(content.data() + done, content.size() - done) != content.size() - done) return false;
    }
    *value = T(std::move(content));
    return true;
  }
};

}  // namespace shim

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
};

template <>
struct Serializer<std::string> : shim::RawSequence<std::string> {};
template <>
struct Serializer<ffi::String> : shim::RawSequence<ffi::String> {};
template <>
struct Serializer<ffi::Bytes> : shim::RawSequence<ffi::Bytes> {};

template <>
struct Serializer<DLDataType> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const DLDataType& type) {
    stream->Write(type.code);
    stream->Write(type.bits);
    stream->Write(type.lanes);
  }
  static bool Read(Stream* stream, DLDataType* type) {
    return stream->Read(&type->code) && stream->Read(&type->bits) && stream->Read(&type->lanes);
  }
};

template <>
struct Serializer<DLDevice> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const DLDevice& device) {
    stream->Write(static_cast<int32_t>(device.device_type));
    stream->Write(device.device_id);
  }
  static bool Read(Stream* stream, DLDevice* device) {
    int32_t kind = 0;
    if (!stream->Read(&kind)) return false;
    device->device_type = static_cast<DLDeviceType>(kind);
    return stream->Read(&device->device_id);
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const ffi::Array<T>& values) {
    shim::write_count(stream, values.size());
    for (const T& value : values) Serializer<T>::Write(stream, value);
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    ffi::Array<T> result;
    bool complete = shim::read_sequence(stream, [&] {
      T value;
      if (!Serializer<T>::Read(stream, &value)) return false;
      result.push_back(std::move(value));
      return true;
    });
    *values = std::move(result);
    return complete;
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;
  static void Write(Stream* stream, const std::vector<T>& values) {
    shim::write_count(stream, values.size());
    for (const T& value : values) Serializer<T>::Write(stream, value);
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    values->clear();
    return shim::read_sequence(stream, [&] { return Serializer<T>::Read(stream, &values->emplace_back()); });
  }
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_SERIALIZER_H_
