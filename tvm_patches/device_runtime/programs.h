// SPDX-License-Identifier: Apache-2.0
//
// All kernels of a library: compiled in one go, and kept on disk.
//
// A runtime's `Module` has `kKind`, `kernel_names()`, `key_of(device, name)`, `keep(device, name, cache)`, and `kernel_on(device, name, cache)`, which
// returns an object with `is_from_cache`. `program_key(device)` is the key of the device and its driver, and `default_program_folder()` is the folder
// for programs.
#ifndef ROMOU_DEVICE_RUNTIME_PROGRAMS_H_
#define ROMOU_DEVICE_RUNTIME_PROGRAMS_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "program_cache.h"

namespace romou {

/// Return the modules of a kind among a library and all its imports.
template <typename Module>
void collect(const tvm::ffi::Module& module, std::vector<Module*>& found) {
  if (std::string(module->kind()) == Module::kKind) found.push_back(static_cast<Module*>(const_cast<tvm::ffi::ModuleObj*>(module.get())));
  for (const tvm::ffi::Any& item : module->imports()) collect(item.cast<tvm::ffi::Module>(), found);
}

/// Do `work(module, kernel name)` for every kernel of a library, in a fixed order on one thread, or started in that order on several threads. The
/// first error in that order is raised when all kernels are done.
template <typename Module, typename Work>
void for_each_kernel(const tvm::ffi::Module& library, size_t threads, const Work& work) {
  std::vector<Module*> modules;
  collect(library, modules);
  std::vector<std::pair<Module*, std::string>> kernels;
  for (Module* module : modules) {
    for (std::string& name : module->kernel_names()) kernels.emplace_back(module, std::move(name));
  }
  std::vector<std::exception_ptr> errors(kernels.size());
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < kernels.size(); i = next++) {
      try {
        work(*kernels[i].first, kernels[i].second);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(threads, kernels.size()); ++i) others.emplace_back(run);
  run();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline tvm::ffi::String report(const std::chrono::steady_clock::time_point& start, ProgramCache& cache, std::initializer_list<std::pair<const char*, int64_t>> counts) {
  tvm::ffi::json::Object object;
  for (const auto& [name, count] : counts) object.Set(name, count);
  object.Set("seconds", seconds_since(start));
  tvm::ffi::json::Array notes;
  for (const std::string& line : cache.take_notes()) notes.push_back(tvm::ffi::String(line));
  object.Set("notes", notes);
  return tvm::ffi::json::Stringify(object);
}

/// Compile every kernel for a device now.
template <typename Module, typename Device>
void compile_kernels(const tvm::ffi::Module& library, Device& device) {
  for_each_kernel<Module>(library, 1, [&](Module& module, const std::string& name) { module.kernel_on(device, name); });
}

/// Return JSON: the number of kernels of a library that are not in `folder`, and the number of kernels among them that a process crashed on.
template <typename Module, typename Device>
tvm::ffi::String missing_kernels(const tvm::ffi::Module& library, Device& device, const tvm::ffi::String& folder) {
  const ProgramCache cache(std::string(folder), program_key(device), true);
  int64_t missing = 0, doubtful = 0;
  for_each_kernel<Module>(library, 1, [&](Module& module, const std::string& name) {
    const std::string key = module.key_of(device, name);
    missing += cache.has(key) ? 0 : 1;
    doubtful += cache.is_doubtful(key) ? 1 : 0;
  });
  tvm::ffi::json::Object found;
  found.Set("missing", missing);
  found.Set("doubtful", doubtful);
  return tvm::ffi::json::Stringify(found);
}

/// Return the modules of a library in the form that another process loads (ffi.Module.load_from_bytes.KIND).
template <typename Module>
tvm::ffi::Array<tvm::ffi::Bytes> module_bytes(const tvm::ffi::Module& library) {
  std::vector<Module*> modules;
  collect(library, modules);
  tvm::ffi::Array<tvm::ffi::Bytes> found;
  for (const Module* module : modules) found.push_back(module->SaveToBytes());
  return found;
}

/// Compile every kernel of a library for a device now, or load it from the programs kept in `folder` (empty: nothing is kept), on `threads` threads
/// (0: one for each core). Return a report in JSON.
template <typename Module, typename Device>
tvm::ffi::String prepare_kernels(const tvm::ffi::Module& library, Device& device, const tvm::ffi::String& folder, int64_t threads) {
  const auto start = std::chrono::steady_clock::now();
  ProgramCache cache(std::string(folder), program_key(device));
  std::atomic<int64_t> cached{0}, compiled{0};
  const size_t width = threads > 0 ? static_cast<size_t>(threads) : std::max(1u, std::thread::hardware_concurrency());
  for_each_kernel<Module>(library, width, [&](Module& module, const std::string& name) {
    (module.kernel_on(device, name, &cache).is_from_cache ? cached : compiled) += 1;
  });
  if (cached != 0) cache.trust();
  return report(start, cache, {{"cached", cached.load()}, {"compiled", compiled.load()}});
}

/// Write the programs that `prepare` compiled to `folder`, after the first run, because some drivers compile no earlier. Return a report in JSON.
template <typename Module, typename Device>
tvm::ffi::String keep_kernels(const tvm::ffi::Module& library, Device& device, const tvm::ffi::String& folder) {
  const auto start = std::chrono::steady_clock::now();
  ProgramCache cache(std::string(folder), program_key(device));
  int64_t stored = 0;
  for_each_kernel<Module>(library, 1, [&](Module& module, const std::string& name) {
    stored += module.keep(device, name, cache) ? 1 : 0;
  });
  // If the limit is 0, the user chose this folder instead of the default one, and it is not trimmed.
  if (const uint64_t limit = program_cache_limit(); stored != 0 && limit != 0) cache.trim(limit);
  return report(start, cache, {{"stored", stored}});
}

/// Register the functions that Python calls on a kind's modules: "romou.KIND.compile" and so on, for the devices of a `Table`.
template <typename Module, typename Table>
void register_programs() {
  using Library = tvm::ffi::Module;
  using tvm::ffi::String;
  const std::string prefix = std::string("romou.") + Module::kKind + ".";
  tvm::ffi::reflection::GlobalDef()
      .def(("ffi.Module.load_from_bytes." + std::string(Module::kKind)).c_str(), Module::LoadFromBytes)
      // Drivers keep compiled programs on disk. A kernel that a worker process compiled here loads at once in the process that runs it.
      .def((prefix + "compile").c_str(), [](const Library& library, int device) { compile_kernels<Module>(library, Table::global().at(device)); })
      .def((prefix + "program_folder").c_str(), [] { return String(default_program_folder()); })
      .def((prefix + "missing").c_str(),
           [](const Library& library, int device, const String& folder) { return missing_kernels<Module>(library, Table::global().at(device), folder); })
      .def((prefix + "module_bytes").c_str(), module_bytes<Module>)
      .def((prefix + "prepare").c_str(),
           [](const Library& library, int device, const String& folder, int64_t threads) {
             return prepare_kernels<Module>(library, Table::global().at(device), folder, threads);
           })
      .def((prefix + "keep").c_str(), [](const Library& library, int device, const String& folder) {
        return keep_kernels<Module>(library, Table::global().at(device), folder);
      });
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_PROGRAMS_H_
