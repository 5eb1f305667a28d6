// SPDX-License-Identifier: Apache-2.0
//
// Device memory: blocks from the driver, and slices of them. Drivers allow few allocations (usually 4096), and each takes long.
#ifndef ROMOU_VULKAN_HEAP_H_
#define ROMOU_VULKAN_HEAP_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device.h"

namespace romou::vulkan {

/// The purpose of a slice, which decides its memory type.
enum class MemoryUse {
  kDevice,  ///< for kernels. Mapped as well if host and device share their memory
  kStaging  ///< mapped, for the host to write and read
};

/// A slice of a block. `mapped` points to its first byte in the host's address space, or is null if it is not mapped.
struct Slice {
  struct Block* block = nullptr;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  VkDeviceSize offset = 0, bytes = 0;
  char* mapped = nullptr;
};

/// The memory of one device. Thread-safe.
class Heap {
 public:
  Heap(Device& device, VkDevice handle, const DeviceFunctions& functions);
  ~Heap();
  /// Return a slice that meets `needed`, or none if the driver has no memory left. Images and buffers never share a block, because some devices need
  /// a distance between them (bufferImageGranularity). Raises RuntimeError if the driver fails otherwise.
  std::optional<Slice> allocate(const VkMemoryRequirements& needed, MemoryUse use, bool is_image);
  /// Give a slice back. An empty block goes back to the driver, unless it is the only one of its kind.
  void free(const Slice& slice) noexcept;
  /// Return whether the host caches memory for kernels. Otherwise each read goes to memory, and copies through staging are faster.
  bool is_device_memory_cached() const { return is_cached_; }

 private:
  Block* create_block(VkDeviceSize bytes, uint32_t type, bool is_image, bool is_shared);
  std::optional<uint32_t> type_for(uint32_t allowed, MemoryUse use) const;

  Device& device_;
  const VkDevice handle_;
  const DeviceFunctions& vk_;
  VkDeviceSize block_bytes_;
  bool is_cached_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_HEAP_H_
