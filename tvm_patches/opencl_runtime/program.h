// SPDX-License-Identifier: Apache-2.0
//
// One kernel on one device: compiled, its arguments set, launched.
#ifndef ROMOU_OPENCL_PROGRAM_H_
#define ROMOU_OPENCL_PROGRAM_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cl_api.h"
#include "device.h"
#include "program_cache.h"

namespace romou::opencl {

/// Return the key of everything that the compiled program depends on: the device, its driver's version, options, the source. Without a name and a
/// source, it is the key of the device.
std::string program_key(const Device& device, const std::string& name = {}, const std::string& source = {});

/// Return the sources behind each other, without functions that an earlier source defines in the same words.
std::string joined(const std::vector<std::string>& sources);
/// Compile a source of several kernels. Null if the driver refuses it.
std::shared_ptr<const Program> compile_together(Device& device, const std::string& source);

/// The kernel object of one function on one device. OpenCL keeps arguments in the kernel object, so setting arguments and launching happen under one
/// lock.
struct Kernel {
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Compile `source` and take the function `name` from it, or load the program's binary from `cache`. Raises RuntimeError with the build log and the
  /// path of the saved source. Does nothing if the kernel was built before.
  void build(Device& device, const std::string& name, const std::string& source, ProgramCache* cache = nullptr);
  /// Store the binary of a program that was compiled from source with a cache. Return whether it was stored. Call it after the first launch, because
  /// some drivers compile that late.
  bool keep(const std::string& name, ProgramCache& cache);
  /// Take the function `name` from a program that lives longer, or that `program` holds.
  void create(Device& device, const std::string& name, cl_program built);
  /// Set the arguments. The RuntimeError names the kernel and the argument.
  void set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value);
  /// Enqueue one launch on the held queue. Raises RuntimeError with the sizes and the limits of kernel and device.
  void enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local);

  std::mutex mutex;
  std::shared_ptr<const Program> program;  ///< shared by kernels that were compiled together
  KernelObject handle;
  bool is_from_cache = false;

 private:
  /// Raise the error of a compiler that refused the program or crashed.
  void refuse(Device& device, const std::string& name, const std::string& source, const std::string& log, const ProgramCache& cache);
  void compile(Device& device, const std::string& name, const std::string& source, ProgramCache* cache);
  bool load(Device& device, const std::string& name, const std::string& source, const std::string& binary, ProgramCache& cache);

  std::string key_;  ///< key of the entry that `keep` writes, or empty
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_PROGRAM_H_
