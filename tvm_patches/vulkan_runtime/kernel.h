// SPDX-License-Identifier: Apache-2.0
//
// One kernel: the code generator's facts about it, and its pipeline on a device.
#ifndef ROMOU_VULKAN_KERNEL_H_
#define ROMOU_VULKAN_KERNEL_H_

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <array>
#include <string>
#include <vector>

#include "device.h"
#include "runtime/metadata.h"

namespace romou::vulkan {

enum Access : uint8_t { kRead = 1, kWrite = 2 };

struct Argument {
  enum class Kind { kBuffer, kImage, kScalar };
  Kind kind;
  uint8_t access = 0;        ///< of buffers and images
  size_t texel_bytes = 0;    ///< of images
  bool is_binding() const { return kind != Kind::kScalar; }
  VkDescriptorType descriptor() const;
};

/// A kernel from the code generator, saved with the module.
struct KernelText {
  tvm::runtime::FunctionInfo info;
  tvm::ffi::Bytes spirv;
  tvm::ffi::Array<tvm::ffi::String> arguments;
  tvm::ffi::Array<int64_t> push_offsets, local_size;
  int64_t shared_bytes = 0;

  /// Read an entry of `romou.vulkan.module`. The ValueError names the kernel and the problem.
  static KernelText of(const tvm::ffi::String& name, const tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>& entry);
  /// Check that numbers and lists fit together. Raises ValueError.
  std::vector<Argument> parsed_arguments() const;
};

/// A pipeline on one device. Immutable.
class Kernel {
 public:
  /// Create the pipeline. The RuntimeError names the kernel and the device's limit or the driver's code.
  Kernel(Device& device, const KernelText& text, VkPipelineCache cache);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  const std::vector<uint32_t>& push_offsets() const { return push_offsets_; }
  uint32_t push_bytes() const { return push_bytes_; }
  const std::array<uint32_t, 3>& local_size() const { return local_size_; }
  VkPipeline pipeline() const { return pipeline_.get(); }
  VkPipelineLayout layout() const { return layout_.get(); }
  VkDescriptorSetLayout set_layout() const { return set_layout_.get(); }

 private:
  void require_limits(const Device& device, const KernelText& text) const;
  void create_layouts(Device& device);
  void create_pipeline(Device& device, const std::vector<uint32_t>& words, const std::vector<uint32_t>& capabilities, VkPipelineCache cache);

  std::string name_;
  std::vector<Argument> arguments_;
  std::vector<uint32_t> push_offsets_;
  uint32_t push_bytes_ = 0;
  std::array<uint32_t, 3> local_size_{1, 1, 1};
  DescriptorSetLayout set_layout_;
  PipelineLayout layout_;
  Pipeline pipeline_;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_KERNEL_H_
