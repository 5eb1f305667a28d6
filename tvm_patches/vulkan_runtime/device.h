// SPDX-License-Identifier: Apache-2.0
//
// The devices of this process: enumeration, selection by name, and each device's logical device.
#ifndef ROMOU_VULKAN_DEVICE_H_
#define ROMOU_VULKAN_DEVICE_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "device_features.h"
#include "loader.h"

namespace romou::vulkan {

class Heap;
class Queue;
class Staging;

#define ROMOU_VK_DEVICE_FUNCTIONS(X)                                                                                                          \
  X(vkGetDeviceQueue) X(vkAllocateMemory) X(vkFreeMemory) X(vkMapMemory) X(vkCreateBuffer) X(vkDestroyBuffer)                                  \
  X(vkGetBufferMemoryRequirements) X(vkBindBufferMemory) X(vkCreateImage) X(vkDestroyImage) X(vkGetImageMemoryRequirements)                    \
  X(vkBindImageMemory) X(vkCreateImageView) X(vkDestroyImageView) X(vkCreateShaderModule) X(vkDestroyShaderModule)                             \
  X(vkCreateDescriptorSetLayout) X(vkDestroyDescriptorSetLayout) X(vkCreatePipelineLayout) X(vkDestroyPipelineLayout)                          \
  X(vkCreatePipelineCache) X(vkDestroyPipelineCache) X(vkGetPipelineCacheData) X(vkCreateComputePipelines) X(vkDestroyPipeline)                \
  X(vkCreateDescriptorPool) X(vkDestroyDescriptorPool) X(vkResetDescriptorPool) X(vkAllocateDescriptorSets) X(vkUpdateDescriptorSets)          \
  X(vkCreateCommandPool) X(vkDestroyCommandPool) X(vkResetCommandPool) X(vkAllocateCommandBuffers) X(vkBeginCommandBuffer)                     \
  X(vkEndCommandBuffer) X(vkCreateFence) X(vkDestroyFence) X(vkResetFences) X(vkGetFenceStatus) X(vkWaitForFences) X(vkQueueSubmit)            \
  X(vkCreateQueryPool) X(vkDestroyQueryPool) X(vkGetQueryPoolResults) X(vkCmdResetQueryPool) X(vkCmdWriteTimestamp) X(vkCmdPipelineBarrier)    \
  X(vkCmdBindPipeline) X(vkCmdBindDescriptorSets) X(vkCmdPushConstants) X(vkCmdDispatch) X(vkCmdCopyBuffer) X(vkCmdCopyBufferToImage)          \
  X(vkCmdCopyImageToBuffer) X(vkCmdCopyImage)

struct DeviceFunctions {
#define ROMOU_VK_DECLARE(name) PFN_##name name = nullptr;
  ROMOU_VK_DEVICE_FUNCTIONS(ROMOU_VK_DECLARE)
  ROMOU_VK_DECLARE(vkCmdPushDescriptorSetKHR)  // null without the extension
#undef ROMOU_VK_DECLARE
};

/// The driver's answers, queried once at enumeration.
struct DeviceFacts {
  std::string platform, name, vendor, driver, version, extensions;
  std::string uuid;  ///< of the hardware, then of its driver. Compiled pipelines are valid for devices with the same UUIDs
  VkPhysicalDeviceType type = VK_PHYSICAL_DEVICE_TYPE_OTHER;
  VkPhysicalDeviceLimits limits{};
  uint32_t api_version = 0, compute_units = 0, subgroup_size = 1;
  uint64_t global_mem_bytes = 0, max_alloc_bytes = 0;
  bool has_images = false, has_unified_memory = false;
  uint32_t queue_family = 0, timestamp_bits = 0;
  VkSubgroupFeatureFlags subgroup_operations = 0;  ///< of compute shaders
  bool has_subgroup(VkSubgroupFeatureFlags wanted) const { return (subgroup_operations & wanted) == wanted; }
};

/// One Vulkan device with its logical device and a queue. Thread-safe.
class Device {
 public:
  explicit Device(VkPhysicalDevice physical);
  ~Device();

