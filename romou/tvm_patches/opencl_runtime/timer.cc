// SPDX-License-Identifier: Apache-2.0
#include "timer.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/timer.h>

#include "device.h"
#include "error.h"
#include "loader.h"
#include "statistics.h"

namespace romou::opencl {
namespace {

// Events hold driver memory; a long measurement folds the oldest into a number instead of keeping them all.
constexpr size_t kMaxPendingEvents = 2048;

}  // namespace

EventLog::~EventLog() {
  if (is_exiting()) return;
  drop();
}

void EventLog::drop() {
  for (cl_event event : events_) api().clReleaseEvent(event);
  statistics().live_events -= static_cast<int64_t>(events_.size());
  events_.clear();
}

void EventLog::append(cl_event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
  statistics().live_events += 1;
  if (events_.size() >= kMaxPendingEvents) settle();
}

int64_t EventLog::total_ns() {
  std::lock_guard<std::mutex> lock(mutex_);
  settle();
  return settled_ns_;
}

void EventLog::settle() {
  if (events_.empty()) return;
  check(api().clWaitForEvents(static_cast<cl_uint>(events_.size()), events_.data()), "clWaitForEvents", device_label_);
  for (cl_event event : events_) {
    cl_ulong start = 0, end = 0;
    check(api().clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof(start), &start, nullptr),
          "clGetEventProfilingInfo", device_label_);
    check(api().clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof(end), &end, nullptr), "clGetEventProfilingInfo",
          device_label_);
    // Some drivers step their clock back between two reads; a negative duration would shrink the sum.
    if (end > start) settled_ns_ += static_cast<int64_t>(end - start);
  }
  drop();
}

class OpenCLTimerNode final : public tvm::runtime::TimerNode {
 public:
  explicit OpenCLTimerNode(DLDevice device)
      : device_(&DeviceTable::global().at(device.device_id)), log_(device_->label()) {}

  ~OpenCLTimerNode() {
    if (is_running_ && !is_exiting()) device_->stop_logging(&log_);
  }

  void Start() final {
    device_->start_logging(&log_);
    is_running_ = true;
  }

  void Stop() final {
    is_running_ = false;
    device_->stop_logging(&log_);
  }

  int64_t SyncAndGetElapsedNanos() final { return log_.total_ns(); }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("romou.OpenCLTimerNode", OpenCLTimerNode, tvm::runtime::TimerNode);

 private:
  Device* device_;
  EventLog log_;
  bool is_running_ = false;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("runtime.timer.opencl", [](DLDevice device) {
    return tvm::runtime::Timer(tvm::ffi::make_object<OpenCLTimerNode>(device));
  });
}

}  // namespace romou::opencl
