// SPDX-License-Identifier: Apache-2.0
//
// What TVM's runtime sees: the device API, and the allocator through which the Relax VM gets buffers and images.
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/tensor.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "loader.h"
#include "memory.h"

namespace romou::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Optional;
using tvm::ffi::Shape;
using tvm::ffi::String;
using tvm::runtime::DeviceAttrKind;

bool is_opencl(DLDevice device) { return device.device_type == kDLOpenCL; }

class OpenCLDeviceAPI final : public tvm::runtime::DeviceAPI {
 public:
  static OpenCLDeviceAPI* global() {
    static auto* instance = new OpenCLDeviceAPI();
    return instance;
  }

  void SetDevice(DLDevice dev) final { Device::current() = dev.device_id; }

  void GetAttr(DLDevice dev, DeviceAttrKind kind, Any* result) final {
    DeviceTable& table = DeviceTable::global();
    if (kind == tvm::runtime::kExist) {
      *result = static_cast<int>(dev.device_id >= 0 && static_cast<size_t>(dev.device_id) < table.size());
      return;
    }
    const DeviceFacts& facts = table.at(dev.device_id).facts();
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        *result = static_cast<int64_t>(facts.max_work_group_size);
        break;
      case tvm::runtime::kWarpSize:
        *result = static_cast<int64_t>(facts.warp_size);
        break;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *result = static_cast<int64_t>(facts.local_mem_bytes);
        break;
      case tvm::runtime::kComputeVersion:
        *result = String(facts.version);
        break;
      case tvm::runtime::kDeviceName:
        *result = String(facts.name);
        break;
      case tvm::runtime::kMaxClockRate:
        *result = static_cast<int64_t>(facts.clock_mhz) * 1000;  // in kHz, as CUDA has it
        break;
      case tvm::runtime::kMultiProcessorCount:
        *result = static_cast<int64_t>(facts.compute_units);
        break;
      case tvm::runtime::kMaxThreadDimensions:
        *result = String("[" + std::to_string(facts.max_work_item_sizes[0]) + ", " + std::to_string(facts.max_work_item_sizes[1]) +
                         ", " + std::to_string(facts.max_work_item_sizes[2]) + "]");
        break;
      case tvm::runtime::kDriverVersion:
        *result = String(facts.driver);
        break;
      case tvm::runtime::kL2CacheSizeBytes:
        *result = static_cast<int64_t>(facts.global_cache_bytes);
        break;
      case tvm::runtime::kTotalGlobalMemory:
        *result = static_cast<int64_t>(facts.global_mem_bytes);
        break;
      case tvm::runtime::kImagePitchAlignment:
        *result = static_cast<int64_t>(facts.image_pitch_align_texels);
        break;
      default:
        break;  // registers, GCN name, free memory: no OpenCL driver tells; None is TVM's word for "unknown"
    }
  }

  size_t GetDataSize(const DLTensor& tensor, Optional<String> scope) final {
    const std::string name = scope.has_value() ? std::string(scope.value()) : std::string();
    if (is_buffer_scope(name)) return DeviceAPI::GetDataSize(tensor);
    return image_shape_of(tensor.ndim, tensor.shape, tensor.dtype, name).bytes();
  }

  void* AllocDataSpace(DLDevice dev, size_t bytes, size_t, DLDataType) final {
    return create_buffer(DeviceTable::global().at(dev.device_id), bytes);
  }

  void* AllocDataSpace(DLDevice dev, int ndim, const int64_t* shape, DLDataType dtype, Optional<String> scope) final {
    const std::string name = scope.has_value() ? std::string(scope.value()) : std::string();
    if (is_buffer_scope(name)) return DeviceAPI::AllocDataSpace(dev, ndim, shape, dtype, std::nullopt);
    return create_image(DeviceTable::global().at(dev.device_id), image_shape_of(ndim, shape, dtype, name));
  }

  void FreeDataSpace(DLDevice, void* data) final { release(memory_of(data)); }

  void StreamSync(DLDevice dev, TVMStreamHandle) final { DeviceTable::global().at(dev.device_id).finish(); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t bytes, DLDevice dev_from,
                      DLDevice dev_to, DLDataType, TVMStreamHandle) final {
    copy(place_of(from, from_offset, dev_from), place_of(to, to_offset, dev_to), bytes);
  }

 private:
  static Place place_of(const void* data, size_t offset, DLDevice dev) {
    if (is_opencl(dev)) return Place{memory_of(data), nullptr, offset};
    return Place{nullptr, const_cast<void*>(data), offset};
  }
};

// Keeps freed buffers and images for the next request of the same size: a network asks for the same sizes in every run.
class PoolingAllocator final : public tvm::runtime::Allocator {
 public:
  using Buffer = tvm::runtime::memory::Buffer;

  PoolingAllocator(DLDevice dev, tvm::runtime::AllocatorType type)
      : Allocator(type), device_(DeviceTable::global().at(dev.device_id)) {}

  Buffer Alloc(DLDevice dev, size_t bytes, size_t, DLDataType) final {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    return buffer_of(dev, take(ImageShape{0, 0, 0, size}, [&] { return create_buffer(device_, size); }), size);
  }

