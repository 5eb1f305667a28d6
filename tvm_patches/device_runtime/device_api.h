// SPDX-License-Identifier: Apache-2.0
//
// A device for TVM's runtime: its API, and the allocator that gives the Relax VM buffers and images.
//
// A runtime gives the differences in a struct:
//
//     Memory, Device                                 with MemoryHead, with `label()`
//     kType, kTitle                                  the device type of DLPack, and the name in errors
//     device(index), count(), current()              the device table, and the device that this thread's host code chose last
//     attribute(device, kind)                        the device's answer, or None
//     memory_of, image_shape_of                      a data pointer's memory, and a tensor's image
//     create_buffer, create_image, release, finish
//     copy_to_host, copy_from_host, copy_on_device   done when they return if the host takes part, else in order with later commands
//     is_recording()                                 whether this thread records a run. Copies are not recorded
//     is_recorded(memory)                            whether a recorded run still uses it: no pool hands it to another
//     is_exiting()                                   true once the process runs its exit handlers
#ifndef ROMOU_DEVICE_RUNTIME_DEVICE_API_H_
#define ROMOU_DEVICE_RUNTIME_DEVICE_API_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/tensor.h>
#include <tvm/runtime/vm/executable.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "image_shape.h"
#include "memory_head.h"

namespace romou {

template <typename Runtime>
class DeviceAPI final : public tvm::runtime::DeviceAPI {
 public:
  using Memory = typename Runtime::Memory;
  using Base = tvm::runtime::DeviceAPI;

  static DeviceAPI* global() {
    static auto* instance = new DeviceAPI();
    return instance;
  }

  void SetDevice(DLDevice dev) final { Runtime::current() = dev.device_id; }

  void GetAttr(DLDevice dev, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) final {
    if (kind == tvm::runtime::kExist) {
      *result = static_cast<int>(dev.device_id >= 0 && static_cast<size_t>(dev.device_id) < Runtime::count());
    } else {
      *result = Runtime::attribute(Runtime::device(dev.device_id), kind);
    }
  }

  size_t GetDataSize(const DLTensor& tensor, tvm::ffi::Optional<tvm::ffi::String> scope) final {
    const std::string name = scope.has_value() ? std::string(scope.value()) : std::string();
    if (is_buffer_scope(name)) return Base::GetDataSize(tensor);
    return Runtime::image_shape_of(tensor.ndim, tensor.shape, tensor.dtype, name).bytes();
  }

  void* AllocDataSpace(DLDevice dev, size_t bytes, size_t, DLDataType) final { return Runtime::create_buffer(Runtime::device(dev.device_id), bytes); }

  void* AllocDataSpace(DLDevice dev, int ndim, const int64_t* shape, DLDataType dtype, tvm::ffi::Optional<tvm::ffi::String> scope) final {
    const std::string name = scope.has_value() ? std::string(scope.value()) : std::string();
    if (is_buffer_scope(name)) return Base::AllocDataSpace(dev, ndim, shape, dtype, std::nullopt);
    return Runtime::create_image(Runtime::device(dev.device_id), Runtime::image_shape_of(ndim, shape, dtype, name));
  }

  void FreeDataSpace(DLDevice, void* data) final { Runtime::release(Runtime::memory_of(data)); }

  void StreamSync(DLDevice dev, TVMStreamHandle) final { Runtime::finish(Runtime::device(dev.device_id)); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t bytes, DLDevice dev_from, DLDevice dev_to, DLDataType,
                      TVMStreamHandle) final {
    if (bytes == 0) return;
    const PlaceOf<Memory> source = place_of(from, from_offset, dev_from), target = place_of(to, to_offset, dev_to);
    if (Runtime::is_recording()) TVM_FFI_THROW(RuntimeError) << "a run that copies tensors cannot be recorded";
    require_whole_layers(source, bytes);
    require_whole_layers(target, bytes);
    if (source.memory == nullptr && target.memory == nullptr) {
      TVM_FFI_THROW(ValueError) << "the " << Runtime::kTitle << " runtime was asked to copy between two host tensors";
    } else if (source.memory == nullptr) {
      Runtime::copy_from_host(static_cast<const char*>(source.host) + source.offset, target, bytes);
    } else if (target.memory == nullptr) {
      Runtime::copy_to_host(source, static_cast<char*>(target.host) + target.offset, bytes);
    } else if (source.memory->device == target.memory->device) {
      Runtime::copy_on_device(source, target, bytes);
    } else {
      // A driver copies only within one device's context.
      std::vector<char> between(bytes);
      Runtime::copy_to_host(source, between.data(), bytes);
      Runtime::copy_from_host(between.data(), target, bytes);
    }
  }

