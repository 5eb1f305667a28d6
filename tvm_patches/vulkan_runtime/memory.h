// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device, which a tensor's data pointer points to, references to it, and idle staging buffers.
#ifndef ROMOU_VULKAN_MEMORY_H_
#define ROMOU_VULKAN_MEMORY_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "heap.h"
#include "memory_head.h"

namespace romou::vulkan {

/// Memory of a tensor: a slice of a block with a buffer or an image in it.
struct Memory : MemoryHead {
  static constexpr uint64_t kMagic = 0x526f6d6f75566bULL;

  explicit Memory(Device& of) : MemoryHead(kMagic), device(&of) {}
  ~Memory();

  Device* device;
  Slice slice;
  // Destroyed before the slice is given back.
  Buffer buffer;
  Image texels;
  ImageView view;
  bool is_staging = false;
  std::atomic<uint64_t> last_use{0};  ///< number of the last batch of commands that uses it
  std::atomic<int> recordings{0};     ///< recorded runs that use it
};

struct MemoryReleaser {
  void operator()(Memory* memory) const noexcept;
};
/// One reference.
using SharedMemory = std::unique_ptr<Memory, MemoryReleaser>;
using Place = PlaceOf<Memory>;

inline Memory* memory_of(const void* data) { return memory_behind<Memory>(data, "Vulkan"); }
/// One reference more.
SharedMemory share(Memory* memory);

/// Count memory that was just made, and give it away with one reference.
Memory* adopt(std::unique_ptr<Memory> memory);
/// Give one reference back; the last one frees the memory. Commands that use it have references of their own, so nothing waits. Never raises.
void release(Memory* memory) noexcept;

/// Mapped buffers for copies, kept for the next copy of about their size. Thread-safe.
class Staging {
 public:
  /// Bytes of the buffer that a copy of `bytes` gets.
  static size_t size_for(size_t bytes);
  /// An idle buffer of exactly `size` bytes; null if there is none.
  SharedMemory take(size_t size);
  /// Keep an unused buffer; false if enough are kept.
  bool keep(Memory* memory) noexcept;

 private:
  std::mutex mutex_;
  std::multimap<size_t, Memory*> idle_;
  size_t idle_bytes_ = 0;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_MEMORY_H_
