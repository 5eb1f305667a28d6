// SPDX-License-Identifier: Apache-2.0
//
// Buffers and images of a device, and copies between them and the host. device_runtime/image_shape.h has the layout of images.
#ifndef ROMOU_OPENCL_MEMORY_H_
#define ROMOU_OPENCL_MEMORY_H_

#include <dlpack/dlpack.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cl_api.h"
#include "device.h"
#include "memory_head.h"

namespace romou::opencl {

/// Memory of a tensor.
struct Memory : MemoryHead {
  static constexpr uint64_t kMagic = 0x526f6d6f754d656dULL;

  explicit Memory(Device& of) : MemoryHead(kMagic), device(&of) {}

  /// Where a view is in a buffer: offset and bytes. A slice that is a buffer has an image without texels.
  using Slice = std::tuple<size_t, size_t, ImageShape>;

  Device* device;
  cl_mem handle = nullptr;
  Memory* whole = nullptr;          ///< the buffer that this is a view of, which counts the view's references and frees it
  std::map<Slice, Memory*> views;  ///< null: the driver has refused it
  /// The memory that counts the references.
  Memory& owner() { return whole == nullptr ? *this : *whole; }
};

using Place = PlaceOf<Memory>;

inline Memory* memory_of(const void* data) { return memory_behind<Memory>(data, "OpenCL"); }

/// Create a buffer of at least one byte, in memory of the host if `host` is given. Raises RuntimeError with sizes and limits if the device has no room.
Memory* create_buffer(Device& device, size_t bytes, cl_bitfield flags = CL_MEM_READ_WRITE, void* host = nullptr);
/// Create an image. Raises RuntimeError if the device has no images or the extent exceeds its limits.
Memory* create_image(Device& device, const ImageShape& shape);
/// Return a slice of a buffer as a buffer, for kernels, which take no offset. The driver keeps the whole buffer meanwhile. Raises RuntimeError if the
/// driver cannot do that.
Memory* create_window(Memory& whole, size_t offset, size_t bytes);
/// Return `bytes` bytes of a buffer as a buffer, or as an image if `image` has texels (cl_ext_image_from_buffer). Null if the driver cannot do that. Views stay
/// with the buffer, so a second request for one creates nothing.
Memory* view_of(Memory& whole, size_t offset, size_t bytes, const ImageShape& image);
/// Give one reference back. The last one frees the memory. Never raises.
void release(Memory* memory) noexcept;

struct MemoryReleaser {
  void operator()(Memory* memory) const noexcept { release(memory); }
};
/// A reference to memory, given back by its owner.
using SharedMemory = std::unique_ptr<Memory, MemoryReleaser>;

/// Copy `bytes`. To the host: done when it returns. From the host: the host's bytes are read when it returns. On one device: in order with later commands.
/// Of images, the first layers are copied, up to `bytes`.
void copy_to_host(const Place& from, char* host, size_t bytes);
void copy_from_host(const char* host, const Place& to, size_t bytes);
void copy_on_device(const Place& from, const Place& to, size_t bytes);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_MEMORY_H_
