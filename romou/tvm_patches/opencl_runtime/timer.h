// SPDX-License-Identifier: Apache-2.0
//
// Device time of kernels from profiling events. TVM's time_evaluator reaches it as "runtime.timer.opencl".
#ifndef ROMOU_OPENCL_TIMER_H_
#define ROMOU_OPENCL_TIMER_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cl_api.h"

namespace romou::opencl {

/// Collects launch events and adds up the time each kernel ran on the device (start to end, in ns). Thread-safe.
///
/// The sum leaves out gaps between kernels, copies and host time: it judges kernels, not the runtime around them.
class EventLog {
 public:
  explicit EventLog(std::string device_label) : device_label_(std::move(device_label)) {}
  ~EventLog();
  /// Takes over one reference to `event`.
  void append(cl_event event);
  /// Wait for all events and return the sum of their durations in ns.
  int64_t total_ns();

 private:
  void settle();
  void drop();

  std::string device_label_;
  std::mutex mutex_;
  std::vector<cl_event> events_;
  int64_t settled_ns_ = 0;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_TIMER_H_
