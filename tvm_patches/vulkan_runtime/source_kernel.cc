// SPDX-License-Identifier: Apache-2.0
//
// Handwritten SPIR-V kernels. Buffers are bindings 0, 1, …, and scalars are push constants, each in the order of the arguments. The number of work-items
// in a group is constant 1 (`local_size_x_id = 1`).
#include "source_kernel.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "kernel.h"
#include "memory.h"
#include "queue.h"
#include "recording.h"

namespace romou::vulkan {
namespace {

class HandWritten {
 public:
  HandWritten(Device& device, std::string name, tvm::ffi::Bytes spirv) : device_(device), name_(std::move(name)), spirv_(std::move(spirv)) {}

  void enqueue(const std::string& types, const std::vector<SourceValue<Memory>>& values, size_t global, size_t local) {
    if (local == 0 || global % local != 0) {
      TVM_FFI_THROW(ValueError) << "kernel " << name_ << " is launched with " << global << " work-items in groups of " << local;
    }
    const std::shared_ptr<const Kernel> kernel = compiled(types, local);
    std::vector<Memory*> bindings;
    std::vector<char> push_constants;
    for (const SourceValue<Memory>& value : values) {
      if (value.memory != nullptr) {
        if (value.memory->is_image || value.memory->device != &device_) TVM_FFI_THROW(ValueError) << "kernel " << name_ << " takes buffers of " << device_.label();
        bindings.push_back(value.memory);
      } else {
        const auto* bytes = reinterpret_cast<const char*>(&value.bits);
        push_constants.insert(push_constants.end(), bytes, bytes + sizeof(value.bits));
      }
    }
    const std::array<uint32_t, 3> groups{static_cast<uint32_t>(global / local), 1, 1};
    device_.queue().record([&](Commands& commands) { commands.dispatch(kernel, bindings, push_constants, groups); });
  }

  int64_t private_bytes() { return 0; }

 private:
  // A pipeline has fixed arguments and a fixed size of work groups, so it is made at a launch.
  std::shared_ptr<const Kernel> compiled(const std::string& types, size_t local) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const Kernel>& found = kernels_[{types, local}];
    if (found != nullptr) return found;
    tvm::ffi::Array<DLDataType> dtypes;
    tvm::ffi::Array<tvm::ffi::String> arguments;
    tvm::ffi::Array<int64_t> offsets, local_size{static_cast<int64_t>(local), int64_t{1}, int64_t{1}};
    for (char type : types) {
      dtypes.push_back(type == 'm' ? DLDataType{kDLOpaqueHandle, 64, 1} : DLDataType{kDLUInt, 32, 1});
      arguments.push_back(type == 'm' ? "buffer:rw" : "scalar:uint32");
      if (type != 'm') offsets.push_back(static_cast<int64_t>(4 * offsets.size()));
    }
    const tvm::runtime::FunctionInfo info(name_, dtypes, {}, {});
    return found = std::make_shared<const Kernel>(device_, KernelText{info, spirv_, arguments, offsets, local_size, 0}, VK_NULL_HANDLE);
  }

  Device& device_;
  std::string name_;
  tvm::ffi::Bytes spirv_;
  std::mutex mutex_;
  std::map<std::pair<std::string, size_t>, std::shared_ptr<const Kernel>> kernels_;
};

struct SourceRuntime {
  using Memory = vulkan::Memory;
  using Device = vulkan::Device;
  using Kernel = HandWritten;
  using Code = tvm::ffi::Bytes;
  static constexpr const char* kKind = "vulkan";

  static Device& device(int index) { return DeviceTable::global().at(index); }
  static Memory* memory_of(const void* data) { return vulkan::memory_of(data); }
  static bool is_recording() { return Recording::current() != nullptr; }

  template <typename Work>
  static int64_t timed(Device& device, Work work) {
    return device.queue().timed(work);
  }

  static void enqueue_copy(Memory& from, Memory& to, size_t bytes) {
    to.device->queue().record([&](Commands& commands) { commands.copy({&from}, {&to}, bytes); });
  }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { register_source_kernels<SourceRuntime>(); }

}  // namespace romou::vulkan
