// SPDX-License-Identifier: Apache-2.0
//
// A recorded run: launches in one command buffer, which is submitted as a whole, any number of times.
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
  /// Return the run that this thread records, or null.
  static std::shared_ptr<Recording> current() { return RecordedHere<Recording>::current(); }

  /// Use `begin`.
  explicit Recording(Device& device);

  bool is_recording() const { return is_recording_; }
  const char* what() const { return "a Vulkan command buffer"; }
  void dispatch(Device& device, const std::shared_ptr<const Kernel>& kernel, std::span<Memory* const> bindings, std::span<const char> push_constants,
                const std::array<uint32_t, 3>& groups);
  /// End the recording and return the number of launches. Raises RuntimeError if there are none.
  int64_t finish();
  /// Submit the run behind all commands that were enqueued.
  void enqueue();
  /// Submit the run, wait, and return its time from begin to end by the device's clock in ns.
  int64_t time_ns();

 private:
  Device& device_;
  std::mutex mutex_;  ///< guards the members below. Lock it before the queue
  std::shared_ptr<Commands> commands_;
  std::atomic<bool> is_recording_{true};
  bool is_finished_ = false;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_RECORDING_H_
