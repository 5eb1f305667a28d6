// SPDX-License-Identifier: Apache-2.0
#include "allocation.h"

#include <tvm/ffi/error.h>

#include <memory>
#include <optional>
#include <string>

#include "queue.h"
#include "statistics.h"

namespace romou::vulkan {
namespace {

/// Return a slice of memory. If there is no room, wait for the device first, so that freed memory is given back.
Slice allocate(Device& device, const VkMemoryRequirements& needed, MemoryUse use, bool is_image, const std::string& what) {
  std::optional<Slice> found = device.heap().allocate(needed, use, is_image);
  if (!found) {
    device.queue().finish();
    found = device.heap().allocate(needed, use, is_image);
  }
  if (!found) {
    device.check(VK_ERROR_OUT_OF_DEVICE_MEMORY, "vkAllocateMemory", {}, what + "; the device has " + std::to_string(device.facts().global_mem_bytes) +
                                                                            " bytes, and this process holds " +
                                                                            std::to_string(statistics().live_block_bytes.load()));
  }
  return *found;
}

}  // namespace

Memory* create_buffer(Device& device, size_t bytes, MemoryUse use) {
  const DeviceFacts& facts = device.facts();
  if (bytes > facts.max_alloc_bytes && use == MemoryUse::kDevice) {
    TVM_FFI_THROW(RuntimeError) << "a buffer of " << bytes << " bytes is too large for " << device.label() << ", whose kernels see "
                                << facts.max_alloc_bytes << " bytes of one (the smaller of maxStorageBufferRange and maxMemoryAllocationSize)";
  }
  auto memory = std::make_unique<Memory>(device);
  // A tensor may be empty, but a buffer may not. Kernels read whole vectors of four.
  memory->bytes = bytes == 0 ? 16 : (bytes + 15) / 16 * 16;
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = memory->bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  VkBuffer made = VK_NULL_HANDLE;
  const std::string what = std::to_string(memory->bytes) + " bytes asked";
  device.check(device.vk().vkCreateBuffer(device.handle(), &info, nullptr, &made), "vkCreateBuffer", {}, what);
  memory->buffer = Buffer(device, made);
  VkMemoryRequirements needed{};
  device.vk().vkGetBufferMemoryRequirements(device.handle(), made, &needed);
  memory->slice = allocate(device, needed, use, false, what);
  device.check(device.vk().vkBindBufferMemory(device.handle(), made, memory->slice.memory, memory->slice.offset), "vkBindBufferMemory");
  memory->is_staging = use == MemoryUse::kStaging;
  return adopt(std::move(memory));
}

Memory* create_image(Device& device, const ImageShape& shape) {
  const DeviceFacts& facts = device.facts();
  const VkPhysicalDeviceLimits& limits = facts.limits;
  if (!facts.has_images) TVM_FFI_THROW(RuntimeError) << "device " << device.label() << " has no images; keep the tensor in a buffer";
  if (shape.width > limits.maxImageDimension2D || shape.height > limits.maxImageDimension2D || shape.layers > limits.maxImageArrayLayers) {
    TVM_FFI_THROW(RuntimeError) << "image too large for device " << device.label() << ": " << shape.text() << "; the device allows "
                                << limits.maxImageDimension2D << "x" << limits.maxImageDimension2D << "x" << limits.maxImageArrayLayers;
  }
  auto memory = std::make_unique<Memory>(device);
  memory->bytes = shape.bytes();
  memory->is_image = true;
  memory->image = shape;
  const VkFormat format = shape.texel_bytes == 16 ? VK_FORMAT_R32G32B32A32_SFLOAT : VK_FORMAT_R16G16B16A16_SFLOAT;
  VkImageCreateInfo info{VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO};
  info.imageType = VK_IMAGE_TYPE_2D;
  info.format = format;
  info.extent = {static_cast<uint32_t>(shape.width), static_cast<uint32_t>(shape.height), 1};
  info.mipLevels = 1;
  info.arrayLayers = static_cast<uint32_t>(shape.layers);
  info.samples = VK_SAMPLE_COUNT_1_BIT;
  info.tiling = VK_IMAGE_TILING_OPTIMAL;
  info.usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
  VkImage made = VK_NULL_HANDLE;
  const std::string what = "an image of " + shape.text() + " asked";
  device.check(device.vk().vkCreateImage(device.handle(), &info, nullptr, &made), "vkCreateImage", {}, what);
  memory->texels = Image(device, made);
  VkMemoryRequirements needed{};
  device.vk().vkGetImageMemoryRequirements(device.handle(), made, &needed);
  memory->slice = allocate(device, needed, MemoryUse::kDevice, true, what);
  device.check(device.vk().vkBindImageMemory(device.handle(), made, memory->slice.memory, memory->slice.offset), "vkBindImageMemory");
  VkImageViewCreateInfo seen{VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO};
  seen.image = made;
  seen.viewType = VK_IMAGE_VIEW_TYPE_2D_ARRAY;
  seen.format = format;
  seen.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, info.arrayLayers};
  VkImageView view = VK_NULL_HANDLE;
  device.check(device.vk().vkCreateImageView(device.handle(), &seen, nullptr, &view), "vkCreateImageView", {}, what);
  memory->view = ImageView(device, view);
  SharedMemory image(adopt(std::move(memory)));
  device.queue().record([&](Commands& commands) { commands.prepare_image(image.get()); });
  return image.release();
}

}  // namespace romou::vulkan
