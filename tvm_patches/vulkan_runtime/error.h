// SPDX-License-Identifier: Apache-2.0
//
// Errors of Vulkan calls: the message names the call, the code, the kernel if there is one, and the device.
#ifndef ROMOU_VULKAN_ERROR_H_
#define ROMOU_VULKAN_ERROR_H_

#include <string>

#include "api.h"

namespace romou::vulkan {

/// "VK_ERROR_DEVICE_LOST" for -4; "unknown Vulkan result" for a code that is none of Vulkan's.
const char* result_name(VkResult code);

/// Raise RuntimeError "<call> failed: <name> (<code>) ..."; `kernel` and `detail` are left out if they are empty. `Device::check` is the way to it.
[[noreturn]] void raise_error(VkResult code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail);

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_ERROR_H_
