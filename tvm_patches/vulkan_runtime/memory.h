// SPDX-License-Identifier: Apache-2.0
//
// Buffers and images of a device, and copies between them and the host.
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

/// A buffer of at least one byte. Raises RuntimeError with sizes and limits if the device has no room.
Memory* create_buffer(Device& device, size_t bytes, MemoryUse use = MemoryUse::kDevice);
/// Raises RuntimeError if the device has no images or the extent exceeds its limits.
Memory* create_image(Device& device, const ImageShape& shape);
/// Give one reference back; the last one frees the memory. Commands that use it have references of their own, so nothing waits. Never raises.
void release(Memory* memory) noexcept;

/// Copy `bytes`. To the host: done when it returns. From the host: the host's bytes are read when it returns. On one device: in order with later commands.
/// Of images, the first layers are copied, as many as hold `bytes`.
void copy_to_host(const Place& from, char* host, size_t bytes);
void copy_from_host(const char* host, const Place& to, size_t bytes);
void copy_on_device(const Place& from, const Place& to, size_t bytes);

/// Mapped buffers for copies, kept for the next copy of about their size. Thread-safe.
class Staging {
 public:
  explicit Staging(Device& device) : device_(device) {}
  /// A mapped buffer of `bytes` at least.
  SharedMemory take(size_t bytes);
  /// Keep a buffer that nothing uses any more; false where enough are kept.
  bool keep(Memory* memory) noexcept;

 private:
  Device& device_;
  std::mutex mutex_;
  std::multimap<size_t, Memory*> idle_;
  size_t idle_bytes_ = 0;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_MEMORY_H_
