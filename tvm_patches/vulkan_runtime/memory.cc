// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <tvm/ffi/error.h>

#include <bit>

#include "commands.h"
#include "queue.h"
#include "statistics.h"

namespace romou::vulkan {
namespace {

constexpr size_t kSmallestStaging = size_t{64} << 10, kMostIdleStaging = size_t{256} << 20;

std::atomic<int64_t>& live_count(const Memory& memory) { return memory.is_image ? statistics().live_images : statistics().live_buffers; }

/// A slice of memory; what was freed and waits for the device to finish is reclaimed first where there is no room.
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

/// Count what was just made.
Memory* adopted(std::unique_ptr<Memory> memory) {
  live_count(*memory) += 1;
  statistics().live_bytes += static_cast<int64_t>(memory->bytes);
  return memory.release();
}

bool is_in_place(const Memory& memory) { return !memory.is_image && memory.slice.mapped != nullptr && memory.device->facts().has_unified_memory; }

}  // namespace

Memory::~Memory() {
  view = {};
  texels = {};
  buffer = {};
  if (slice.block != nullptr) device->heap().free(slice);
}

void MemoryReleaser::operator()(Memory* memory) const noexcept { release(memory); }

SharedMemory share(Memory* memory) {
  memory->references += 1;
  return SharedMemory(memory);
}

Memory* create_buffer(Device& device, size_t bytes, MemoryUse use) {
  const DeviceFacts& facts = device.facts();
  if (bytes > facts.max_alloc_bytes && use == MemoryUse::kDevice) {
    TVM_FFI_THROW(RuntimeError) << "a buffer of " << bytes << " bytes is too large for " << device.label() << ", whose kernels see "
                                << facts.max_alloc_bytes << " bytes of one (the smaller of maxStorageBufferRange and maxMemoryAllocationSize)";
  }
  auto memory = std::make_unique<Memory>(device);
  // A tensor may be empty, a buffer may not; kernels read whole vectors of four.
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
  return adopted(std::move(memory));
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
  SharedMemory image(adopted(std::move(memory)));
  device.queue().record([&](Commands& commands) { commands.prepare_image(image.get()); });
  return image.release();
}

void release(Memory* memory) noexcept {
  if (memory == nullptr || is_exiting() || is_forked() || --memory->references > 0) return;
  if (memory->is_staging && memory->device->staging().keep(memory)) return;
  live_count(*memory) -= 1;
  statistics().live_bytes -= static_cast<int64_t>(memory->bytes);
  memory->magic = 0;
  delete memory;
}

SharedMemory Staging::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kSmallestStaging));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = idle_.find(size); found != idle_.end()) {
      Memory* memory = found->second;
      idle_.erase(found);
      idle_bytes_ -= size;
      memory->references = 1;
      return SharedMemory(memory);
    }
  }
  return SharedMemory(create_buffer(device_, size, MemoryUse::kStaging));
}

bool Staging::keep(Memory* memory) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_bytes_ + memory->bytes > kMostIdleStaging) return false;
  idle_.emplace(memory->bytes, memory);
  idle_bytes_ += memory->bytes;
  return true;
}

// Longer copies of buffers go in parts, so that staging takes little memory and the host copies while the device does.
static constexpr size_t kPart = size_t{32} << 20;

void copy_to_host(const Place& from, char* host, size_t bytes) {
  Memory& memory = *from.memory;
  Queue& queue = memory.device->queue();
  if (is_in_place(memory) && memory.device->heap().is_device_memory_cached()) {
    queue.wait(memory.last_use);
    std::memcpy(host, memory.slice.mapped + from.offset, bytes);
    return;
  }
  const size_t part = memory.is_image ? bytes : kPart;
  for (size_t done = 0; done < bytes; done += part) {
    const size_t count = std::min(part, bytes - done);
    const SharedMemory staging = memory.device->staging().take(count);
    queue.record([&](Commands& commands) { commands.copy({&memory, nullptr, from.offset + done}, {staging.get()}, count); });
    queue.wait(staging->last_use);
    std::memcpy(host + done, staging->slice.mapped, count);
  }
}

void copy_from_host(const char* host, const Place& to, size_t bytes) {
  Memory& memory = *to.memory;
  Queue& queue = memory.device->queue();
  if (is_in_place(memory) && queue.is_done(memory.last_use)) {
    std::memcpy(memory.slice.mapped + to.offset, host, bytes);
    return;
  }
  const size_t part = memory.is_image ? bytes : kPart;
  for (size_t done = 0; done < bytes; done += part) {
    const size_t count = std::min(part, bytes - done);
    const SharedMemory staging = memory.device->staging().take(count);
    std::memcpy(staging->slice.mapped, host + done, count);
    queue.record([&](Commands& commands) { commands.copy({staging.get()}, {&memory, nullptr, to.offset + done}, count); });
    if (bytes > part) queue.submit();
  }
}

void copy_on_device(const Place& from, const Place& to, size_t bytes) {
  Device& device = *to.memory->device;
  const Memory &source = *from.memory, &target = *to.memory;
  const auto fits = [](const Place& place, const Memory& other) { return !other.is_image || place.offset % other.image.texel_bytes == 0; };
  const bool is_direct = source.is_image && target.is_image ? source.image.first(bytes) == target.image.first(bytes) : fits(from, target) && fits(to, source);
  if (is_direct) return device.queue().record([&](Commands& commands) { commands.copy(from, to, bytes); });
  // Images of other shape have the same row-major order: straighten through a buffer. So does an offset that no image can be copied from or to.
  const SharedMemory flat(create_buffer(device, bytes));
  device.queue().record([&](Commands& commands) {
    commands.copy(from, {flat.get()}, bytes);
    commands.copy({flat.get()}, to, bytes);
  });
}

}  // namespace romou::vulkan
