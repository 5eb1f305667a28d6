// SPDX-License-Identifier: Apache-2.0
//
// A module of Vulkan kernels: created by the code generator, saved into and loaded from a library, launched from host code.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/support/serializer.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "kernel.h"
#include "memory.h"
#include "program.h"
#include "programs.h"
#include "queue.h"
#include "recording.h"
#include "runtime/metadata.h"
#include "runtime/pack_args.h"
#include "runtime/thread_storage_scope.h"
#include "stream.h"

namespace romou::vulkan {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;

class VulkanModule final : public tvm::ffi::ModuleObj {
 public:
  VulkanModule(std::map<std::string, KernelText> texts, String source) : texts_(std::move(texts)), source_(std::move(source)) {}

  static constexpr const char* kKind = "vulkan";
  const char* kind() const final { return kKind; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable; }
  String InspectSource(const String&) const final { return source_; }

  Optional<Function> GetFunction(const String& name) final;

  Bytes SaveToBytes() const final {
    StringStream stream;
    stream.Write(std::string(source_));
    stream.Write(static_cast<uint64_t>(texts_.size()));
    for (const auto& [name, text] : texts_) {
      stream.Write(text.info);
      stream.Write(text.spirv);
      stream.Write(text.arguments);
      stream.Write(text.push_offsets);
      stream.Write(text.local_size);
      stream.Write(text.shared_bytes);
    }
    return Bytes(std::move(stream.content));
  }

  static tvm::ffi::Module LoadFromBytes(const Bytes& bytes) {
    StringStream stream{std::string(bytes.data(), bytes.size())};
    std::string source;
    uint64_t count = 0;
    std::map<std::string, KernelText> texts;
    bool is_complete = stream.Read(&source) && stream.Read(&count);
    for (uint64_t i = 0; is_complete && i < count; ++i) {
      tvm::runtime::FunctionInfo info;
      KernelText text{info};
      is_complete = stream.Read(&text.info) && stream.Read(&text.spirv) && stream.Read(&text.arguments) && stream.Read(&text.push_offsets) &&
                    stream.Read(&text.local_size) && stream.Read(&text.shared_bytes);
      if (is_complete) {
        text.parsed_arguments();
        texts.emplace(text.info->name, text);
      }
    }
    if (!is_complete) {
      TVM_FFI_THROW(ValueError) << "the Vulkan kernels in this library cannot be read (" << bytes.size()
                                << " bytes): it was cut off, or written by another version. Save the model again.";
    }
    return tvm::ffi::Module(tvm::ffi::make_object<VulkanModule>(std::move(texts), String(source)));
  }

  /// Return a kernel's pipeline on a device, made at its first launch there.
  Program& kernel_on(Device& device, const std::string& name, ProgramCache* cache = nullptr) {
    Program* program = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::unique_ptr<Program>& found = programs_[{device.index, name}];
      if (found == nullptr) found = std::make_unique<Program>();
      program = found.get();
    }
    // Other threads can compile other kernels meanwhile.
    program->build(device, texts_.at(name), cache);
    return *program;
  }

  /// Write a kernel that had to be compiled to the cache. False if it was loaded from there, or cannot be kept.
  bool keep(Device& device, const std::string& name, ProgramCache& cache) { return kernel_on(device, name).keep(device, cache); }

  /// Return the kernel's key in the cache.
  std::string key_of(const Device& device, const std::string& name) const {
    const KernelText& text = texts_.at(name);
    return program_key(device, std::string(text.spirv.data(), text.spirv.size()));
  }

  std::vector<std::string> kernel_names() const {
    std::vector<std::string> names;
    for (const auto& [name, text] : texts_) names.push_back(name);
    return names;
  }

 private:
  const std::map<std::string, KernelText> texts_;
  const String source_;
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::unique_ptr<Program>> programs_;
};

