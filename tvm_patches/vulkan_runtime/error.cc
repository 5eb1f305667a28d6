// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <tvm/ffi/error.h>

#include <sstream>

namespace romou::vulkan {

const char* result_name(VkResult code) {
  switch (code) {
#define ROMOU_VK_NAME(name) \
  case name:                \
    return #name;
    ROMOU_VK_NAME(VK_SUCCESS)
    ROMOU_VK_NAME(VK_NOT_READY)
    ROMOU_VK_NAME(VK_TIMEOUT)
    ROMOU_VK_NAME(VK_INCOMPLETE)
    ROMOU_VK_NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
    ROMOU_VK_NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
    ROMOU_VK_NAME(VK_ERROR_INITIALIZATION_FAILED)
    ROMOU_VK_NAME(VK_ERROR_DEVICE_LOST)
    ROMOU_VK_NAME(VK_ERROR_MEMORY_MAP_FAILED)
    ROMOU_VK_NAME(VK_ERROR_LAYER_NOT_PRESENT)
    ROMOU_VK_NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
    ROMOU_VK_NAME(VK_ERROR_FEATURE_NOT_PRESENT)
    ROMOU_VK_NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
    ROMOU_VK_NAME(VK_ERROR_TOO_MANY_OBJECTS)
    ROMOU_VK_NAME(VK_ERROR_FORMAT_NOT_SUPPORTED)
    ROMOU_VK_NAME(VK_ERROR_FRAGMENTED_POOL)
    ROMOU_VK_NAME(VK_ERROR_UNKNOWN)
    ROMOU_VK_NAME(VK_ERROR_OUT_OF_POOL_MEMORY)
    ROMOU_VK_NAME(VK_ERROR_FRAGMENTATION)
    ROMOU_VK_NAME(VK_ERROR_INVALID_SHADER_NV)
    ROMOU_VK_NAME(VK_PIPELINE_COMPILE_REQUIRED)
#undef ROMOU_VK_NAME
    default:
      return "unknown Vulkan result";
  }
}

void raise_error(VkResult code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail) {
  std::ostringstream text;
  text << call << " failed: " << result_name(code) << " (" << static_cast<int>(code) << ")";
  if (!kernel.empty()) text << "; kernel " << kernel;
  if (!device.empty()) text << "; device " << device;
  if (!detail.empty()) text << "; " << detail;
  if (code == VK_ERROR_DEVICE_LOST) {
    text << "; the device is lost: a kernel hung or reached outside of its memory, or the driver failed. This process cannot use it any more.";
  }
  TVM_FFI_THROW(RuntimeError) << text.str();
  TVM_FFI_UNREACHABLE();
}

}  // namespace romou::vulkan
