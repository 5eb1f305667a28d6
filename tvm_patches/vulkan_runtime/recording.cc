// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include "queue.h"
#include "statistics.h"

namespace romou::vulkan {

std::shared_ptr<Recording> Recording::begin(Device& device) {
  if (const auto other = current()) TVM_FFI_THROW(RuntimeError) << "this thread records a run on " << other->device_.label() << " already";
  auto made = std::make_shared<Recording>(device);
  RecordedHere<Recording>::set(made);
  return made;
}

Recording::Recording(Device& device) : device_(device), commands_(std::make_shared<Commands>(device, true)) { commands_->begin(0); }

void Recording::dispatch(Device& device, const std::shared_ptr<const Kernel>& kernel, std::span<Memory* const> bindings,
                         std::span<const char> push_constants, const std::array<uint32_t, 3>& groups) {
  if (&device != &device_) {
    TVM_FFI_THROW(RuntimeError) << "kernel " << kernel->name() << " runs on " << device.label() << " in a run that is recorded for " << device_.label();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  commands_->dispatch(kernel, bindings, push_constants, groups);
}

int64_t Recording::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_finished_) TVM_FFI_THROW(RuntimeError) << "the recording has ended already";
  is_recording_ = false;
  const int64_t launches = commands_->launches();
  if (launches == 0) TVM_FFI_THROW(RuntimeError) << "no kernel was launched on " << device_.label() << " while a run was recorded";
  commands_->end();
  is_finished_ = true;
  return launches;
}

void Recording::enqueue() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_finished_) TVM_FFI_THROW(RuntimeError) << "a run is replayed whose recording has not ended";
  device_.queue().submit(commands_);
}

int64_t Recording::time_ns() {
  return device_.queue().timed([this] { enqueue(); });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.vulkan.record", [](int device) {
    return tvm::ffi::Module(
        tvm::ffi::make_object<RecordedRun<Recording>>("vulkan_command_buffer", Recording::begin(DeviceTable::global().at(device))));
  });
}

}  // namespace romou::vulkan
