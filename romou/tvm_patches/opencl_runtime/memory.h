// SPDX-License-Identifier: Apache-2.0
//
// Buffers and images, and the rule by which a tensor becomes an image.
//
// A tensor whose memory scope names a texture is stored as a 2D-array image (image2d_array_t) of RGBA texels. Its last axis must
// be 4 and becomes the lanes of a texel; float32 gives 128-bit texels, float16 64-bit ones. A separator s splits the other axes:
//
//     layers = product of shape[0 .. s-2]     height = shape[s-1]     width = product of shape[s .. ndim-2]
//
//     scope                     s           example
//     "global.texture"          ndim - 2    (n, c, h, w, 4)  ->  layers n*c, height h, width w
//     "global.texture-weight"   1           (o, i, h, w, 4)  ->  layers 1, height o, width i*h*w
//     "global.texture-nhwc"     2           (n, h, w, c, 4)  ->  layers n, height h, width w*c
//
// Two scopes more are for kernels written by hand, which declare image1d_t and image2d_t; texels may be of int32 there as well:
//
//     "global.image1d"          (w, 4)           "global.image2d"          (h, w, 4)
//
// This is what TVM's texture lowering expects, so its kernels and ours agree. A tensor of two axes (x, 4) has s = 0 under
// "global.texture": one layer, one row of x texels. Row-major order of the tensor is row-major order of layers, rows and texels
// under every scope, so copies between images of different shape go through a buffer without reordering.
#ifndef ROMOU_OPENCL_MEMORY_H_
#define ROMOU_OPENCL_MEMORY_H_

#include <dlpack/dlpack.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cl_api.h"
#include "device.h"

namespace romou::opencl {

/// Extent of an image in texels, the bytes of one texel (8 or 16), and its kind.
struct ImageShape {
  size_t width = 0, height = 0, layers = 0, texel_bytes = 0;
  cl_uint object = CL_MEM_OBJECT_IMAGE2D_ARRAY;
  bool is_integer = false;
  size_t bytes() const { return width * height * layers * texel_bytes; }
  bool operator==(const ImageShape&) const = default;
};

/// "" and "global" are buffers.
bool is_buffer_scope(const std::string& scope);

/// The image of a tensor, by the rule above. Raises ValueError for an unknown scope, a last axis other than 4, a type that the scope
/// does not know, an extent of zero, or more bytes than can be counted.
ImageShape image_shape_of(int ndim, const int64_t* shape, DLDataType dtype, const std::string& scope);

/// What a tensor's `data` points to. Aligned as TVM requires of data pointers.
struct alignas(64) Memory {
  uint64_t magic = kMagic;  ///< tells our memory from a host pointer that was passed by mistake
  cl_mem handle = nullptr;
  Device* device = nullptr;
  size_t bytes = 0;
  std::atomic<int> references{1};  ///< whoever allocated it, and recorded command buffers that use it
  bool is_image = false;
  bool is_view = false;  ///< an image made for one tensor of a shared storage
  ImageShape image;

  static constexpr uint64_t kMagic = 0x526f6d6f754d656dULL;
};

/// The memory behind a data pointer. Raises ValueError if it is not ours.
Memory* memory_of(const void* data);

/// A buffer of at least one byte. Raises RuntimeError with sizes and limits if the device has no room.
Memory* create_buffer(Device& device, size_t bytes);
/// Raises RuntimeError if the device has no images or the extent exceeds its limits.
Memory* create_image(Device& device, const ImageShape& shape);
/// Give one reference back; the last one frees the memory. Never raises.
void release(Memory* memory) noexcept;

struct MemoryReleaser {
  void operator()(Memory* memory) const noexcept { release(memory); }
};
/// One reference.
using SharedMemory = std::unique_ptr<Memory, MemoryReleaser>;

/// Copy `bytes` between two places, each either device memory or (`memory` null) host memory. Done when it returns if the host
/// takes part; in order with later commands otherwise. Images are copied whole.
struct Place {
  Memory* memory = nullptr;
  void* host = nullptr;
  size_t offset = 0;
};
void copy(const Place& from, const Place& to, size_t bytes);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_MEMORY_H_
