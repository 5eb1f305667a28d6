// SPDX-License-Identifier: Apache-2.0
//
// Device time of kernels from profiling events. TVM's time_evaluator reaches it as "runtime.timer.opencl".
#ifndef ROMOU_OPENCL_TIMER_H_
#define ROMOU_OPENCL_TIMER_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "device.h"

namespace romou::opencl {

/// Collects launch events of a device and adds up the time of each kernel there (start to end, in ns). Thread-safe.
///
/// The sum leaves out gaps between kernels, copies and host time. It measures kernels, not the runtime around them.
class EventLog final : public LaunchLog {
 public:
  explicit EventLog(Device& device) : device_(device) {}
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  /// Stop the timer if it runs.
  ~EventLog();
  /// Log every launch on the device from now on.
  void start();
  void stop();
  void append(Event event) final;
  /// Wait for all events and return the sum of their durations in ns.
  int64_t total_ns();

 private:
  void settle(size_t count);

  Device& device_;
  bool is_active_ = false;
  std::mutex mutex_;
  std::vector<Event> events_;
  int64_t settled_ns_ = 0;
};

/// Return the time of a profiled event by the device's clock in ns: CL_PROFILING_COMMAND_START or _END.
cl_ulong time_of(const Device& device, cl_event event, cl_uint what);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_TIMER_H_
