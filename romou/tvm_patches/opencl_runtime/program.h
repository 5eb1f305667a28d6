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

namespace romou::opencl {

/// The kernel object of one function on one device. Setting arguments and launching is one step under its lock: OpenCL keeps
/// arguments in the kernel object.
struct Kernel {
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Compile `source` and take the function `name` from it. Raises RuntimeError with the build log and where the source was saved.
  void build(Device& device, const std::string& name, const std::string& source);
  /// Take the function `name` from a program that lives longer.
  void create(Device& device, const std::string& name, cl_program built);
  /// Raises RuntimeError that names the kernel and the argument.
  void set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value);
  /// Put one launch on the held queue. Raises RuntimeError with the sizes and what kernel and device allow.
  void enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local);

  std::mutex mutex;
  Program program;
  KernelObject handle;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_PROGRAM_H_
