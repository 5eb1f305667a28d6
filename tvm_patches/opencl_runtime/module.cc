// SPDX-License-Identifier: Apache-2.0
//
// A module of OpenCL kernels: created by TVM's code generator, saved into and loaded from a library, launched from host code.
//
// Every kernel is a separate program, compiled at its first launch on a device or, for a model, all in one go before. So a failed build
// names its kernel, the driver compiles no source twice, and several threads may compile. Only if a program costs a driver much more than a kernel
// and nothing is kept on disk, all kernels of a module are one program.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/support/serializer.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "command_buffer.h"
#include "device.h"
#include "memory.h"
#include "program.h"
#include "programs.h"
#include "runtime/metadata.h"
#include "runtime/pack_args.h"
#include "runtime/thread_storage_scope.h"
#include "stream.h"

namespace romou::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;
using tvm::runtime::FunctionInfo;

constexpr const char* kMarker = "// Function: ";

/// Split a source by kernel name. TVM puts a marker before each kernel and, after it, declarations of all kernels. The declarations are left out,
/// because the text would grow with the square of their number.
std::map<std::string, std::string> split_kernels(const std::string& source) {
  std::map<std::string, std::string> parts;
  std::string name;
  std::istringstream lines(source);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(kMarker, 0) == 0) {
      name = line.substr(std::string(kMarker).size());
      continue;
    }
    const bool is_declaration = line.rfind("__kernel ", 0) == 0 && line.size() > 2 && line.compare(line.size() - 2, 2, ");") == 0;
    if (!is_declaration) parts[name] += line + "\n";
  }
  // Text before the first marker (definitions added by hand) belongs to all kernels.
  if (auto head = parts.find(""); head != parts.end()) {
    for (auto& [kernel, text] : parts) {
      if (!kernel.empty()) text.insert(0, head->second);
    }
  }
  return parts;
}

/// Return the source with a sampler in every read of an image. The macros that TVM's code generator writes drop the kernel's sampler unless the
/// device has exactly version 2.0 or 3.0. Without one a read outside the image is undefined, but padding without branches relies on zeros there.
/// OpenCL has samplers since 1.0.
std::string with_samplers(const std::string& source) {
  const std::string begin = "#ifdef __OPENCL_VERSION__\n#if __OPENCL_VERSION__ == CL_VERSION_2_0 ||", end = "#endif\n#endif\n";
  const std::string macros =
      "#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)\n"
      "#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)\n";
  std::string result = source;
  for (size_t at = 0; (at = result.find(begin, at)) != std::string::npos;) {
    const size_t after = result.find(end, at);
    if (after == std::string::npos) break;
    result.replace(at, after + end.size() - at, macros);
  }
  return result;
}

class OpenCLModule final : public tvm::ffi::ModuleObj {
 public:
  OpenCLModule(std::string source, Map<String, FunctionInfo> functions, Map<String, String> texts)
      : source_(std::move(source)), functions_(std::move(functions)), texts_(std::move(texts)), parts_(split_kernels(source_)) {}

  static constexpr const char* kKind = "opencl";
  const char* kind() const final { return kKind; }
  int GetPropertyMask() const final { return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable; }

  Optional<Function> GetFunction(const String& name) final;

  Bytes SaveToBytes() const final {
    StringStream stream;
    stream.Write(source_);
    stream.Write(static_cast<uint64_t>(functions_.size()));
    for (const auto& [name, info] : functions_) {
      stream.Write(std::string(name));
      stream.Write(info);
    }
    return Bytes(std::move(stream.content));
  }