/// Launches one kernel. It holds the module, so that a function outlives the module's name.
class Launcher {
 public:
  Launcher(tvm::ffi::Module module, const KernelText& text)
      : module_(std::move(module)), name_(text.info->name), types_(text.info->arg_types), arguments_(text.parsed_arguments()) {
    config_.Init(types_.size(), text.info->launch_param_tags);
  }

  void operator()(PackedArgs args, Any*, void** values) const {
    std::vector<Memory*> bindings;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].is_binding()) bindings.push_back(checked(i, memory_of(*static_cast<void**>(values[i]))));
    }
    // A kernel without memory arguments runs on the device that the host code set.
    Device& device = bindings.empty() ? DeviceTable::global().at(Device::current()) : *bindings[0]->device;
    for (const Memory* memory : bindings) {
      if (memory->device != &device) {
        TVM_FFI_THROW(ValueError) << "kernel " << name_ << " is given memory of " << device.label() << " and of " << memory->device->label();
      }
    }
    const std::shared_ptr<const Kernel> kernel = static_cast<VulkanModule*>(const_cast<tvm::ffi::ModuleObj*>(module_.get()))->kernel_on(device, name_).kernel();
    std::vector<char> push_constants(kernel->push_bytes());
    size_t scalar = 0;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].is_binding()) continue;
      std::memcpy(push_constants.data() + kernel->push_offsets()[scalar++], values[i], (types_[i].bits * types_[i].lanes + 7) / 8);
    }
    const tvm::runtime::ThreadWorkLoad load = config_.Extract(args);
    std::array<uint32_t, 3> groups{};
    for (int i = 0; i < 3; ++i) {
      if (load.block_dim(i) != kernel->local_size()[i]) {
        TVM_FFI_THROW(ValueError) << "kernel " << name_ << " was compiled for " << kernel->local_size()[i] << " work-items in dimension " << i
                                  << " of a work group and is launched with " << load.block_dim(i);
      }
      groups[i] = static_cast<uint32_t>(load.grid_dim(i));
    }
    if (const auto recording = Recording::current()) return recording->dispatch(device, kernel, bindings, push_constants, groups);
    device.queue().record([&](Commands& commands) { commands.dispatch(kernel, bindings, push_constants, groups); });
  }

 private:
  Memory* checked(size_t i, Memory* memory) const {
    const Argument& argument = arguments_[i];
    const bool wants_image = argument.kind == Argument::Kind::kImage;
    if (memory->is_image != wants_image || (wants_image && memory->image.texel_bytes != argument.texel_bytes)) {
      TVM_FFI_THROW(ValueError) << "argument " << i << " of kernel " << name_ << " is to be "
                                << (wants_image ? "an image of texels of " + std::to_string(argument.texel_bytes) + " bytes" : std::string("a buffer"))
                                << " and is " << (memory->is_image ? "an image of " + memory->image.text() : std::string("a buffer"));
    }
    return memory;
  }

  tvm::ffi::Module module_;
  std::string name_;
  Array<DLDataType> types_;
  std::vector<Argument> arguments_;
  tvm::runtime::LaunchParamConfig config_;
};

Optional<Function> VulkanModule::GetFunction(const String& name) {
  const auto found = texts_.find(std::string(name));
  if (found == texts_.end()) return std::nullopt;
  return tvm::runtime::PackFuncVoidAddr(Launcher(tvm::ffi::GetRef<tvm::ffi::Module>(this), found->second), found->second.info->arg_types);
}

tvm::ffi::Module create(const Map<String, Map<String, Any>>& kernels, const String& source) {
  std::map<std::string, KernelText> texts;
  for (const auto& [name, entry] : kernels) texts.emplace(std::string(name), KernelText::of(name, entry));
  return tvm::ffi::Module(tvm::ffi::make_object<VulkanModule>(std::move(texts), source));
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.vulkan.module", create);
  register_programs<VulkanModule, DeviceTable>();
}

}  // namespace romou::vulkan
