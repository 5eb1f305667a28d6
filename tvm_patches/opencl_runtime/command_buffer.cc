// SPDX-License-Identifier: Apache-2.0
#include "command_buffer.h"

#include <tvm/ffi/cast.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include "loader.h"
#include "timer.h"

namespace romou::opencl {

std::shared_ptr<CommandBuffer> CommandBuffer::begin(Device& device, bool by_driver) {
  if (const auto other = current()) TVM_FFI_THROW(RuntimeError) << "this thread records a run on " << other->device_.label() << " already";
  auto made = std::make_shared<CommandBuffer>(device, by_driver);
  RecordedHere<CommandBuffer>::set(made);
  return made;
}

CommandBuffer::CommandBuffer(Device& device, bool by_driver) : device_(device), recorder_(Recorder::create(device, by_driver)) {}

CommandBuffer::~CommandBuffer() {
  if (!last_ || is_exiting()) return;
  const cl_event last = last_.get();
  complain(api().clWaitForEvents(1, &last), "clWaitForEvents");
}

Kernel& CommandBuffer::own(const Kernel& kernel, const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto copy = std::make_unique<Kernel>();
  copy->create(device_, name, kernel.program->get());
  return *kernels_.emplace_back(std::move(copy));
}

void CommandBuffer::add(Device& device, const Kernel& kernel, const std::string& name, cl_uint dimensions, const size_t* global,
                        const size_t* local) {
  if (&device != &device_) {
    TVM_FFI_THROW(RuntimeError) << "kernel " << name << " runs on " << device.label() << " in a run that is recorded for " << device_.label();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  recorder_->add(kernel.handle.get(), name, dimensions, global, local);
  launches_ += 1;
}

void CommandBuffer::keep(Memory* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (SharedMemory& kept = kept_[memory]; kept == nullptr) {
    memory->owner().references += 1;
    kept.reset(memory);
  }
}

int64_t CommandBuffer::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_finished_) TVM_FFI_THROW(RuntimeError) << "the recording has ended already";
  is_recording_ = false;
  if (launches_ == 0) TVM_FFI_THROW(RuntimeError) << "no kernel was launched on " << device_.label() << " while a run was recorded";
  recorder_->finish();
  is_finished_ = true;
  return launches_;
}

void CommandBuffer::enqueue() {
  std::lock_guard<std::mutex> lock(mutex_);
  wait_for_last();
  Device::Queue queue = device_.hold_queue();
  enqueue(queue);
}

/// Wait for the last run, because not every driver accepts a buffer that still runs. If its launch went to the other queue, the change of queues has
/// waited.
void CommandBuffer::wait_for_last() {
  if (last_) device_.wait(std::move(last_), recorder_->call());
}

void CommandBuffer::enqueue(Device::Queue& queue) {
  if (!is_finished_) TVM_FFI_THROW(RuntimeError) << "a run is replayed whose recording has not ended";
  last_ = Event(recorder_->enqueue(queue.handle()));
}

int64_t CommandBuffer::time_ns() {
  std::lock_guard<std::mutex> lock(mutex_);
  wait_for_last();
  // The event of a whole buffer has no useful times on some drivers (PoCL 3.1), so there is one before it and one after.
  Event marks[2];
  EventLog log(device_);
  log.start();
  {
    Device::Queue queue = device_.hold_queue();
    for (Event& mark : marks) {
      cl_event made = nullptr;
      device_.check(api().clEnqueueMarkerWithWaitList(queue.handle(), 0, nullptr, &made), "clEnqueueMarkerWithWaitList");
      mark = Event(made);
      if (&mark == marks) enqueue(queue);
    }
  }
  log.stop();
  return static_cast<int64_t>(time_of(device_, marks[1].get(), CL_PROFILING_COMMAND_END) - time_of(device_, marks[0].get(), CL_PROFILING_COMMAND_END));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.opencl.record", [](int device, bool by_driver) {
    return tvm::ffi::Module(
        tvm::ffi::make_object<RecordedRun<CommandBuffer>>("opencl_command_buffer", CommandBuffer::begin(DeviceTable::global().at(device), by_driver)));
  });
}

}  // namespace romou::opencl
