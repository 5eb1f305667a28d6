// SPDX-License-Identifier: Apache-2.0
//
// Makes the logical device, with its heap, staging buffers and queue. These three include device.h, so this file is above them.
#include <tvm/ffi/error.h>

#include <memory>

#include "device.h"
#include "heap.h"
#include "memory.h"
#include "queue.h"

namespace romou::vulkan {

void Device::create() {
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = facts_.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = features_->chain();
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(features_->extensions().size());
  info.ppEnabledExtensionNames = features_->extensions().data();
  VkDevice made = VK_NULL_HANDLE;
  check(instance().vkCreateDevice(physical_, &info, nullptr, &made), "vkCreateDevice");
  handle_ = made;
  const auto find = [&](const char* name) { return instance().vkGetDeviceProcAddr(made, name); };
#define ROMOU_VK_RESOLVE(name)                                            \
  functions_.name = reinterpret_cast<PFN_##name>(find(#name));            \
  if (functions_.name == nullptr) TVM_FFI_THROW(RuntimeError) << "the driver of " << label() << " lacks " #name;
  ROMOU_VK_DEVICE_FUNCTIONS(ROMOU_VK_RESOLVE)
#undef ROMOU_VK_RESOLVE
  if (features_->has_push_descriptors()) {
    functions_.vkCmdPushDescriptorSetKHR = reinterpret_cast<PFN_vkCmdPushDescriptorSetKHR>(find("vkCmdPushDescriptorSetKHR"));
  }
  VkQueue opened = VK_NULL_HANDLE;
  functions_.vkGetDeviceQueue(made, facts_.queue_family, 0, &opened);
  heap_ = std::make_shared<Heap>(*this, made, functions_);
  staging_ = std::make_shared<Staging>();
  queue_ = std::make_shared<Queue>(*this, made, functions_, opened);
}

}  // namespace romou::vulkan