  static tvm::ffi::Module LoadFromBytes(const Bytes& bytes) {
    StringStream stream{std::string(bytes.data(), bytes.size())};
    std::string source, name;
    uint64_t count = 0;
    Map<String, FunctionInfo> functions;
    bool is_complete = stream.Read(&source) && stream.Read(&count);
    for (uint64_t i = 0; is_complete && i < count; ++i) {
      FunctionInfo info;
      is_complete = stream.Read(&name) && stream.Read(&info);
      if (is_complete) functions.Set(name, info);
    }
    if (!is_complete) {
      TVM_FFI_THROW(ValueError) << "the OpenCL kernels in this library cannot be read (" << bytes.size()
                                << " bytes): it was cut off, or written by another version. Save the model again.";
    }
    Map<String, String> texts;
    texts.Set("cl", source);
    return tvm::ffi::Module(tvm::ffi::make_object<OpenCLModule>(std::move(source), std::move(functions), std::move(texts)));
  }

  String InspectSource(const String& format) const final {
    if (auto text = texts_.Get(format); text.has_value()) return text.value();
    return String(source_);
  }

  Kernel& kernel_on(Device& device, const std::string& name, ProgramCache* cache = nullptr);
  /// Compile the kernels that are not in the cache as one program, without kernels on which a process ended. If the driver refuses the program,
  /// `kernel_on` compiles each kernel, and names the one at fault. Return false if a process ended on this program. Its mark is then removed, and each
  /// kernel is compiled and marked by itself.
  bool compile_as_one(Device& device, ProgramCache& cache);
  /// Write a kernel that had to be compiled to the cache. False if it was loaded from there, or cannot be kept.
  bool keep(Device& device, const std::string& name, ProgramCache& cache) {
    Kernel& kernel = kernel_on(device, name);
    std::lock_guard<std::mutex> lock(kernel.mutex);
    return kernel.keep(name, cache);
  }

  /// Return the kernel's key in the cache.
  std::string key_of(const Device& device, const std::string& name) const { return program_key(device, name, source_of(name)); }

  /// Return the names of all kernels, always in the same order.
  std::vector<std::string> kernel_names() const {
    std::vector<std::string> names;
    for (const auto& [name, info] : functions_) names.push_back(info->name);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  // A source without markers, written by hand, has the empty name.
  const std::string& source_of(const std::string& name) const {
    const auto part = parts_.find(name);
    return part != parts_.end() ? part->second : source_;
  }

  Kernel& slot_of(const Device& device, const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Kernel>& found = kernels_[{device.index, name}];
    if (found == nullptr) found = std::make_unique<Kernel>();
    return *found;
  }

  std::string source_;
  Map<String, FunctionInfo> functions_;
  Map<String, String> texts_;
  std::map<std::string, std::string> parts_;
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::unique_ptr<Kernel>> kernels_;
};

/// Launches one kernel. It holds the module, so that a function outlives the module's name.
class Launcher {
 public:
  Launcher(tvm::ffi::Module module, const FunctionInfo& info)
      : module_(std::move(module)), name_(info->name), types_(info->arg_types) {
    config_.Init(types_.size(), info->launch_param_tags);
  }

  void operator()(PackedArgs args, Any*, void** values) const {
    Device& device = DeviceTable::global().at(device_of(values));
    Kernel& shared = static_cast<OpenCLModule*>(const_cast<tvm::ffi::ModuleObj*>(module_.get()))->kernel_on(device, name_);
    const std::shared_ptr<CommandBuffer> recorded = CommandBuffer::current();
    Kernel& kernel = recorded == nullptr ? shared : recorded->own(shared, name_);
    const tvm::runtime::ThreadWorkLoad load = config_.Extract(args);
    const cl_uint dimensions = static_cast<cl_uint>(config_.work_dim());
    size_t global[3], local[3];
    for (cl_uint i = 0; i < dimensions; ++i) {
      local[i] = load.block_dim(i);
      global[i] = load.grid_dim(i) * local[i];
    }
    std::lock_guard<std::mutex> lock(kernel.mutex);
    for (size_t i = 0; i < types_.size(); ++i) set_argument(device, kernel, i, values[i], recorded.get());
    if (recorded != nullptr) return recorded->add(device, kernel, name_, dimensions, global, local);
    Device::Queue queue = device.hold_queue();
    kernel.enqueue(device, queue, name_, dimensions, global, local);
  }

