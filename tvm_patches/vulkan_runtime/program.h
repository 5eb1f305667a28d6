// SPDX-License-Identifier: Apache-2.0
//
// A kernel on a device, compiled or loaded from disk.
#ifndef ROMOU_VULKAN_PROGRAM_H_
#define ROMOU_VULKAN_PROGRAM_H_

#include <memory>
#include <mutex>
#include <string>

#include "device.h"
#include "kernel.h"
#include "program_cache.h"

namespace romou::vulkan {

/// The SHA-256 of all that a compiled pipeline depends on; without SPIR-V it names the device and its driver.
std::string program_key(const Device& device, const std::string& spirv = {});

/// Made once, on any thread; thread-safe.
class Program {
 public:
  /// Compile the kernel, or load the program that a driver of this version made of the same SPIR-V. Raises RuntimeError as `Kernel` does.
  void build(Device& device, const KernelText& text, ProgramCache* cache);
  std::shared_ptr<const Kernel> kernel();
  /// Write the compiled program to the cache, once; false if there is nothing to write.
  bool keep(Device& device, ProgramCache& cache);

  bool is_from_cache = false;

 private:
  std::mutex mutex_;
  std::shared_ptr<const Kernel> kernel_;
  PipelineCache compiled_;  ///< the driver's result, until `keep`
  std::string key_;         ///< empty: not to be kept
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_PROGRAM_H_
