// SPDX-License-Identifier: Apache-2.0
//
// The device for TVM's runtime: the device API, and the allocator that gives the Relax VM buffers and images.
#include "device_api.h"

#include <cstdio>
#include <mutex>

#include "command_buffer.h"
#include "device.h"
#include "loader.h"
#include "memory.h"

namespace romou::opencl {
namespace {

struct Runtime {
  using Memory = opencl::Memory;
  using Device = opencl::Device;
  static constexpr DLDeviceType kType = kDLOpenCL;
  static constexpr const char* kTitle = "OpenCL";

  static Device& device(int index) { return DeviceTable::global().at(index); }
  static size_t count() { return DeviceTable::global().size(); }
  static int& current() { return Device::current(); }
  static Memory* memory_of(const void* data) { return opencl::memory_of(data); }
  static Memory* create_buffer(Device& device, size_t bytes) { return opencl::create_buffer(device, bytes); }
  static Memory* create_image(Device& device, const ImageShape& shape) { return opencl::create_image(device, shape); }
  static void release(Memory* memory) { opencl::release(memory); }
  static void copy_to_host(const Place& from, char* host, size_t bytes) { opencl::copy_to_host(from, host, bytes); }
  static void copy_from_host(const char* host, const Place& to, size_t bytes) { opencl::copy_from_host(host, to, bytes); }
  static void copy_on_device(const Place& from, const Place& to, size_t bytes) { opencl::copy_on_device(from, to, bytes); }
  static bool is_recording() { return CommandBuffer::current() != nullptr; }
  static void finish(Device& device) { device.finish(); }
  // Any other reference belongs to a recorded command buffer.
  static bool is_recorded(const Memory& memory) { return memory.references > 1; }
  static bool is_exiting() { return opencl::is_exiting(); }
  static ImageShape image_shape_of(int ndim, const int64_t* shape, DLDataType dtype, const std::string& scope) {
    return romou::image_shape_of(ndim, shape, dtype, scope, "OpenCL", true);
  }

  static tvm::ffi::Any attribute(const Device& device, tvm::runtime::DeviceAttrKind kind) {
    using tvm::ffi::String;
    const DeviceFacts& facts = device.facts();
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        return static_cast<int64_t>(facts.max_work_group_size);
      case tvm::runtime::kWarpSize:
        return static_cast<int64_t>(facts.warp_size);
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        return static_cast<int64_t>(facts.local_mem_bytes);
      case tvm::runtime::kComputeVersion:
        return String(facts.version);
      case tvm::runtime::kDeviceName:
        return String(facts.name);
      case tvm::runtime::kMaxClockRate:
        return static_cast<int64_t>(facts.clock_mhz) * 1000;  // in kHz, as CUDA has it
      case tvm::runtime::kMultiProcessorCount:
        return static_cast<int64_t>(facts.compute_units);
      case tvm::runtime::kMaxThreadDimensions:
        return String("[" + std::to_string(facts.max_work_item_sizes[0]) + ", " + std::to_string(facts.max_work_item_sizes[1]) +
                         ", " + std::to_string(facts.max_work_item_sizes[2]) + "]");
      case tvm::runtime::kDriverVersion:
        return String(facts.driver);
      case tvm::runtime::kL2CacheSizeBytes:
        return static_cast<int64_t>(facts.global_cache_bytes);
      case tvm::runtime::kTotalGlobalMemory:
        return static_cast<int64_t>(facts.global_mem_bytes);
      case tvm::runtime::kImagePitchAlignment:
        return static_cast<int64_t>(facts.image_pitch_align_texels);
      default:
        return nullptr;  // registers, GCN name, free memory: no OpenCL driver reports them. None is TVM's value for "unknown"
    }
  }
};

/// The memory of a tensor in a storage, which it keeps.
struct View {
  tvm::runtime::memory::Storage storage;
  Memory* memory;
  void AllocData(DLTensor* tensor) { tensor->data = memory; }
  void FreeData(DLTensor*) {}
};

/// Return a tensor in `bytes` bytes of a storage. If the driver cannot make its image there, the tensor gets memory from the pool.
tvm::ffi::Tensor view(const tvm::runtime::memory::Storage& storage, int64_t offset, int64_t bytes, const tvm::ffi::Shape& shape, DLDataType dtype,
                      const tvm::ffi::String& scope) {
  Memory& whole = *memory_of(storage->buffer.data);
  const bool is_buffer = is_buffer_scope(scope);
  const ImageShape image = is_buffer ? ImageShape{} : Runtime::image_shape_of(static_cast<int>(shape.size()), shape.data(), dtype, scope);
  const size_t least = is_buffer ? tvm::ffi::GetDataSize(shape.Product(), dtype) : image.bytes();
  if (offset < 0 || bytes < static_cast<int64_t>(least) || static_cast<size_t>(offset) + static_cast<size_t>(bytes) > whole.bytes) {
    TVM_FFI_THROW(ValueError) << "no tensor of " << least << " bytes in " << bytes << " bytes at " << offset << " of a storage of " << whole.bytes;
  }
  const DLDevice device = storage->buffer.device;
  if (Memory* memory = view_of(whole, offset, bytes, image)) return tvm::ffi::Tensor::FromNDAlloc(View{storage, memory}, shape, dtype, device);
  static std::once_flag warned;
  std::call_once(warned, [&] {
    std::fprintf(stderr,
                 "romou: %s cannot place a tensor in %lld bytes of the %zu bytes that a model's tensors share (cl_ext_image_from_buffer), so such tensors get "
                 "memory besides, which the memory plan does not count.\n",
                 whole.device->label().c_str(), static_cast<long long>(bytes), whole.bytes);
  });
  return storage->allocator->Empty(shape, dtype, device, scope);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  register_device<Runtime>("opencl");
  tvm::ffi::reflection::GlobalDef().def("romou.opencl.view", view);
}

}  // namespace romou::opencl