  const DeviceFacts& facts() const { return facts_; }
  const Features& features() const { return *features_; }
  const VkPhysicalDeviceMemoryProperties& memory_types() const { return memory_types_; }
  /// "vulkan:0 'name' (platform)"
  std::string label() const;
  int type_rank() const;
  int index = 0;  ///< the N of vulkan:N
  /// Return the device that this thread's host code chose last.
  static int& current() {
    thread_local int index = 0;
    return index;
  }

  /// Return the logical device and its functions. It is created at the first use, so that listing devices costs nothing.
  VkDevice handle() {
    open();
    return handle_;
  }
  const DeviceFunctions& vk() {
    open();
    return functions_;
  }
  Queue& queue() {
    open();
    return *queue_;
  }
  Heap& heap() {
    open();
    return *heap_;
  }
  Staging& staging() {
    open();
    return *staging_;
  }
  /// Raise RuntimeError that names the call and this device unless `code` is VK_SUCCESS.
  void check(VkResult code, const char* call, const std::string& kernel = {}, const std::string& detail = {}) const {
    if (code != VK_SUCCESS) raise_error(code, call, label(), kernel, detail);
  }

 private:
  void open();
  void create();

  VkPhysicalDevice physical_;
  DeviceFacts facts_;
  std::unique_ptr<Features> features_;
  VkPhysicalDeviceMemoryProperties memory_types_{};
  std::once_flag once_;
  VkDevice handle_ = VK_NULL_HANDLE;
  DeviceFunctions functions_;
  // Shared pointers, because they need no complete types here: `create` is defined above the classes that it makes (open_device.cc).
  std::shared_ptr<Heap> heap_;
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<Queue> queue_;
};

/// All devices, GPUs first, then CPUs, each group in the order of the drivers. Devices with $ROMOU_VULKAN_DEVICE in the name of the platform or
/// device (any case) are moved to the front. A number is an index in that order. Enumerated at the first call. Empty without a loader.
class DeviceTable {
 public:
  static DeviceTable& global();
  /// Return the number of usable devices. Raises ValueError if $ROMOU_VULKAN_DEVICE matches none, RuntimeError in a forked process.
  size_t size();
  /// Return the device vulkan:`index`. The RuntimeError for a missing device has the reason.
  Device& at(int index);

 private:
  DeviceTable();
  std::vector<std::unique_ptr<Device>> devices_;
  std::string selection_error_, skipped_;
};

/// A handle of a device, destroyed with its owner.
template <typename Handle, auto Destroy>
class Owned {
 public:
  Owned() = default;
  Owned(Device& device, Handle handle) : device_(&device), handle_(handle) {}
  Owned(Owned&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, VK_NULL_HANDLE)) {}
  Owned& operator=(Owned other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != VK_NULL_HANDLE && !is_exiting() && !is_forked()) (device_->vk().*Destroy)(device_->handle(), handle_, nullptr);
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != VK_NULL_HANDLE; }

 private:
  Device* device_ = nullptr;
  Handle handle_ = VK_NULL_HANDLE;
};

#define ROMOU_VK_OWNED(name) using name = Owned<Vk##name, &DeviceFunctions::vkDestroy##name>;
ROMOU_VK_OWNED(Buffer)
ROMOU_VK_OWNED(Image)
ROMOU_VK_OWNED(ImageView)
ROMOU_VK_OWNED(ShaderModule)
ROMOU_VK_OWNED(DescriptorSetLayout)
ROMOU_VK_OWNED(PipelineLayout)
ROMOU_VK_OWNED(PipelineCache)
ROMOU_VK_OWNED(Pipeline)
ROMOU_VK_OWNED(DescriptorPool)
ROMOU_VK_OWNED(CommandPool)
ROMOU_VK_OWNED(Fence)
ROMOU_VK_OWNED(QueryPool)
#undef ROMOU_VK_OWNED

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_DEVICE_H_
