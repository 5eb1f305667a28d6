// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "statistics.h"

namespace romou::vulkan {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::String;

constexpr uint32_t kMagic = 0x07230203, kOpCapability = 17, kCooperativeMatrix = 6022;
// Operations on values of all work-items of a subgroup.
constexpr uint32_t kVote = 62, kArithmetic = 63, kShuffle = 65;
constexpr size_t kHeaderWords = 5;

template <typename T>
T field(const String& kernel, const Map<String, Any>& entry, const char* name) {
  const auto found = entry.Get(String(name));
  if (!found.has_value()) TVM_FFI_THROW(ValueError) << "kernel " << kernel << " has no field '" << name << "'";
  return found.value().template cast<T>();
}

std::vector<uint32_t> words_of(const KernelText& text) {
  std::vector<uint32_t> words(text.spirv.size() / 4);
  std::memcpy(words.data(), text.spirv.data(), words.size() * 4);
  if (text.spirv.size() % 4 != 0 || words.size() < kHeaderWords || words[0] != kMagic) {
    TVM_FFI_THROW(ValueError) << "kernel " << text.info->name << " is no SPIR-V module (" << text.spirv.size() << " bytes)";
  }
  return words;
}

std::vector<uint32_t> capabilities_of(const std::vector<uint32_t>& words) {
  std::vector<uint32_t> found;
  for (size_t at = kHeaderWords; at + 1 < words.size() && (words[at] & 0xffff) == kOpCapability; at += 2) found.push_back(words[at + 1]);
  return found;
}

/// Return the name of a subgroup operation that the device lacks in compute shaders. Null for any other capability.
const char* missing_of_subgroups(const Device& device, uint32_t capability) {
  const auto unless = [&](VkSubgroupFeatureFlags wanted, const char* name) { return device.facts().has_subgroup(wanted) ? nullptr : name; };
  if (capability == kVote) return unless(VK_SUBGROUP_FEATURE_VOTE_BIT, "votes of subgroups (SPIR-V capability GroupNonUniformVote)");
  if (capability == kArithmetic) return unless(VK_SUBGROUP_FEATURE_ARITHMETIC_BIT, "sums of subgroups (SPIR-V capability GroupNonUniformArithmetic)");
  if (capability == kShuffle) return unless(VK_SUBGROUP_FEATURE_SHUFFLE_BIT, "shuffles of subgroups (SPIR-V capability GroupNonUniformShuffle)");
  return nullptr;
}

/// Raise RuntimeError for a capability that the device lacks, because a driver would crash or compute garbage.
void require_capabilities(const Device& device, const std::string& kernel, const std::vector<uint32_t>& capabilities) {
  for (const uint32_t capability : capabilities) {
    const char* missing = device.features().missing(capability);
    if (missing == nullptr) missing = missing_of_subgroups(device, capability);
    if (missing != nullptr) TVM_FFI_THROW(RuntimeError) << "kernel " << kernel << " needs " << missing << ", which " << device.label() << " has not";
  }
}

Argument parse(const std::string& kernel, const std::string& text) {
  std::istringstream parts(text);
  std::string kind, access, type;
  std::getline(parts, kind, ':');
  std::getline(parts, access, ':');
  std::getline(parts, type, ':');
  if (kind == "scalar" && !access.empty()) return {Argument::Kind::kScalar};
  const uint8_t bits = access == "r" ? kRead : access == "w" ? kWrite : access == "rw" ? kRead | kWrite : 0;
  if (kind == "buffer" && bits != 0 && type.empty()) return {Argument::Kind::kBuffer, bits};
  const size_t texel_bytes = type == "float32" ? 16 : type == "float16" ? 8 : 0;
  if (kind == "image" && (bits == kRead || bits == kWrite) && texel_bytes != 0) return {Argument::Kind::kImage, bits, texel_bytes};
  TVM_FFI_THROW(ValueError) << "kernel " << kernel << " has an unknown argument '" << text
                            << "'; known are buffer:ACCESS (r, w, rw), image:ACCESS:TYPE (r, w; float32, float16) and scalar:TYPE";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

VkDescriptorType Argument::descriptor() const {
  if (kind == Kind::kBuffer) return VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
  return access & kWrite ? VK_DESCRIPTOR_TYPE_STORAGE_IMAGE : VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE;
}

KernelText KernelText::of(const String& name, const Map<String, Any>& entry) {
  Array<DLDataType> types;
  for (const String& type : field<Array<String>>(name, entry, "types")) types.push_back(tvm::ffi::StringToDLDataType(std::string(type)));
  tvm::runtime::FunctionInfo info(name, types, field<Array<String>>(name, entry, "launch"), {});
  KernelText text{info,
                  field<tvm::ffi::Bytes>(name, entry, "spirv"),
                  field<Array<String>>(name, entry, "args"),
                  field<Array<int64_t>>(name, entry, "push_offsets"),
                  field<Array<int64_t>>(name, entry, "local_size"),
                  field<int64_t>(name, entry, "shared_bytes")};
  words_of(text);
  text.parsed_arguments();
  return text;
}

std::vector<Argument> KernelText::parsed_arguments() const {
  const std::string name = info->name;
  std::vector<Argument> parsed;
  size_t scalars = 0;
  for (const String& argument : arguments) {
    parsed.push_back(parse(name, std::string(argument)));
    scalars += parsed.back().is_binding() ? 0 : 1;
  }
  if (parsed.size() != info->arg_types.size() || scalars != push_offsets.size() || local_size.size() != 3) {
    TVM_FFI_THROW(ValueError) << "kernel " << name << " has " << parsed.size() << " args of " << info->arg_types.size() << " types, " << scalars
                              << " scalars at " << push_offsets.size() << " push_offsets, and a local_size of " << local_size.size() << " numbers";
  }
  for (size_t i = 0; i < parsed.size(); ++i) {
    if (parsed[i].is_binding() != (info->arg_types[i].code == kDLOpaqueHandle)) {
      TVM_FFI_THROW(ValueError) << "argument " << i << " of kernel " << name << " is '" << arguments[i] << "' and has the type "
                                << tvm::ffi::DLDataTypeToString(info->arg_types[i]);
    }
  }
  return parsed;
}

Kernel::Kernel(Device& device, const KernelText& text, VkPipelineCache cache) : name_(text.info->name), arguments_(text.parsed_arguments()) {
  const std::vector<uint32_t> words = words_of(text);
  size_t scalar = 0;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].is_binding()) continue;
    const DLDataType type = text.info->arg_types[i];
    const auto offset = static_cast<uint32_t>(text.push_offsets[scalar++]);
    push_offsets_.push_back(offset);
    push_bytes_ = std::max<uint32_t>(push_bytes_, (offset + (type.bits * type.lanes + 7) / 8 + 3) / 4 * 4);
  }
  for (int i = 0; i < 3; ++i) local_size_[i] = static_cast<uint32_t>(text.local_size[i]);
  require_limits(device, text);
  const std::vector<uint32_t> capabilities = capabilities_of(words);
  require_capabilities(device, name_, capabilities);
  create_layouts(device);
  create_pipeline(device, words, capabilities, cache);
  statistics().live_kernels += 1;
}

