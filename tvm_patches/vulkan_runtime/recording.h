// SPDX-License-Identifier: Apache-2.0
//
// A recorded run: launches kept in one command buffer, which is submitted as a whole and as often as wanted.
#ifndef ROMOU_VULKAN_RECORDING_H_
#define ROMOU_VULKAN_RECORDING_H_

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>

#include "commands.h"
#include "device.h"
#include "recorded_run.h"

namespace romou::vulkan {

/// While a thread records one, its launches go into the recording instead of the queue, and nothing is computed.
///
/// The memory that kernels are given stays alive with the recording: no pool frees it or hands it to another run. Thread-safe.
class Recording {
 public:
  /// Begin to record on this thread. Raises RuntimeError if the thread records already.
  static std::shared_ptr<Recording> begin(Device& device);
  /// The run that this thread records; null if none.
  static std::shared_ptr<Recording> current() { return RecordedHere<Recording>::current(); }

  /// Use `begin`.
  explicit Recording(Device& device);

  bool is_recording() const { return is_recording_; }
  void dispatch(Device& device, const std::shared_ptr<const Kernel>& kernel, std::span<Memory* const> bindings, std::span<const char> push_constants,
                const std::array<uint32_t, 3>& groups);
  /// End the recording; return the number of launches. Raises RuntimeError if there are none.
  int64_t finish();
  /// Submit it behind whatever was enqueued.
  void enqueue();
  /// Submit it, wait, and return its time from begin to end by the device's clock in ns.
  int64_t time_ns();

 private:
  Device& device_;
  std::mutex mutex_;  ///< guards the members below; taken before the queue's
  std::shared_ptr<Commands> commands_;
  std::atomic<bool> is_recording_{true};
  bool is_finished_ = false;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_RECORDING_H_
