// SPDX-License-Identifier: Apache-2.0
//
// Opens the Vulkan loader at run time, and makes the process's one instance. Nothing of Vulkan is linked.
#ifndef ROMOU_VULKAN_LOADER_H_
#define ROMOU_VULKAN_LOADER_H_

#include <string>
#include <vector>

#include "api.h"

namespace romou::vulkan {

#define ROMOU_VK_GLOBAL_FUNCTIONS(X) X(vkCreateInstance) X(vkEnumerateInstanceLayerProperties) X(vkEnumerateInstanceVersion)

#define ROMOU_VK_INSTANCE_FUNCTIONS(X)                                                                                                    \
  X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties) X(vkGetPhysicalDeviceProperties2) X(vkGetPhysicalDeviceFeatures2)        \
  X(vkGetPhysicalDeviceMemoryProperties) X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkEnumerateDeviceExtensionProperties)              \
  X(vkGetPhysicalDeviceFormatProperties) X(vkCreateDevice) X(vkGetDeviceProcAddr)

/// Vulkan in this process: the opened library and its instance. Either all functions are set, or `failure` has the reason and none may be called.
struct Instance {
#define ROMOU_VK_DECLARE(name) PFN_##name name = nullptr;
  ROMOU_VK_GLOBAL_FUNCTIONS(ROMOU_VK_DECLARE)
  ROMOU_VK_INSTANCE_FUNCTIONS(ROMOU_VK_DECLARE)
#undef ROMOU_VK_DECLARE
  PFN_vkGetInstanceProcAddr find = nullptr;  ///< for functions of extensions
  VkInstance handle = VK_NULL_HANDLE;
  std::string library;  ///< name or path of the opened library, or empty
  std::string failure;  ///< why there is no instance: one line per attempt
};

/// Return the library, opened at the first call and never closed (drivers do not survive dlclose). Search order: only $ROMOU_VULKAN_LIBRARY if it is
/// set, else the system's loader. ROMOU_VULKAN_VALIDATE=1 enables the validation layer, with checks of synchronisation.
const Instance& instance();

/// Raise RuntimeError with the validation layer's messages since the last call. Called after each wait for a device.
void raise_complaints();

/// Return whether a name is in $ROMOU_VULKAN_WITHOUT, a list separated by commas: extensions, or "unified_memory". The runtime does not use these
/// abilities of a driver.
bool is_left_out(const std::string& ability);

/// True once the process runs its exit handlers. Drivers may have shut down, so nothing is released any more.
bool is_exiting();

/// True in a process that was forked from one with an instance. The drivers' threads are missing there, and a wait would never end.
bool is_forked();

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_LOADER_H_
