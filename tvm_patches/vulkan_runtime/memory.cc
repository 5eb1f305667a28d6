// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <bit>

#include "statistics.h"

namespace romou::vulkan {
namespace {

constexpr size_t kSmallestStaging = size_t{64} << 10, kMostIdleStaging = size_t{256} << 20;

std::atomic<int64_t>& live_count(const Memory& memory) { return memory.is_image ? statistics().live_images : statistics().live_buffers; }

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

Memory* adopt(std::unique_ptr<Memory> memory) {
  live_count(*memory) += 1;
  statistics().live_bytes += static_cast<int64_t>(memory->bytes);
  return memory.release();
}

void release(Memory* memory) noexcept {
  if (memory == nullptr || is_exiting() || is_forked() || --memory->references > 0) return;
  if (memory->is_staging && memory->device->staging().keep(memory)) return;
  live_count(*memory) -= 1;
  statistics().live_bytes -= static_cast<int64_t>(memory->bytes);
  memory->magic = 0;
  delete memory;
}

size_t Staging::size_for(size_t bytes) { return std::bit_ceil(std::max(bytes, kSmallestStaging)); }

SharedMemory Staging::take(size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = idle_.find(size);
  if (found == idle_.end()) return nullptr;
  Memory* memory = found->second;
  idle_.erase(found);
  idle_bytes_ -= size;
  memory->references = 1;
  return SharedMemory(memory);
}

bool Staging::keep(Memory* memory) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_bytes_ + memory->bytes > kMostIdleStaging) return false;
  idle_.emplace(memory->bytes, memory);
  idle_bytes_ += memory->bytes;
  return true;
}

}  // namespace romou::vulkan
