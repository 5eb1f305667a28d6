// SPDX-License-Identifier: Apache-2.0
//
// Copies between the host, buffers and images.
#ifndef ROMOU_VULKAN_COPIES_H_
#define ROMOU_VULKAN_COPIES_H_

#include "memory.h"

namespace romou::vulkan {

/// Copy `bytes`. To the host: done when it returns. From the host: the host's bytes are read when it returns. On one device: in order with later commands.
/// Of images, the first layers are copied, up to `bytes`.
void copy_to_host(const Place& from, char* host, size_t bytes);
void copy_from_host(const char* host, const Place& to, size_t bytes);
void copy_on_device(const Place& from, const Place& to, size_t bytes);

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_COPIES_H_