void Kernel::create_layouts(Device& device) {
  const DeviceFunctions& vk = device.vk();
  std::vector<VkDescriptorSetLayoutBinding> bindings;
  for (const Argument& argument : arguments_) {
    if (argument.is_binding()) {
      bindings.push_back({static_cast<uint32_t>(bindings.size()), argument.descriptor(), 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr});
    }
  }
  VkDescriptorSetLayoutCreateInfo set{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  if (vk.vkCmdPushDescriptorSetKHR != nullptr) set.flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR;
  set.bindingCount = static_cast<uint32_t>(bindings.size());
  set.pBindings = bindings.data();
  VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
  device.check(vk.vkCreateDescriptorSetLayout(device.handle(), &set, nullptr, &set_layout), "vkCreateDescriptorSetLayout", name_);
  set_layout_ = DescriptorSetLayout(device, set_layout);

  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes_};
  VkPipelineLayoutCreateInfo layout{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, nullptr, 0, 1, &set_layout, push_bytes_ == 0 ? 0u : 1u, &range};
  VkPipelineLayout pipeline_layout = VK_NULL_HANDLE;
  device.check(vk.vkCreatePipelineLayout(device.handle(), &layout, nullptr, &pipeline_layout), "vkCreatePipelineLayout", name_);
  layout_ = PipelineLayout(device, pipeline_layout);
}