 private:
  // Memory has its device. A kernel without memory arguments runs on the device that the host code set.
  int device_of(void** values) const {
    for (size_t i = 0; i < types_.size(); ++i) {
      if (types_[i].code == kDLOpaqueHandle) return memory_of(*static_cast<void**>(values[i]))->device->index;
    }
    return Device::current();
  }

  void set_argument(Device& device, Kernel& kernel, size_t i, void* value, CommandBuffer* recorded) const {
    cl_mem handle = nullptr;
    const void* pointer = value;
    size_t bytes = (types_[i].bits * types_[i].lanes + 7) / 8;
    if (types_[i].code == kDLOpaqueHandle) {
      Memory* memory = memory_of(*static_cast<void**>(value));
      if (recorded != nullptr) recorded->keep(memory);
      handle = memory->handle;
      pointer = &handle;
      bytes = sizeof(handle);
    }
    kernel.set_argument(device, name_, i, bytes, pointer);
  }

  tvm::ffi::Module module_;
  std::string name_;
  Array<DLDataType> types_;
  tvm::runtime::LaunchParamConfig config_;
};

Optional<Function> OpenCLModule::GetFunction(const String& name) {
  auto info = functions_.Get(name);
  if (!info.has_value()) return std::nullopt;
  Launcher launcher(tvm::ffi::GetRef<tvm::ffi::Module>(this), info.value());
  return tvm::runtime::PackFuncVoidAddr(launcher, info.value()->arg_types);
}

Kernel& OpenCLModule::kernel_on(Device& device, const std::string& name, ProgramCache* cache) {
  Kernel& kernel = slot_of(device, name);
  // Held during compilation. Other threads can compile other kernels meanwhile.
  std::lock_guard<std::mutex> lock(kernel.mutex);
  kernel.build(device, name, source_of(name), cache);
  return kernel;
}

bool OpenCLModule::compile_as_one(Device& device, ProgramCache& cache) {
  std::vector<std::string> names, sources;
  for (const auto& [name, source] : parts_) {
    if (name.empty()) continue;
    if (const std::string key = key_of(device, name); cache.has(key) || cache.is_doubtful(key)) continue;
    names.push_back(name);
    sources.push_back(source);
  }
  if (names.size() < 2) return true;
  const std::string source = joined(sources), key = program_key(device, "", source);
  if (cache.is_doubtful(key)) {
    cache.trust_again(key);
    return false;
  }
  std::optional<ProgramCache::Attempt> attempt;
  if (cache.is_usable()) attempt.emplace(cache, key, ProgramCache::Work::kCompile);
  const auto program = compile_together(device, source);
  for (const std::string& name : names) {
    Kernel& kernel = slot_of(device, name);
    std::lock_guard<std::mutex> lock(kernel.mutex);
    if (!kernel.program) kernel.program = program;
  }
  return true;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def(
      "ffi.Module.create.opencl", [](const Bytes& data, const String&, const Map<String, FunctionInfo>& functions, const Map<String, String>& texts) {
        Map<String, String> completed;
        for (const auto& [format, text] : texts) completed.Set(format, with_samplers(std::string(text)));
        return tvm::ffi::Module(tvm::ffi::make_object<OpenCLModule>(with_samplers(std::string(data.data(), data.size())), functions, completed));
      });
  tvm::ffi::reflection::GlobalDef().def("romou.opencl.compile_as_one", [](const tvm::ffi::Module& library, int index, const String& folder) {
    Device& device = DeviceTable::global().at(index);
    ProgramCache cache(std::string(folder), program_key(device));
    std::vector<OpenCLModule*> modules;
    collect(library, modules);
    bool is_done = true;
    for (OpenCLModule* module : modules) is_done = module->compile_as_one(device, cache) && is_done;
    return is_done;
  });
  register_programs<OpenCLModule, DeviceTable>();
}

}  // namespace romou::opencl
