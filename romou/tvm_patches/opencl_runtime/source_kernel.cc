// SPDX-License-Identifier: Apache-2.0
//
// Kernels written by hand, for tools that measure a device: source in, a launch timed by the device's own clock out. Only numbers,
// text, tensors and modules cross the border, so all of it works over TVM RPC as well.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <string>

#include "command_buffer.h"
#include "device.h"
#include "loader.h"
#include "memory.h"
#include "program.h"
#include "timer.h"

namespace romou::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::Optional;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;

/// Time what `enqueue` puts on the queue, in ns by the device's clock.
template <typename Enqueue>
int64_t timed(Device& device, Enqueue enqueue) {
  EventLog log(device);
  log.start();
  enqueue();
  log.stop();
  return log.total_ns();
}

/// One kernel of one device. Its functions:
///
///     launch(types, global size, local size, argument, …) -> ns      run once, wait, time by the device's clock
///     enqueue(types, global size, local size, argument, …)           run without waiting
///     private_bytes() -> bytes                                       private memory outside of registers, by the driver's word; or 0
///
/// `types` has a letter for every argument: m memory (a tensor), i int, u unsigned int, f float.
class SourceKernel final : public tvm::ffi::ModuleObj {
 public:
  SourceKernel(Device& device, std::string name, const std::string& source) : device_(device), name_(std::move(name)) {
    kernel_.build(device_, name_, source);
  }

  const char* kind() const final { return "opencl_source_kernel"; }

  Optional<Function> GetFunction(const String& name) final {
    auto self = tvm::ffi::GetRef<tvm::ffi::Module>(this);
    if (name == "launch") {
      return Function::FromPacked(
          [self, this](PackedArgs args, Any* result) { *result = timed(device_, [&] { enqueue(args); }); });
    }
    if (name == "enqueue") return Function::FromPacked([self, this](PackedArgs args, Any*) { enqueue(args); });
    if (name == "private_bytes") return Function::FromTyped([self, this]() { return private_bytes(); });
    return std::nullopt;
  }

 private:
  void enqueue(const PackedArgs& args) {
    const std::string types = args.size() < 3 ? std::string() : std::string(args[0].cast<String>());
    if (args.size() < 3 || types.size() + 3 != static_cast<size_t>(args.size())) {
      TVM_FFI_THROW(ValueError) << "kernel " << name_ << " is launched with types, global size, local size and an argument for every letter of types; got "
                                << args.size() << " values, types '" << types << "'";
    }
    if (CommandBuffer::current() != nullptr) TVM_FFI_THROW(RuntimeError) << "kernel " << name_ << " was written by hand and cannot be recorded";
    const size_t global = static_cast<size_t>(args[1].cast<int64_t>()), local = static_cast<size_t>(args[2].cast<int64_t>());
    std::lock_guard<std::mutex> lock(kernel_.mutex);
    for (size_t i = 0; i < types.size(); ++i) set_argument(i, types[i], args[static_cast<int>(i) + 3]);
    Device::Queue queue = device_.hold_queue();
    kernel_.enqueue(device_, queue, name_, 1, &global, &local);
  }

  template <typename T>
  void set_value(size_t index, T value) {
    kernel_.set_argument(device_, name_, index, sizeof(T), &value);
  }

  void set_argument(size_t index, char type, AnyView value) {
    switch (type) {
      case 'm':
        return set_value(index, memory_of(value.cast<DLTensor*>()->data)->handle);
      case 'i':
        return set_value(index, static_cast<int32_t>(value.cast<int64_t>()));
      case 'u':
        return set_value(index, static_cast<uint32_t>(value.cast<int64_t>()));
      case 'f':
        return set_value(index, static_cast<float>(value.cast<double>()));
      default:
        TVM_FFI_THROW(ValueError) << "argument " << index << " of kernel " << name_ << " has the unknown type '" << type << "'; known are m, i, u, f";
    }
  }

  int64_t private_bytes() {
    cl_ulong bytes = 0;
    const cl_int code =
        api().clGetKernelWorkGroupInfo(kernel_.handle.get(), device_.id(), CL_KERNEL_PRIVATE_MEM_SIZE, sizeof(bytes), &bytes, nullptr);
    return code == CL_SUCCESS ? static_cast<int64_t>(bytes) : 0;
  }

  Device& device_;
  std::string name_;
  Kernel kernel_;
};

/// Copy between the starts of two buffers of one device by the driver's own command; return ns by the device's clock.
int64_t timed_copy(DLTensor* from, DLTensor* to, int64_t bytes) {
  Memory &source = *memory_of(from->data), &target = *memory_of(to->data);
  const size_t room = std::min(source.bytes, target.bytes);
  if (source.is_image || target.is_image || source.device != target.device || bytes < 0 || static_cast<size_t>(bytes) > room) {
    TVM_FFI_THROW(ValueError) << "cannot copy " << bytes << " bytes: needs two buffers of one device, of so many bytes at least (the smaller one has "
                              << room << ")";
  }
  Device& device = *target.device;
  return timed(device, [&] {
    Device::Queue queue = device.hold_queue();
    cl_event event = nullptr;
    device.check(api().clEnqueueCopyBuffer(queue.handle(), source.handle, target.handle, 0, 0, static_cast<size_t>(bytes), 0, nullptr, &event),
                 "clEnqueueCopyBuffer");
    queue.log_event(Event(event));
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("romou.opencl.source_kernel",
           [](int device, String source, String name) {
             return tvm::ffi::Module(tvm::ffi::make_object<SourceKernel>(DeviceTable::global().at(device), std::string(name), std::string(source)));
           })
      .def("romou.opencl.timed_copy", timed_copy);
}

}  // namespace romou::opencl
