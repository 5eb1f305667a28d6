// SPDX-License-Identifier: Apache-2.0
#include "heap.h"

#include <tvm/ffi/error.h>

#include <algorithm>

#include "statistics.h"

namespace romou::vulkan {

/// A block of memory from the driver. Its free ranges, by offset, never touch each other.
struct Block {
  VkDeviceMemory memory = VK_NULL_HANDLE;
  VkDeviceSize bytes = 0;
  char* mapped = nullptr;
  uint32_t type = 0;
  bool is_image = false;
  bool is_shared = false;  ///< the block is cut into slices. Other blocks hold one slice
  std::map<VkDeviceSize, VkDeviceSize> free_parts;
};

namespace {

// A slice of more than half a block gets a separate block.
constexpr VkDeviceSize kBlockBytes = VkDeviceSize{64} << 20;

std::optional<Slice> cut(Block& block, const VkMemoryRequirements& needed) {
  for (auto part = block.free_parts.begin(); part != block.free_parts.end(); ++part) {
    const auto [begin, bytes] = *part;
    const VkDeviceSize offset = (begin + needed.alignment - 1) / needed.alignment * needed.alignment;
    const VkDeviceSize end = begin + bytes;
    if (offset + needed.size > end) continue;
    block.free_parts.erase(part);
    if (offset > begin) block.free_parts[begin] = offset - begin;
    if (offset + needed.size < end) block.free_parts[offset + needed.size] = end - offset - needed.size;
    return Slice{&block, block.memory, offset, needed.size, block.mapped == nullptr ? nullptr : block.mapped + offset};
  }
  return std::nullopt;
}

void join(Block& block, VkDeviceSize offset, VkDeviceSize bytes) {
  auto after = block.free_parts.lower_bound(offset);
  if (after != block.free_parts.end() && offset + bytes == after->first) {
    bytes += after->second;
    after = block.free_parts.erase(after);
  }
  if (after != block.free_parts.begin()) {
    if (auto before = std::prev(after); before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  block.free_parts[offset] = bytes;
}

}  // namespace

Heap::Heap(Device& device, VkDevice handle, const DeviceFunctions& functions)
    : device_(device), handle_(handle), vk_(functions), block_bytes_(std::min<VkDeviceSize>(kBlockBytes, device.facts().global_mem_bytes / 16)) {
  if (const auto type = type_for(~0u, MemoryUse::kDevice)) {
    is_cached_ = device.memory_types().memoryTypes[*type].propertyFlags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  }
}

Heap::~Heap() = default;

std::optional<uint32_t> Heap::type_for(uint32_t allowed, MemoryUse use) const {
  constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                                  kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  // In order of preference. Every device has the last one of each list.
  const std::vector<VkMemoryPropertyFlags> in_place = {kLocal | kMapped | kCached, kLocal | kMapped, kLocal, 0}, apart = {kLocal, 0},
                                           staging = {kMapped | kCached, kMapped};
  const auto& wanted = use == MemoryUse::kStaging ? staging : device_.facts().has_unified_memory ? in_place : apart;
  const VkPhysicalDeviceMemoryProperties& types = device_.memory_types();
  for (const VkMemoryPropertyFlags flags : wanted) {
    for (uint32_t i = 0; i < types.memoryTypeCount; ++i) {
      const VkMemoryPropertyFlags has = types.memoryTypes[i].propertyFlags;
      // Memory for special modes (protected, or for AMD's debuggers) is slow or cannot be used.
      constexpr VkMemoryPropertyFlags kSpecial = VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
                                                 VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;
      if ((allowed >> i & 1) != 0 && (has & flags) == flags && (has & kSpecial) == 0) return i;
    }
  }
  return std::nullopt;
}

std::optional<Slice> Heap::allocate(const VkMemoryRequirements& needed, MemoryUse use, bool is_image) {
  const std::optional<uint32_t> type = type_for(needed.memoryTypeBits, use);
  if (!type) TVM_FFI_THROW(RuntimeError) << device_.label() << " offers no memory type for a " << (is_image ? "storage image" : "storage buffer");
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_shared = needed.size <= block_bytes_ / 2;
  if (is_shared) {
    for (const auto& block : blocks_) {
      if (!block->is_shared || block->type != *type || block->is_image != is_image) continue;
      if (auto slice = cut(*block, needed)) return slice;
    }
  }
  Block* made = is_shared ? create_block(block_bytes_, *type, is_image, true) : nullptr;
  // If there is no memory for a whole block, there may be enough for the slice.
  if (made == nullptr) made = create_block(needed.size, *type, is_image, false);
  return made == nullptr ? std::nullopt : cut(*made, needed);
}

Block* Heap::create_block(VkDeviceSize bytes, uint32_t type, bool is_image, bool is_shared) {
  VkMemoryAllocateInfo info{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  info.allocationSize = bytes;
  info.memoryTypeIndex = type;
  auto block = std::make_unique<Block>();
  const VkResult code = vk_.vkAllocateMemory(handle_, &info, nullptr, &block->memory);
  if (code == VK_ERROR_OUT_OF_DEVICE_MEMORY || code == VK_ERROR_OUT_OF_HOST_MEMORY || code == VK_ERROR_TOO_MANY_OBJECTS) return nullptr;
  device_.check(code, "vkAllocateMemory", {}, std::to_string(bytes) + " bytes asked");
  if (device_.memory_types().memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) {
    void* mapped = nullptr;
    const VkResult mapping = vk_.vkMapMemory(handle_, block->memory, 0, VK_WHOLE_SIZE, 0, &mapped);
    if (mapping != VK_SUCCESS) vk_.vkFreeMemory(handle_, block->memory, nullptr);
    device_.check(mapping, "vkMapMemory");
    block->mapped = static_cast<char*>(mapped);
  }
  block->bytes = bytes;
  block->type = type;
  block->is_image = is_image;
  block->is_shared = is_shared;
  block->free_parts[0] = bytes;
  statistics().live_blocks += 1;
  statistics().live_block_bytes += static_cast<int64_t>(bytes);
  return blocks_.emplace_back(std::move(block)).get();
}

void Heap::free(const Slice& slice) noexcept {
  if (is_exiting() || is_forked()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Block& block = *slice.block;
  join(block, slice.offset, slice.bytes);
  if (block.free_parts.size() != 1 || block.free_parts.begin()->second != block.bytes) return;
  const auto is_alike = [&](const auto& other) { return other->is_shared && other->type == block.type && other->is_image == block.is_image; };
  if (block.is_shared && std::count_if(blocks_.begin(), blocks_.end(), is_alike) == 1) return;
  vk_.vkFreeMemory(handle_, block.memory, nullptr);
  statistics().live_blocks -= 1;
  statistics().live_block_bytes -= static_cast<int64_t>(block.bytes);
  std::erase_if(blocks_, [&](const auto& other) { return other.get() == &block; });
}

}  // namespace romou::vulkan
