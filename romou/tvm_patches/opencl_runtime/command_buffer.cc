// SPDX-License-Identifier: Apache-2.0
#include "command_buffer.h"

#include <tvm/ffi/cast.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <sstream>

#include "error.h"
#include "loader.h"
#include "memory.h"
#include "timer.h"

namespace romou::opencl {
namespace {

using tvm::ffi::Function;
using tvm::ffi::Optional;
using tvm::ffi::String;

bool has_word(const std::string& text, const std::string& word) {
  std::istringstream words(text);
  for (std::string found; words >> found;) {
    if (found == word) return true;
  }
  return false;
}

CommandBufferApi resolve(Device& device) {
  if (!has_word(device.facts().extensions, "cl_khr_command_buffer")) {
    TVM_FFI_THROW(RuntimeError) << "the driver of " << device.label() << " has no cl_khr_command_buffer";
  }
  CommandBufferApi found;
#define ROMOU_CL_RESOLVE(result, name, parameters)                                              \
  found.name = reinterpret_cast<result(*) parameters>(device.extension_function(#name));        \
  if (found.name == nullptr) {                                                                  \
    TVM_FFI_THROW(RuntimeError) << "the driver of " << device.label() << " names cl_khr_command_buffer and lacks " #name; \
  }
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(ROMOU_CL_RESOLVE)
#undef ROMOU_CL_RESOLVE
  return found;
}

/// What Python holds. Its functions:
///
///     finish() -> number of launches      end the recording
///     launch()                            enqueue it without waiting
///     time_ns() -> ns                     enqueue it, wait, time by the device's clock
class Recording final : public tvm::ffi::ModuleObj {
 public:
  explicit Recording(Device& device) : buffer_(device) {}

  const char* kind() const final { return "opencl_command_buffer"; }

  Optional<Function> GetFunction(const String& name) final {
    auto self = tvm::ffi::GetRef<tvm::ffi::Module>(this);
    if (name == "finish") {
      return Function::FromTyped([self, this] {
        buffer_.finish();
        return buffer_.launches();
      });
    }
    if (name == "launch") return Function::FromTyped([self, this] { buffer_.enqueue(); });
    if (name == "time_ns") return Function::FromTyped([self, this] { return buffer_.time_ns(); });
    return std::nullopt;
  }

 private:
  CommandBuffer buffer_;
};

}  // namespace

CommandBuffer::CommandBuffer(Device& device) : device_(device), api_(resolve(device)), queues_(device.queues()) {
  if (current() != nullptr) TVM_FFI_THROW(RuntimeError) << "this thread records a run on " << current()->device_.label() << " already";
  for (size_t i = 0; i < queues_.size(); ++i) {
    cl_int code = CL_SUCCESS;
    handles_[i] = api_.clCreateCommandBufferKHR(1, &queues_[i], nullptr, &code);
    if (code != CL_SUCCESS) {
      handles_[i] = nullptr;
      release();
      check(code, "clCreateCommandBufferKHR", device_.label());
    }
  }
  current() = this;
}

CommandBuffer::~CommandBuffer() {
  if (current() == this) current() = nullptr;
  if (!is_exiting()) release();
}

void CommandBuffer::release() {
  for (size_t i = 0; i < handles_.size(); ++i) {
    if (last_[i] != nullptr) {
      api().clWaitForEvents(1, &last_[i]);
      api().clReleaseEvent(last_[i]);
    }
    if (handles_[i] != nullptr) api_.clReleaseCommandBufferKHR(handles_[i]);
  }
  for (Memory* memory : kept_) opencl::release(memory);
}

Kernel& CommandBuffer::own(const Kernel& kernel, const std::string& name) {
  auto copy = std::make_unique<Kernel>();
  copy->create(device_, name, kernel.program);
  return *kernels_.emplace_back(std::move(copy));
}

void CommandBuffer::add(Device& device, const Kernel& kernel, const std::string& name, cl_uint dimensions, const size_t* global,
                        const size_t* local) {
  if (&device != &device_) {
    TVM_FFI_THROW(RuntimeError) << "kernel " << name << " runs on " << device.label() << " in a run that is recorded for " << device_.label();
  }
  for (cl_command_buffer_khr handle : handles_) {
    const cl_int code =
        api_.clCommandNDRangeKernelKHR(handle, nullptr, nullptr, kernel.handle, dimensions, nullptr, global, local, 0, nullptr, nullptr, nullptr);
    check(code, "clCommandNDRangeKernelKHR", CallSite{device_.label(), name, {}});
  }
  launches_ += 1;
}

void CommandBuffer::keep(Memory* memory) {
  if (kept_.insert(memory).second) memory->references += 1;
}

void CommandBuffer::finish() {
  if (is_finished_) TVM_FFI_THROW(RuntimeError) << "the recording has ended already";
  if (current() == this) current() = nullptr;
  if (launches_ == 0) TVM_FFI_THROW(RuntimeError) << "no kernel was launched on " << device_.label() << " while a run was recorded";
  for (cl_command_buffer_khr handle : handles_) check(api_.clFinalizeCommandBufferKHR(handle), "clFinalizeCommandBufferKHR", device_.label());
  is_finished_ = true;
}

void CommandBuffer::enqueue() {
  Device::Queue queue = device_.hold_queue();
  enqueue(queue);
}

void CommandBuffer::enqueue(Device::Queue& queue) {
  if (!is_finished_) TVM_FFI_THROW(RuntimeError) << "a run is replayed whose recording has not ended";
  const size_t i = queue.handle() == queues_[0] ? 0 : 1;
  // Not every driver lets a buffer be enqueued while it still runs.
  if (last_[i] != nullptr) {
    device_.wait(last_[i], "clEnqueueCommandBufferKHR");
    last_[i] = nullptr;
  }
  check(api_.clEnqueueCommandBufferKHR(0, nullptr, handles_[i], 0, nullptr, &last_[i]), "clEnqueueCommandBufferKHR", device_.label());
}

int64_t CommandBuffer::time_ns() {
  // The event of a whole buffer tells next to nothing on some drivers (PoCL 3.1), so there is one before it and one after.
  cl_event marks[2] = {};
  EventLog log(device_.label());
  device_.start_logging(&log);
  try {
    Device::Queue queue = device_.hold_queue();
    for (cl_event& mark : marks) {
      check(api().clEnqueueMarkerWithWaitList(queue.handle(), 0, nullptr, &mark), "clEnqueueMarkerWithWaitList", device_.label());
      if (&mark == marks) enqueue(queue);
    }
  } catch (...) {
    device_.stop_logging(&log);
    throw;
  }
  device_.stop_logging(&log);
  cl_ulong ends[2] = {};
  for (int i = 0; i < 2; ++i) {
    const cl_int code = api().clGetEventProfilingInfo(marks[i], CL_PROFILING_COMMAND_END, sizeof(ends[i]), &ends[i], nullptr);
    api().clReleaseEvent(marks[i]);
    check(code, "clGetEventProfilingInfo", device_.label());
  }
  return static_cast<int64_t>(ends[1] - ends[0]);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.opencl.record", [](int device) {
    return tvm::ffi::Module(tvm::ffi::make_object<Recording>(DeviceTable::global().at(device)));
  });
}

}  // namespace romou::opencl
