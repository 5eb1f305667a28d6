// SPDX-License-Identifier: Apache-2.0
//
// Handwritten kernels, for tools that measure a device: they are compiled from source, launched, and timed by the device's clock.
// Arguments and results are numbers, text, tensors and modules, so everything works over TVM RPC as well.
//
// A runtime gives the differences in a struct:
//
//     kKind, Memory, Device, device(index), memory_of, is_recording()      as for `device_api.h`
//     Code, Kernel(device, name, code)                                     tvm::ffi::String or Bytes, and the compiled kernel
//     kernel.enqueue(types, values, global, local), kernel.private_bytes()
//     timed(device, work)                                                  ns of the device's clock for the commands of `work`
//     enqueue_copy(from, to, bytes)                                        between the starts of two buffers of one device
#ifndef ROMOU_DEVICE_RUNTIME_SOURCE_KERNEL_H_
#define ROMOU_DEVICE_RUNTIME_SOURCE_KERNEL_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace romou {

/// An argument of a launch: memory, or a scalar of four bytes.
template <typename Memory>
struct SourceValue {
  Memory* memory = nullptr;
  uint32_t bits = 0;
};

/// One kernel of one device. Its functions:
///
///     launch(types, global size, local size, argument, …) -> ns      run once, wait, time by the device's clock
///     enqueue(types, global size, local size, argument, …)           run without waiting
///     private_bytes() -> bytes                                       private memory outside of registers as the driver reports it, or 0
///
/// `types` has a letter for every argument: m memory (a tensor), i int, u unsigned int, f float.
template <typename Runtime>
class SourceKernel final : public tvm::ffi::ModuleObj {
 public:
  using Value = SourceValue<typename Runtime::Memory>;
  using PackedArgs = tvm::ffi::PackedArgs;
  using Function = tvm::ffi::Function;
  using String = tvm::ffi::String;

  SourceKernel(typename Runtime::Device& device, const std::string& name, const typename Runtime::Code& code)
      : device_(device), name_(name), kernel_(device, name, code) {}

  const char* kind() const final { return "romou_source_kernel"; }

  tvm::ffi::Optional<Function> GetFunction(const String& name) final {
    auto self = tvm::ffi::GetRef<tvm::ffi::Module>(this);
    if (name == "launch") {
      return Function::FromPacked([self, this](PackedArgs args, tvm::ffi::Any* result) {
        *result = Runtime::timed(device_, [&] { enqueue(args); });
      });
    }
    if (name == "enqueue") return Function::FromPacked([self, this](PackedArgs args, tvm::ffi::Any*) { enqueue(args); });
    if (name == "private_bytes") return Function::FromTyped([self, this]() { return kernel_.private_bytes(); });
    return std::nullopt;
  }

 private:
  void enqueue(const PackedArgs& args) {
    const std::string types = args.size() < 3 ? std::string() : std::string(args[0].cast<String>());
    if (args.size() < 3 || types.size() + 3 != static_cast<size_t>(args.size())) {
      TVM_FFI_THROW(ValueError) << "kernel " << name_ << " is launched with types, global size, local size and an argument for every letter of types; got "
                                << args.size() << " values, types '" << types << "'";
    }
    if (Runtime::is_recording()) TVM_FFI_THROW(RuntimeError) << "kernel " << name_ << " was written by hand and cannot be recorded";
    std::vector<Value> values;
    for (size_t i = 0; i < types.size(); ++i) values.push_back(value_of(i, types[i], args[static_cast<int>(i) + 3]));
    kernel_.enqueue(types, values, static_cast<size_t>(args[1].cast<int64_t>()), static_cast<size_t>(args[2].cast<int64_t>()));
  }

  Value value_of(size_t index, char type, tvm::ffi::AnyView value) const {
    switch (type) {
      case 'm':
        return {Runtime::memory_of(value.cast<DLTensor*>()->data)};
      case 'i':
      case 'u':
        return {nullptr, static_cast<uint32_t>(value.cast<int64_t>())};
      case 'f':
        return {nullptr, std::bit_cast<uint32_t>(static_cast<float>(value.cast<double>()))};
      default:
        TVM_FFI_THROW(ValueError) << "argument " << index << " of kernel " << name_ << " has the unknown type '" << type << "'; known are m, i, u, f";
        TVM_FFI_UNREACHABLE();
    }
  }

  typename Runtime::Device& device_;
  std::string name_;
  typename Runtime::Kernel kernel_;
};

/// Copy between the starts of two buffers of one device by the driver's copy command, and return ns by the device's clock.
template <typename Runtime>
int64_t timed_copy(DLTensor* from, DLTensor* to, int64_t bytes) {
  auto &source = *Runtime::memory_of(from->data), &target = *Runtime::memory_of(to->data);
  const size_t room = std::min(source.bytes, target.bytes);
  if (source.is_image || target.is_image || source.device != target.device || bytes < 0 || static_cast<size_t>(bytes) > room) {
    TVM_FFI_THROW(ValueError) << "cannot copy " << bytes << " bytes: needs two buffers of one device, of so many bytes at least (the smaller one has "
                              << room << ")";
  }
  return Runtime::timed(*target.device, [&] { Runtime::enqueue_copy(source, target, static_cast<size_t>(bytes)); });
}

/// Register "romou.KIND.source_kernel" and "romou.KIND.timed_copy".
template <typename Runtime>
void register_source_kernels() {
  const std::string prefix = std::string("romou.") + Runtime::kKind + ".";
  tvm::ffi::reflection::GlobalDef()
      .def((prefix + "source_kernel").c_str(),
           [](int device, const typename Runtime::Code& code, const tvm::ffi::String& name) {
             return tvm::ffi::Module(tvm::ffi::make_object<SourceKernel<Runtime>>(Runtime::device(device), std::string(name), code));
           })
      .def((prefix + "timed_copy").c_str(), timed_copy<Runtime>);
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_SOURCE_KERNEL_H_