  Buffer Alloc(DLDevice dev, Shape shape, DLDataType dtype, const std::string& scope) final {
    if (is_buffer_scope(scope)) return Allocator::Alloc(dev, shape, dtype, scope);
    if (shape.size() == 1) {
      // A storage that Relax planned for several images, by its size in bytes. OpenCL 1.2 cannot lay an image over other memory:
      // every tensor in it gets an image of its own from the pool (CreateView), and the storage itself holds next to nothing.
      return buffer_of(dev, take(ImageShape{0, 0, 0, kPage}, [&] { return create_buffer(device_, kPage); }),
                       static_cast<size_t>(shape[0]) * ((dtype.bits * dtype.lanes + 7) / 8));
    }
    const ImageShape image = image_shape_of(static_cast<int>(shape.size()), shape.data(), dtype, scope);
    return buffer_of(dev, take(image, [&] { return create_image(device_, image); }), image.bytes());
  }

  // Tensors that share a planned storage use it one after another; one whose image has another shape gets its own image for its life.
  void* CreateView(const Buffer& buffer, Shape shape, DLDataType dtype, const std::string& scope) final {
    Memory* storage = memory_of(buffer.data);
    if (is_buffer_scope(scope)) return storage;
    const ImageShape image = image_shape_of(static_cast<int>(shape.size()), shape.data(), dtype, scope);
    if (storage->is_image && storage->image == image) return storage;
    Memory* view = take(image, [&] { return create_image(device_, image); });
    view->is_view = true;
    return view;
  }

  void FreeView(DLDevice, void* data) final {
    Memory* memory = memory_of(data);
    if (!memory->is_view) return;
    memory->is_view = false;
    give_back(memory);
  }

  void Free(const Buffer& buffer) final { give_back(memory_of(buffer.data)); }

  void Clear() final {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, memories] : pool_) {
      for (Memory* memory : memories) {
        used_bytes_ -= memory->bytes;
        release(memory);
      }
    }
    pool_.clear();
  }

  size_t UsedMemory() const final { return used_bytes_; }

 protected:
  bool AllowMemoryScope(const std::string&) const final { return true; }  // image_shape_of refuses unknown ones

 private:
  static constexpr size_t kPage = 4096;
  using Key = std::array<size_t, 6>;

  static Key key_of(const ImageShape& shape) { return {shape.width, shape.height, shape.layers, shape.texel_bytes, shape.object, shape.is_integer}; }
  static Key key_of(const Memory& memory) {
    return key_of(memory.is_image ? memory.image : ImageShape{0, 0, 0, memory.bytes});
  }

  template <typename Create>
  Memory* take(const ImageShape& shape, Create create) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = pool_.find(key_of(shape));
      if (found != pool_.end() && !found->second.empty()) {
        Memory* memory = found->second.back();
        found->second.pop_back();
        return memory;
      }
    }
    Memory* memory = nullptr;
    try {
      memory = create();
    } catch (const tvm::ffi::Error&) {
      Clear();  // what lies idle in the pool may be just what is missing
      memory = create();
    }
    used_bytes_ += memory->bytes;
    return memory;
  }

  void give_back(Memory* memory) {
    if (is_exiting()) return;
    if (memory->references > 1) {
      // A recorded command buffer still uses it.
      used_bytes_ -= memory->bytes;
      release(memory);
      return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    pool_[key_of(*memory)].push_back(memory);
  }

  Buffer buffer_of(DLDevice dev, Memory* memory, size_t size) {
    Buffer buffer;
    buffer.data = memory;
    buffer.size = size;
    buffer.device = dev;
    buffer.alloc_type = type();
    return buffer;
  }

  Device& device_;
  std::mutex mutex_;
  std::map<Key, std::vector<Memory*>> pool_;
  std::atomic<size_t> used_bytes_{0};
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("device_api.opencl", [] { return static_cast<void*>(OpenCLDeviceAPI::global()); })
      .def("DeviceAllocator.opencl",
           [](DLDevice dev, int type) {
             return static_cast<void*>(
                 static_cast<tvm::runtime::Allocator*>(new PoolingAllocator(dev, static_cast<tvm::runtime::AllocatorType>(type))));
           })
      // Host code that TVM lowers allocates images through these two: width and height in texels, and the number of layers.
      .def("device_api.opencl.alloc_nd",
           [](int, int device_id, int, int bits, String scope, int ndim, void* extents) {
             const auto* extent = static_cast<int64_t*>(extents);
             if (ndim < 2 || ndim > 3) {
               TVM_FFI_THROW(ValueError) << "an image in scope '" << scope << "' was asked for with " << ndim << " extents, not 2 or 3";
             }
             const ImageShape image{static_cast<size_t>(extent[0]), static_cast<size_t>(extent[1]),
                                    ndim == 3 ? static_cast<size_t>(extent[2]) : 1, static_cast<size_t>(bits) / 2};
             return static_cast<void*>(create_image(DeviceTable::global().at(device_id), image));
           })
      .def("device_api.opencl.free_nd", [](int, int device_id, String, void* data) {
        OpenCLDeviceAPI::global()->FreeDataSpace(DLDevice{kDLOpenCL, device_id}, data);
        return 0;
      });
}

}  // namespace romou::opencl
