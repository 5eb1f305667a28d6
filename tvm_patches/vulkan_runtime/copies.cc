// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include <algorithm>
#include <cstring>

#include "allocation.h"
#include "queue.h"

namespace romou::vulkan {
namespace {

// Longer copies of buffers are split: staging then takes little memory, and the host copies while the device does.
constexpr size_t kPart = size_t{32} << 20;

bool is_in_place(const Memory& memory) { return !memory.is_image && memory.slice.mapped != nullptr && memory.device->facts().has_unified_memory; }

/// Return a mapped buffer of at least `bytes`, an idle one if possible.
SharedMemory staging_buffer(Device& device, size_t bytes) {
  const size_t size = Staging::size_for(bytes);
  SharedMemory idle = device.staging().take(size);
  return idle != nullptr ? std::move(idle) : SharedMemory(create_buffer(device, size, MemoryUse::kStaging));
}

}  // namespace

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
    const SharedMemory staging = staging_buffer(*memory.device, count);
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
    const SharedMemory staging = staging_buffer(*memory.device, count);
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
  // Images of another shape have the same row-major order, so copy through a buffer. Offsets that images cannot be copied from or to need that as
  // well.
  const SharedMemory flat(create_buffer(device, bytes));
  device.queue().record([&](Commands& commands) {
    commands.copy(from, {flat.get()}, bytes);
    commands.copy({flat.get()}, to, bytes);
  });
}

}  // namespace romou::vulkan
