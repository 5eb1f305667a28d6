// SPDX-License-Identifier: Apache-2.0
//
// Makes buffers and images. If memory is short, it waits for the queue, so that freed memory is given back first.
#ifndef ROMOU_VULKAN_ALLOCATION_H_
#define ROMOU_VULKAN_ALLOCATION_H_

#include "memory.h"

namespace romou::vulkan {

/// Create a buffer of at least one byte. Raises RuntimeError with sizes and limits if the device has no room.
Memory* create_buffer(Device& device, size_t bytes, MemoryUse use = MemoryUse::kDevice);
/// Create an image. Raises RuntimeError if the device has no images or the extent exceeds its limits.
Memory* create_image(Device& device, const ImageShape& shape);

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_ALLOCATION_H_
