// SPDX-License-Identifier: Apache-2.0
#include "timer.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/timer.h>

#include <algorithm>

#include "loader.h"

namespace romou::opencl {
namespace {

// Events hold driver memory. A long measurement therefore adds the oldest events to a sum and releases them.
constexpr size_t kMaxPendingEvents = 2048;

}  // namespace

cl_ulong time_of(const Device& device, cl_event event, cl_uint what) {
  cl_ulong time = 0;
  device.check(api().clGetEventProfilingInfo(event, what, sizeof(time), &time, nullptr), "clGetEventProfilingInfo");
  return time;
}

EventLog::~EventLog() {
  if (is_active_ && !is_exiting()) complain(device_.stop_logging(this), "clFinish");
}

void EventLog::start() {
  device_.start_logging(this);
  is_active_ = true;
}

void EventLog::stop() {
  is_active_ = false;
  device_.check(device_.stop_logging(this), "clFinish");
}

void EventLog::append(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(std::move(event));
  // The caller holds the queue. The older half of the events is usually done by now, so nothing waits.
  if (events_.size() >= kMaxPendingEvents) settle(kMaxPendingEvents / 2);
}

int64_t EventLog::total_ns() {
  std::lock_guard<std::mutex> lock(mutex_);
  settle(events_.size());
  return settled_ns_;
}

/// Fold the oldest `count` events into the sum.
void EventLog::settle(size_t count) {
  if (count == 0) return;
  std::vector<cl_event> handles(count);
  std::transform(events_.begin(), events_.begin() + count, handles.begin(), [](const Event& event) { return event.get(); });
  device_.check(api().clWaitForEvents(static_cast<cl_uint>(count), handles.data()), "clWaitForEvents");
  int64_t sum_ns = 0;
  for (cl_event event : handles) {
    const cl_ulong start = time_of(device_, event, CL_PROFILING_COMMAND_START), end = time_of(device_, event, CL_PROFILING_COMMAND_END);
    // Some drivers step their clock back between two reads, and a negative duration would shrink the sum.
    if (end > start) sum_ns += static_cast<int64_t>(end - start);
  }
  settled_ns_ += sum_ns;
  events_.erase(events_.begin(), events_.begin() + count);
}

class OpenCLTimerNode final : public tvm::runtime::TimerNode {
 public:
  explicit OpenCLTimerNode(DLDevice device) : log_(DeviceTable::global().at(device.device_id)) {}

  void Start() final { log_.start(); }
  void Stop() final { log_.stop(); }
  int64_t SyncAndGetElapsedNanos() final { return log_.total_ns(); }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("romou.OpenCLTimerNode", OpenCLTimerNode, tvm::runtime::TimerNode);

 private:
  EventLog log_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("runtime.timer.opencl", [](DLDevice device) {
    return tvm::runtime::Timer(tvm::ffi::make_object<OpenCLTimerNode>(device));
  });
}

}  // namespace romou::opencl
