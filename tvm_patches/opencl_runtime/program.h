// SPDX-License-Identifier: Apache-2.0
//
// One kernel on one device: compiled, its arguments set, launched.
#ifndef ROMOU_OPENCL_PROGRAM_H_
#define ROMOU_OPENCL_PROGRAM_H_

#include <cstddef>
#include <mutex>
#include <string>

#include "cl_api.h"
#include "device.h"
#include "program_cache.h"

namespace romou::opencl {

/// A key of everything that the compiled program depends on: the device, its driver's version, options, the source. Without a name and a source
/// it stands for the device.
std::string program_key(const Device& device, const std::string& name = {}, const std::string& source = {});

/// The kernel object of one function on one device. Setting arguments and launching is one step under its lock: OpenCL keeps
/// arguments in the kernel object.
struct Kernel {
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Compile `source` and take the function `name` from it, by the binary that `cache` has of it if there is one. Raises RuntimeError with the
  /// build log and where the source was saved. Does nothing if that was done.
  void build(Device& device, const std::string& name, const std::string& source, ProgramCache* cache = nullptr);
  /// Give `cache` the binary of a program that was compiled from source with a cache; true if it was stored. Some drivers compile as late as
  /// the first launch: call it behind that.
  bool keep(const std::string& name, ProgramCache& cache);
  /// Take the function `name` from a program that lives longer.
  void create(Device& device, const std::string& name, cl_program built);
  /// Raises RuntimeError that names the kernel and the argument.
  void set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value);
  /// Put one launch on the held queue. Raises RuntimeError with the sizes and the limits of kernel and device.
  void enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local);

  std::mutex mutex;
  Program program;
  KernelObject handle;
  bool is_from_cache = false;

 private:
  /// Raises the error with which the compiler refused the program, or crashed.
  void refuse(Device& device, const std::string& name, const std::string& source, const std::string& log, const ProgramCache& cache);
  void compile(Device& device, const std::string& name, const std::string& source, ProgramCache* cache);
  bool load(Device& device, const std::string& name, const std::string& source, const std::string& binary, ProgramCache& cache);

  std::string key_;  ///< of the cache's future entry; empty if none is to be written
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_PROGRAM_H_