void Kernel::create_pipeline(Device& device, const std::vector<uint32_t>& words, const std::vector<uint32_t>& capabilities, VkPipelineCache cache) {
  const DeviceFunctions& vk = device.vk();
  const VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, nullptr, 0, words.size() * 4, words.data()};
  VkShaderModule shader = VK_NULL_HANDLE;
  device.check(vk.vkCreateShaderModule(device.handle(), &code, nullptr, &shader), "vkCreateShaderModule", name_);
  const ShaderModule owned(device, shader);
  // Constant 0 of generated kernels: whether reads outside of an image give zeros. Kernels then need no guards. Constant 1 of handwritten kernels:
  // the width of their work groups.
  const uint32_t values[] = {device.features().has_robust_image_access(), local_size_[0]};
  const VkSpecializationMapEntry entries[] = {{0, 0, sizeof(uint32_t)}, {1, sizeof(uint32_t), sizeof(uint32_t)}};
  const VkSpecializationInfo constants{2, entries, sizeof(values), values};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, nullptr, 0, VK_SHADER_STAGE_COMPUTE_BIT, shader, "main", &constants};
  // The work-items of a subgroup hold a matrix or a sum together, so subgroups must be full and of the kernel's size.
  const auto needs = [&](uint32_t capability) { return std::find(capabilities.begin(), capabilities.end(), capability) != capabilities.end(); };
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  subgroup.requiredSubgroupSize = needs(kCooperativeMatrix) ? kMatrixSubgroup : device.facts().subgroup_size;
  if (needs(kCooperativeMatrix) || ((needs(kArithmetic) || needs(kShuffle)) && device.features().has_subgroup_sizes())) {
    info.stage.pNext = &subgroup;
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  info.layout = layout_.get();
  VkPipeline pipeline = VK_NULL_HANDLE;
  device.check(vk.vkCreateComputePipelines(device.handle(), cache, 1, &info, nullptr, &pipeline), "vkCreateComputePipelines", name_,
               "the driver does not compile it");
  pipeline_ = Pipeline(device, pipeline);
}

Kernel::~Kernel() {
  if (pipeline_) statistics().live_kernels -= 1;
}

/// Raise RuntimeError for the first limit of the device that the kernel exceeds.
void Kernel::require_limits(const Device& device, const KernelText& text) const {
  const VkPhysicalDeviceLimits& limits = device.facts().limits;
  const auto require = [&](uint64_t used, uint64_t limit, const char* what, const char* limit_name) {
    if (used > limit) {
      TVM_FFI_THROW(RuntimeError) << "kernel " << name_ << " needs " << used << " " << what << "; " << device.label() << " allows " << limit << " ("
                                  << limit_name << ")";
    }
  };
  uint64_t buffers = 0, read_images = 0, written_images = 0;
  for (const Argument& argument : arguments_) {
    if (argument.kind == Argument::Kind::kBuffer) buffers += 1;
    if (argument.kind == Argument::Kind::kImage) (argument.access & kWrite ? written_images : read_images) += 1;
  }
  require(buffers, limits.maxPerStageDescriptorStorageBuffers, "storage buffers", "maxPerStageDescriptorStorageBuffers");
  require(read_images, limits.maxPerStageDescriptorSampledImages, "images to read", "maxPerStageDescriptorSampledImages");
  require(written_images, limits.maxPerStageDescriptorStorageImages, "images to write", "maxPerStageDescriptorStorageImages");
  require(buffers + read_images + written_images, limits.maxPerStageResources, "buffers and images", "maxPerStageResources");
  require(push_bytes_, limits.maxPushConstantsSize, "bytes of scalars", "maxPushConstantsSize");
  require(static_cast<uint64_t>(text.shared_bytes), limits.maxComputeSharedMemorySize, "bytes of shared memory", "maxComputeSharedMemorySize");
  const uint64_t size = uint64_t{local_size_[0]} * local_size_[1] * local_size_[2];
  require(size, limits.maxComputeWorkGroupInvocations, "work-items in a work group", "maxComputeWorkGroupInvocations");
  for (int i = 0; i < 3; ++i) require(local_size_[i], limits.maxComputeWorkGroupSize[i], "work-items in one dimension of a work group", "maxComputeWorkGroupSize");
}

}  // namespace romou::vulkan
