// SPDX-License-Identifier: Apache-2.0
//
// A command buffer that is being filled: launches and copies, with barriers between writers and readers.
#ifndef ROMOU_VULKAN_COMMANDS_H_
#define ROMOU_VULKAN_COMMANDS_H_

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "device.h"
#include "kernel.h"
#include "memory.h"

namespace romou::vulkan {

/// Memory that a command reads or writes.
struct Use {
  Memory* memory;
  uint8_t access;
};

/// Tracks the memory that a command buffer read and wrote since its last barrier, and returns the barrier that is due before the next command.
class Tracker {
 public:
  enum class Barrier {
    kNone,
    kExecution,  ///< a write after a read: the reader has to end first
    kMemory      ///< an access after a write: the write has to be visible
  };
  Barrier before(std::span<const Use> uses);
  void clear() { accesses_.clear(); }

 private:
  std::unordered_map<const Memory*, uint8_t> accesses_;
};

/// One command buffer and all objects that its commands use, which live until the commands are done. Not thread-safe.
///
/// Every command buffer ends with a barrier against all later commands, the host's included. So none has to wait when it begins.
class Commands {
 public:
  /// `is_recording`: it is submitted more than once, and no pool hands out its memory meanwhile.
  Commands(Device& device, bool is_recording);
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  /// `serial` is the number of the batch.
  void begin(uint64_t serial);
  /// Add the final barrier and end the command buffer. The handle can then be submitted.
  void end();
  /// Drop all objects that the commands used, once the commands are done.
  void clear();

  VkCommandBuffer handle() const { return handle_; }
  int launches() const { return launches_; }
  /// Return whether there are enough commands to submit them.
  bool is_full() const { return commands_ >= kMaxCommands || staged_bytes_ >= kMaxStagedBytes; }
  const std::vector<SharedMemory>& kept() const { return kept_; }

  void dispatch(const std::shared_ptr<const Kernel>& kernel, std::span<Memory* const> bindings, std::span<const char> push_constants,
                const std::array<uint32_t, 3>& groups);
  /// Copy between memory of this device: buffers, a buffer and an image, or two images of the same shape.
  void copy(const Place& from, const Place& to, size_t bytes);
  /// Set the permanent layout of a new image.
  void prepare_image(Memory* image);
  /// Keep an object that the commands use.
  void keep(std::shared_ptr<const void> object);

 private:
  // A whole model is one submission, but loops of launches or copies are submitted in several.
  static constexpr int kMaxCommands = 512;
  static constexpr size_t kMaxStagedBytes = size_t{64} << 20;

  void keep(Memory* memory);
  void use(std::span<const Use> uses);
  void bind(const Kernel& kernel, std::span<Memory* const> bindings);
  VkDescriptorSet allocate_set(const Kernel& kernel);

  Device& device_;
  const DeviceFunctions& vk_;
  const bool is_recording_;
  uint64_t serial_ = 0;
  bool is_begun_ = false;  ///< since it was cleared
  int launches_ = 0, commands_ = 0;
  size_t staged_bytes_ = 0;
  CommandPool pool_;
  VkCommandBuffer handle_ = VK_NULL_HANDLE;
  std::vector<DescriptorPool> descriptor_pools_;
  size_t used_pools_ = 0;
  Tracker tracker_;
  const Kernel* bound_ = nullptr;
  std::unordered_set<const void*> known_;
  std::vector<SharedMemory> kept_;
  std::vector<std::shared_ptr<const void>> objects_;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_COMMANDS_H_