 private:
  static PlaceOf<Memory> place_of(const void* data, size_t offset, DLDevice dev) {
    if (dev.device_type == Runtime::kType) return {Runtime::memory_of(data), nullptr, offset};
    return {nullptr, const_cast<void*>(data), offset};
  }
};

/// The buffers that a run of this thread asks for. Outputs get memory of the host, by their positions among these requests, which are the same in each run.
template <typename Memory>
struct Placement {
  std::vector<Memory*> taken;
  std::map<size_t, tvm::ffi::Tensor> outputs;

  static std::optional<Placement>& current() {
    thread_local std::optional<Placement> instance;
    return instance;
  }

  /// Return the memory for the next request, or null if it is of the pool.
  Memory* next(size_t bytes) {
    const auto found = outputs.find(taken.size());
    if (found == outputs.end()) return nullptr;
    auto* memory = static_cast<Memory*>(found->second.data_ptr());
    if (memory->bytes != bytes) return nullptr;
    ++memory->references;
    return memory;
  }
};

/// Keeps freed buffers and images for the next request of the same size, because a network makes the same requests in every run.
template <typename Runtime>
class PoolingAllocator final : public tvm::runtime::memory::Allocator {
 public:
  using Memory = typename Runtime::Memory;
  using Buffer = tvm::runtime::memory::Buffer;
  using Base = tvm::runtime::memory::Allocator;

  PoolingAllocator(DLDevice dev, tvm::runtime::memory::AllocatorType type) : Base(type), device_(Runtime::device(dev.device_id)) {}

  Buffer Alloc(DLDevice dev, size_t bytes, size_t, DLDataType) final {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    std::optional<Placement<Memory>>& run = Placement<Memory>::current();
    Memory* memory = run.has_value() ? run->next(bytes) : nullptr;
    if (memory == nullptr) memory = take(ImageShape{0, 0, 0, size}, [&] { return Runtime::create_buffer(device_, size); });
    if (run.has_value()) run->taken.push_back(memory);
    return buffer_of(dev, memory, size);
  }

  Buffer Alloc(DLDevice dev, tvm::ffi::Shape shape, DLDataType dtype, const std::string& scope) final {
    if (is_buffer_scope(scope)) return Base::Alloc(dev, shape, dtype, scope);
    if (shape.size() == 1) {
      // A storage that Relax planned for several images, by its size in bytes. An image cannot share other memory, so CreateView gets an image from
      // the pool for every tensor in the storage, and the storage holds one page.
      return buffer_of(dev, take(ImageShape{0, 0, 0, kPage}, [&] { return Runtime::create_buffer(device_, kPage); }),
                       static_cast<size_t>(shape[0]) * ((dtype.bits * dtype.lanes + 7) / 8));
    }
    std::vector<int64_t> extents(shape.begin(), shape.end());
    if (dtype.code == kDLUInt && dtype.bits == 8) {
      // A storage that Romou planned, with a last axis in bytes: the bytes of a texel.
      dtype = DLDataType{kDLFloat, static_cast<uint8_t>(2 * extents.back()), 1};
      extents.back() = 4;
      if (axes_of_rows(scope) > 0) {  // (rows, texels of a row, bytes)
        extents.pop_back();
        extents.back() *= 4;
      }
    }
    const ImageShape image = Runtime::image_shape_of(static_cast<int>(extents.size()), extents.data(), dtype, scope);
    return buffer_of(dev, take(image, [&] { return Runtime::create_image(device_, image); }), image.bytes());
  }

  // Tensors that share a planned storage use it one after another. An image also serves tensors of fewer layers. A tensor that does not fit otherwise
  // gets a separate image for its life.
  void* CreateView(const Buffer& buffer, tvm::ffi::Shape shape, DLDataType dtype, const std::string& scope) final {
    Memory* storage = Runtime::memory_of(buffer.data);
    if (is_buffer_scope(scope)) return storage;
    const ImageShape image = Runtime::image_shape_of(static_cast<int>(shape.size()), shape.data(), dtype, scope);
    if (storage->is_image && storage->image.holds(image)) return storage;
    Memory* view = take(image, [&] { return Runtime::create_image(device_, image); });
    view->is_view = true;
    return view;
  }

  void FreeView(DLDevice, void* data) final {
    Memory* memory = Runtime::memory_of(data);
    if (!memory->is_view) return;
    memory->is_view = false;
    give_back(memory);
  }

  void Free(const Buffer& buffer) final { give_back(Runtime::memory_of(buffer.data)); }

