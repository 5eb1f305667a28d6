// SPDX-License-Identifier: Apache-2.0
//
// A device's queue. Commands are added to a batch until a thread waits, and then submitted together.
#ifndef ROMOU_VULKAN_QUEUE_H_
#define ROMOU_VULKAN_QUEUE_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "commands.h"
#include "device.h"

namespace romou::vulkan {

/// Adds up device time, from the begin of the first command of each batch to the end of its last.
struct TimeSum {
  std::atomic<int64_t> ns{0};
  std::chrono::steady_clock::time_point started;  ///< for devices without timestamps
};

/// Commands that are submitted together, and the fence that signals their end.
struct Batch {
  explicit Batch(Device& device);

  uint64_t serial = 0;
  Commands commands, tail;  ///< the tail takes the last timestamp if a recorded run follows the commands
  Fence fence;
  QueryPool times;  ///< two timestamps. Empty if the device has none
  std::vector<std::shared_ptr<TimeSum>> timers;
};

/// The queue of a device. Thread-safe: commands are added under a lock, and threads wait for the device outside of it.
class Queue {
 public:
  Queue(Device& device, VkDevice handle, const DeviceFunctions& functions, VkQueue queue);
  ~Queue();

  /// Add commands by `add(Commands&)`. Submits a large batch.
  template <typename Add>
  void record(Add add) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Commands& commands = open().commands;
      add(commands);
      if (!commands.is_full()) return;
    }
    submit();
  }
  /// Submit the open batch. Waits only if the device is far behind.
  void submit();
  /// Submit the open batch and a recorded run behind it. The run is kept until the device is done. Return the batch's number.
  uint64_t submit(const std::shared_ptr<Commands>& recorded);
  /// Wait until a batch is done, and submit it first if it is open. Raises RuntimeError if the device is lost, and for messages of the validation
  /// layer.
  void wait(uint64_t serial);
  /// Wait for everything.
  void finish();
  bool is_done(uint64_t serial);

  /// Add the time of all commands to `sum` from now on, until `stop_timing`.
  void start_timing(const std::shared_ptr<TimeSum>& sum);
  void stop_timing(const std::shared_ptr<TimeSum>& sum);
  /// Return the ns that the device takes for the commands that `work()` adds, once they are done.
  template <typename Work>
  int64_t timed(Work work) {
    const auto sum = std::make_shared<TimeSum>();
    start_timing(sum);
    try {
      work();
    } catch (...) {
      stop_timing(sum);
      throw;
    }
    stop_timing(sum);
    finish();
    return sum->ns;
  }

 private:
  static constexpr size_t kMaxInFlight = 8;

  Batch& open();
  uint64_t close(const std::shared_ptr<Commands>* recorded);
  void stamp(Commands& commands, const Batch& batch, uint32_t which);
  VkResult poll(VkFence fence);
  void retire();
  void settle(Batch& batch);

  Device& device_;
  const VkDevice handle_;
  const DeviceFunctions& vk_;
  const VkQueue queue_;
  std::mutex mutex_;  ///< guards the members below
  uint64_t next_serial_ = 1;
  uint64_t done_ = 0;  ///< all batches up to this one are done
  std::shared_ptr<Batch> open_;
  std::deque<std::shared_ptr<Batch>> in_flight_;
  std::vector<std::shared_ptr<Batch>> idle_;
  std::vector<std::shared_ptr<TimeSum>> timers_;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_QUEUE_H_
