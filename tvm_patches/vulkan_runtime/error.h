// SPDX-License-Identifier: Apache-2.0
//
// Errors of Vulkan calls: the message names the call, the code, the kernel if there is one, and the device.
#ifndef ROMOU_VULKAN_ERROR_H_
#define ROMOU_VULKAN_ERROR_H_

#include <string>

#include "api.h"

namespace romou::vulkan {

/// Return the name of a code: "VK_ERROR_DEVICE_LOST" for -4, "unknown Vulkan result" for a code that Vulkan does not have.
const char* result_name(VkResult code);

/// Raise RuntimeError "<call> failed: <name> (<code>) ...". Empty `kernel` and `detail` are left out. Use `Device::check` instead if there is a
/// device.
[[noreturn]] void raise_error(VkResult code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail);

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_ERROR_H_
