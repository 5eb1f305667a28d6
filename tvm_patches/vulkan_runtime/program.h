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

/// Return the SHA-256 of everything that a compiled pipeline depends on. Without SPIR-V it is the key of the device and its driver.
std::string program_key(const Device& device, const std::string& spirv = {});

/// A kernel's pipeline, made once, on any thread. Thread-safe.
class Program {
 public:
  /// Compile the kernel, or load the program that this version of the driver compiled from the same SPIR-V. Raises RuntimeError as `Kernel` does.
  void build(Device& device, const KernelText& text, ProgramCache* cache);
  std::shared_ptr<const Kernel> kernel();
  /// Write the compiled program to the cache, once. False if there is nothing to write.
  bool keep(Device& device, ProgramCache& cache);

  bool is_from_cache = false;

 private:
  std::mutex mutex_;
  std::shared_ptr<const Kernel> kernel_;
  PipelineCache compiled_;  ///< the driver's result, until `keep`
  std::string key_;         ///< key of the entry that `keep` writes, or empty
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_PROGRAM_H_
