// SPDX-License-Identifier: Apache-2.0
//
// The device for TVM's runtime: the device API, and the allocator that gives the Relax VM buffers and images.
#include "device_api.h"

#include "allocation.h"
#include "copies.h"
#include "device.h"
#include "memory.h"
#include "queue.h"
#include "recording.h"

namespace romou::vulkan {
namespace {

struct Runtime {
  using Memory = vulkan::Memory;
  using Device = vulkan::Device;
  static constexpr DLDeviceType kType = kDLVulkan;
  static constexpr const char* kTitle = "Vulkan";

  static Device& device(int index) { return DeviceTable::global().at(index); }
  static size_t count() { return DeviceTable::global().size(); }
  static int& current() { return Device::current(); }
  static Memory* memory_of(const void* data) { return vulkan::memory_of(data); }
  static Memory* create_buffer(Device& device, size_t bytes) { return vulkan::create_buffer(device, bytes); }
  static Memory* create_image(Device& device, const ImageShape& shape) { return vulkan::create_image(device, shape); }
  static void release(Memory* memory) { vulkan::release(memory); }
  static void copy_to_host(const Place& from, char* host, size_t bytes) { vulkan::copy_to_host(from, host, bytes); }
  static void copy_from_host(const char* host, const Place& to, size_t bytes) { vulkan::copy_from_host(host, to, bytes); }
  static void copy_on_device(const Place& from, const Place& to, size_t bytes) { vulkan::copy_on_device(from, to, bytes); }
  static bool is_recording() { return Recording::current() != nullptr; }
  static void finish(Device& device) { device.queue().finish(); }
  static bool is_recorded(const Memory& memory) { return memory.recordings > 0; }
  static bool is_exiting() { return vulkan::is_exiting(); }
  static ImageShape image_shape_of(int ndim, const int64_t* shape, DLDataType dtype, const std::string& scope) {
    return romou::image_shape_of(ndim, shape, dtype, scope, "Vulkan", false);
  }

  static tvm::ffi::Any attribute(const Device& device, tvm::runtime::DeviceAttrKind kind) {
    using tvm::ffi::String;
    const DeviceFacts& facts = device.facts();
    const VkPhysicalDeviceLimits& limits = facts.limits;
    const auto& sizes = limits.maxComputeWorkGroupSize;
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        return static_cast<int64_t>(limits.maxComputeWorkGroupInvocations);
      case tvm::runtime::kWarpSize:
        return static_cast<int64_t>(facts.subgroup_size);
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        return static_cast<int64_t>(limits.maxComputeSharedMemorySize);
      case tvm::runtime::kComputeVersion:
        return String(facts.version);
      case tvm::runtime::kDeviceName:
        return String(facts.name);
      case tvm::runtime::kMultiProcessorCount:
        return static_cast<int64_t>(facts.compute_units);
      case tvm::runtime::kMaxThreadDimensions:
        return String("[" + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + "]");
      case tvm::runtime::kDriverVersion:
        return String(facts.driver);
      case tvm::runtime::kTotalGlobalMemory:
        return static_cast<int64_t>(facts.global_mem_bytes);
      default:
        return nullptr;  // clock, registers, caches, free memory: Vulkan does not report them. None is TVM's value for "unknown"
    }
  }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { register_device<Runtime>("vulkan"); }

}  // namespace romou::vulkan