  void Clear() final {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, memories] : pool_) {
      for (Memory* memory : memories) {
        used_bytes_ -= memory->bytes;
        Runtime::release(memory);
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

  static Key key_of(const ImageShape& shape) {
    return {shape.width, shape.height, shape.layers, shape.texel_bytes, static_cast<size_t>(shape.kind), static_cast<size_t>(shape.type)};
  }
  static Key key_of(const Memory& memory) { return key_of(memory.is_image ? memory.image : ImageShape{0, 0, 0, memory.bytes}); }

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
      Clear();  // idle memory in the pool may be enough
      memory = create();
    }
    used_bytes_ += memory->bytes;
    return memory;
  }

  void give_back(Memory* memory) {
    if (Runtime::is_exiting()) return;
    if (memory->host != nullptr) {
      Runtime::release(memory);
      return;
    }
    if (Runtime::is_recorded(*memory)) {
      used_bytes_ -= memory->bytes;
      Runtime::release(memory);
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
    buffer.alloc_type = this->type();
    return buffer;
  }

  typename Runtime::Device& device_;
  std::mutex mutex_;
  std::map<Key, std::vector<Memory*>> pool_;
  std::atomic<size_t> used_bytes_{0};
};

/// Register a device under TVM's name of its kind, "opencl" or "vulkan".
template <typename Runtime>
void register_device(const std::string& kind) {
  using tvm::ffi::String;
  tvm::ffi::reflection::GlobalDef()
      .def(("device_api." + kind).c_str(), [] { return static_cast<void*>(DeviceAPI<Runtime>::global()); })
      .def(("DeviceAllocator." + kind).c_str(),
           [](DLDevice dev, int type) {
             auto* made = new PoolingAllocator<Runtime>(dev, static_cast<tvm::runtime::memory::AllocatorType>(type));
             return static_cast<void*>(static_cast<tvm::runtime::memory::Allocator*>(made));
           })
      // Host code lowered by TVM allocates images with these two functions: width and height in texels, and the number of layers.
      .def(("device_api." + kind + ".alloc_nd").c_str(),
           [](int, int device_id, int, int bits, String scope, int ndim, void* extents) {
             const auto* extent = static_cast<int64_t*>(extents);
             if (ndim < 2 || ndim > 3) {
               TVM_FFI_THROW(ValueError) << "an image in scope '" << scope << "' was asked for with " << ndim << " extents, not 2 or 3";
             }
             const ImageShape image{static_cast<size_t>(extent[0]), static_cast<size_t>(extent[1]), ndim == 3 ? static_cast<size_t>(extent[2]) : 1,
                                    static_cast<size_t>(bits) / 2};
             return static_cast<void*>(Runtime::create_image(Runtime::device(device_id), image));
           })
      // Between `place` and `placed`, a run gets these tensors for its outputs. `placed` returns the address of the memory of each request.
      .def(("romou." + kind + ".place").c_str(),
           [](tvm::ffi::Array<int64_t> positions, tvm::ffi::Array<tvm::ffi::Tensor> outputs) {
             auto& run = Placement<typename Runtime::Memory>::current().emplace();
             for (size_t i = 0; i < outputs.size(); ++i) run.outputs.emplace(static_cast<size_t>(positions[i]), outputs[i]);
           })
      .def(("romou." + kind + ".placed").c_str(),
           [] {
             tvm::ffi::Array<int64_t> addresses;
             auto& run = Placement<typename Runtime::Memory>::current();
             if (run.has_value()) for (const auto* memory : run->taken) addresses.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(memory)));
             run.reset();
             return addresses;
           })
      // A virtual machine copies an executable's constants to the device when it starts, and does not need the host's copy afterwards. No other
      // virtual machine can be started from the executable then.
      .def(("romou." + kind + ".drop_constants").c_str(),
           [](tvm::ffi::Module executable) {
             if (std::string(executable->kind()) != "relax.VMExecutable") TVM_FFI_THROW(ValueError) << "a " << executable->kind() << " has no constants";
             auto* held = const_cast<tvm::runtime::vm::VMExecutable*>(static_cast<const tvm::runtime::vm::VMExecutable*>(executable.get()));
             std::vector<tvm::ffi::Any>().swap(held->constants);
#if defined(__GLIBC__)
             malloc_trim(0);
#endif
           })
      .def(("device_api." + kind + ".free_nd").c_str(), [](int, int device_id, String, void* data) {
        DeviceAPI<Runtime>::global()->FreeDataSpace(DLDevice{Runtime::kType, device_id}, data);
        return 0;
      });
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_DEVICE_API_H_
