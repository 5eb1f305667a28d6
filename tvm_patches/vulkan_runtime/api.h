// SPDX-License-Identifier: Apache-2.0
//
// Types and values of Vulkan (third_party/vulkan), without prototypes: every function is looked up at run time.
#ifndef ROMOU_VULKAN_API_H_
#define ROMOU_VULKAN_API_H_

#define VK_NO_PROTOTYPES 1
#include <vulkan/vulkan_core.h>

#endif  // ROMOU_VULKAN_API_H_
