// SPDX-License-Identifier: Apache-2.0
//
// Device memory: blocks from the driver, and slices of them. Drivers allow few allocations (4096 as a rule), each of which takes long.
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
  kDevice,  ///< kernels; mapped as well if host and device share their memory
  kStaging  ///< mapped; the host writes and reads it
};

/// Part of a block. `mapped` points to its first byte in the host's address space; null if it is not mapped.
struct Slice {
  struct Block* block = nullptr;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  VkDeviceSize offset = 0, bytes = 0;
  char* mapped = nullptr;
};

/// Memory of one device. Thread-safe.
class Heap {
 public:
  Heap(Device& device, VkDevice handle, const DeviceFunctions& functions);
  ~Heap();
  /// A slice that meets `needed`; none if the driver has no memory left. Images and buffers never share a block, because some devices need a
  /// distance between them (bufferImageGranularity). Raises RuntimeError if the driver fails otherwise.
  std::optional<Slice> allocate(const VkMemoryRequirements& needed, MemoryUse use, bool is_image);
  /// Give a slice back. A block that is empty then goes back to the driver, unless it is the only one of its kind.
  void free(const Slice& slice) noexcept;
  /// Whether the host reads memory for kernels from its cache; otherwise each read goes to memory, and copies through staging are faster.
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
