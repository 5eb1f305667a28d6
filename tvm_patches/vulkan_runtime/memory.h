// SPDX-License-Identifier: Apache-2.0
//
// The memory of a device that tensors' data pointers point to, references to it, and idle staging buffers.
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
/// A reference to memory, given back by its owner.
using SharedMemory = std::unique_ptr<Memory, MemoryReleaser>;
using Place = PlaceOf<Memory>;

inline Memory* memory_of(const void* data) { return memory_behind<Memory>(data, "Vulkan"); }
/// Return another reference.
SharedMemory share(Memory* memory);

/// Count new memory and return its first reference.
Memory* adopt(std::unique_ptr<Memory> memory);
/// Give one reference back. The last one frees the memory. Commands hold references to the memory that they use, so nothing waits. Never raises.
void release(Memory* memory) noexcept;

/// Mapped buffers for copies, kept for later copies of about the same size. Thread-safe.
class Staging {
 public:
  /// Return the bytes of the buffer for a copy of `bytes`.
  static size_t size_for(size_t bytes);
  /// Return an idle buffer of exactly `size` bytes, or null.
  SharedMemory take(size_t size);
  /// Keep an unused buffer. Return false if enough are kept.
  bool keep(Memory* memory) noexcept;

 private:
  std::mutex mutex_;
  std::multimap<size_t, Memory*> idle_;
  size_t idle_bytes_ = 0;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_MEMORY_H_
