// SPDX-License-Identifier: Apache-2.0
//
// Device time from timestamps. TVM's time_evaluator reaches it as "runtime.timer.vulkan".
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/timer.h>

#include <memory>

#include "device.h"
#include "queue.h"

namespace romou::vulkan {

/// Time from the first command behind `Start` to the last before `Stop`, without the host's time between two batches.
class VulkanTimerNode final : public tvm::runtime::TimerNode {
 public:
  explicit VulkanTimerNode(DLDevice device) : queue_(DeviceTable::global().at(device.device_id).queue()) {}
  ~VulkanTimerNode() {
    if (!is_running_ || is_exiting()) return;
    try {
      queue_.stop_timing(sum_);
    } catch (const std::exception&) {
      // The next call reports the lost device.
    }
  }

  void Start() final {
    queue_.start_timing(sum_);
    is_running_ = true;
  }
  void Stop() final {
    is_running_ = false;
    queue_.stop_timing(sum_);
  }
  int64_t SyncAndGetElapsedNanos() final {
    queue_.finish();
    return sum_->ns;
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("romou.VulkanTimerNode", VulkanTimerNode, tvm::runtime::TimerNode);

 private:
  Queue& queue_;
  std::shared_ptr<TimeSum> sum_ = std::make_shared<TimeSum>();
  bool is_running_ = false;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("runtime.timer.vulkan", [](DLDevice device) {
    return tvm::runtime::Timer(tvm::ffi::make_object<VulkanTimerNode>(device));
  });
}

}  // namespace romou::vulkan
