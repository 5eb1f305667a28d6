// SPDX-License-Identifier: Apache-2.0
//
// A command buffer: several kernels recorded once and enqueued as a whole (recorder.h).
#ifndef ROMOU_OPENCL_COMMAND_BUFFER_H_
#define ROMOU_OPENCL_COMMAND_BUFFER_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cl_api.h"
#include "device.h"
#include "memory.h"
#include "program.h"
#include "recorded_run.h"
#include "recorder.h"

namespace romou::opencl {

/// While a thread records one, its launches on any device go into the command buffer instead of the queue, and nothing is computed.
///
/// The memory that kernels are given stays alive with the recording: no pool frees it or hands it to another run. Thread-safe: launches from
/// several threads run one after another, and dropping the recording ends it, on any thread.
class CommandBuffer {
 public:
  /// Begin to record on this thread, by the driver if it can and `by_driver`. Raises RuntimeError if the thread records already.
  static std::shared_ptr<CommandBuffer> begin(Device& device, bool by_driver);
  /// Return the command buffer that this thread records, or null.
  static std::shared_ptr<CommandBuffer> current() { return RecordedHere<CommandBuffer>::current(); }

  /// Use `begin`.
  CommandBuffer(Device& device, bool by_driver);
  ~CommandBuffer();
  CommandBuffer(const CommandBuffer&) = delete;
  CommandBuffer& operator=(const CommandBuffer&) = delete;

  /// Return a copy of the kernel object for one launch of `kernel` in this recording. Arguments are part of the object, and not every driver (PoCL
  /// 3.1) copies them when a launch is recorded.
  Kernel& own(const Kernel& kernel, const std::string& name);
  /// Record a launch of a kernel that `own` returned, with the arguments that it has now.
  void add(Device& device, const Kernel& kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local);
  void keep(Memory* memory);
  bool is_recording() const { return is_recording_; }
  const char* what() const { return recorder_->what(); }
  /// End the recording and return the number of launches. Raises RuntimeError if there are none.
  int64_t finish();
  /// Enqueue the command buffer on the active queue.
  void enqueue();
  /// Enqueue the command buffer, wait, and return its time from begin to end by the device's clock in ns.
  int64_t time_ns();

 private:
  void wait_for_last();
  void enqueue(Device::Queue& queue);

  Device& device_;
  std::mutex mutex_;  ///< guards the members below. Lock it before the queue
  // Destroyed from the last to the first.
  std::unordered_map<Memory*, SharedMemory> kept_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  const std::unique_ptr<Recorder> recorder_;
  Event last_;
  int64_t launches_ = 0;
  std::atomic<bool> is_recording_{true};
  bool is_finished_ = false;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_COMMAND_BUFFER_H_
