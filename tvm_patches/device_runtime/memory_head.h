// SPDX-License-Identifier: Apache-2.0
//
// The common part of the runtimes' tensors: the head of their memory, and places to copy from and to.
#ifndef ROMOU_DEVICE_RUNTIME_MEMORY_HEAD_H_
#define ROMOU_DEVICE_RUNTIME_MEMORY_HEAD_H_

#include <tvm/ffi/error.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "image_shape.h"

namespace romou {

/// The beginning of the memory that a tensor's `data` points to. Aligned as TVM requires of data pointers.
struct alignas(64) MemoryHead {
  uint64_t magic;  ///< distinguishes our memory from a host pointer that was passed by mistake, and the two runtimes' memory
  size_t bytes = 0;
  std::atomic<int> references{1};  ///< the owner, and commands on the device that still use it
  bool is_image = false;
  bool is_view = false;  ///< an image made for one tensor of a shared storage
  ImageShape image;
  void* host = nullptr;  ///< the host's memory that the buffer is, for as long as somebody has bound it. No pool keeps it

  explicit MemoryHead(uint64_t kind) : magic(kind) {}
};

/// The memory behind a data pointer. Raises ValueError if it is not of this runtime.
template <typename Memory>
Memory* memory_behind(const void* data, const char* api) {
  auto* memory = const_cast<Memory*>(static_cast<const Memory*>(data));
  if (memory == nullptr || memory->magic != Memory::kMagic) {
    TVM_FFI_THROW(ValueError) << "a data pointer was passed to " << api << " that this runtime did not allocate (a host tensor, or one of another device?)";
  }
  return memory;
}

/// Either device memory or (`memory` null) host memory.
template <typename Memory>
struct PlaceOf {
  Memory* memory = nullptr;
  void* host = nullptr;
  size_t offset = 0;
};

/// An image may serve a tensor of fewer layers. No other slice of it is copied.
template <typename Memory>
void require_whole_layers(const PlaceOf<Memory>& place, size_t bytes) {
  if (place.memory == nullptr || !place.memory->is_image) return;
  const ImageShape& shape = place.memory->image;
  if (place.offset != 0 || bytes > shape.bytes() || bytes % (shape.bytes() / shape.layers) != 0) {
    TVM_FFI_THROW(ValueError) << "of an image, whole layers are copied, from the first one: asked for " << bytes << " bytes at offset " << place.offset << " of an image of " << shape.text()
                              << ", " << shape.bytes() << " bytes, on " << place.memory->device->label();
  }
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_MEMORY_HEAD_H_
