// SPDX-License-Identifier: Apache-2.0
//
// Kernels of OpenCL C written by hand.
#include "source_kernel.h"

#include <string>
#include <vector>

#include "command_buffer.h"
#include "device.h"
#include "loader.h"
#include "memory.h"
#include "program.h"
#include "timer.h"

namespace romou::opencl {
namespace {

class HandWritten {
 public:
  HandWritten(Device& device, std::string name, const tvm::ffi::String& source) : device_(device), name_(std::move(name)) {
    kernel_.build(device_, name_, std::string(source));
  }

  void enqueue(const std::string&, const std::vector<SourceValue<Memory>>& values, size_t global, size_t local) {
    std::lock_guard<std::mutex> lock(kernel_.mutex);
    for (size_t i = 0; i < values.size(); ++i) {
      if (Memory* memory = values[i].memory) {
        kernel_.set_argument(device_, name_, i, sizeof(memory->handle), &memory->handle);
      } else {
        kernel_.set_argument(device_, name_, i, sizeof(values[i].bits), &values[i].bits);
      }
    }
    Device::Queue queue = device_.hold_queue();
    kernel_.enqueue(device_, queue, name_, 1, &global, &local);
  }

  int64_t private_bytes() {
    cl_ulong bytes = 0;
    const cl_int code =
        api().clGetKernelWorkGroupInfo(kernel_.handle.get(), device_.id(), CL_KERNEL_PRIVATE_MEM_SIZE, sizeof(bytes), &bytes, nullptr);
    return code == CL_SUCCESS ? static_cast<int64_t>(bytes) : 0;
  }

 private:
  Device& device_;
  std::string name_;
  opencl::Kernel kernel_;
};

struct SourceRuntime {
  using Memory = opencl::Memory;
  using Device = opencl::Device;
  using Kernel = HandWritten;
  using Code = tvm::ffi::String;
  static constexpr const char* kKind = "opencl";

  static Device& device(int index) { return DeviceTable::global().at(index); }
  static Memory* memory_of(const void* data) { return opencl::memory_of(data); }
  static bool is_recording() { return CommandBuffer::current() != nullptr; }

  template <typename Work>
  static int64_t timed(Device& device, Work work) {
    EventLog log(device);
    log.start();
    work();
    log.stop();
    return log.total_ns();
  }

  static void enqueue_copy(Memory& from, Memory& to, size_t bytes) {
    Device& device = *to.device;
    Device::Queue queue = device.hold_queue();
    cl_event event = nullptr;
    device.check(api().clEnqueueCopyBuffer(queue.handle(), from.handle, to.handle, 0, 0, bytes, 0, nullptr, &event), "clEnqueueCopyBuffer");
    queue.log_event(Event(event));
  }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { register_source_kernels<SourceRuntime>(); }

}  // namespace romou::opencl
