// SPDX-License-Identifier: Apache-2.0
#include "device_features.h"

#include <algorithm>
#include <iterator>

namespace romou::vulkan {

namespace {

/// Return the name of a VkComponentTypeKHR.
std::string component_name(uint32_t type) {
  static constexpr const char* kNames[] = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"};
  return type < std::size(kNames) ? kNames[type] : "type" + std::to_string(type);
}

}  // namespace

Features::Features(VkPhysicalDevice device, uint32_t api_version, const std::vector<std::string>& extensions) {
  const auto has = [&](const char* name) { return std::find(extensions.begin(), extensions.end(), name) != extensions.end(); };
  // Query a structure if the device's version has it, or an extension adds it. `core` 0: no version has it.
  const auto ask = [&](auto& structure, const char* extension, uint32_t core) {
    const bool is_core = core != 0 && api_version >= core;
    if (!is_core && !has(extension)) return;
    if (!is_core) extensions_.push_back(extension);
    structure.pNext = base_.pNext;
    base_.pNext = &structure;
  };
  ask(storage16_, "VK_KHR_16bit_storage", VK_API_VERSION_1_1);
  ask(storage8_, "VK_KHR_8bit_storage", VK_API_VERSION_1_2);
  ask(float16_, "VK_KHR_shader_float16_int8", VK_API_VERSION_1_2);
  ask(memory_model_, "VK_KHR_vulkan_memory_model", VK_API_VERSION_1_2);
  ask(subgroup_types_, "VK_KHR_shader_subgroup_extended_types", VK_API_VERSION_1_2);
  ask(dot_product_, "VK_KHR_shader_integer_dot_product", VK_API_VERSION_1_3);
  ask(subgroup_size_, "VK_EXT_subgroup_size_control", VK_API_VERSION_1_3);
  ask(robustness_, "VK_EXT_robustness2", 0);
  ask(matrix_, "VK_KHR_cooperative_matrix", 0);
  if (has(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME)) {
    has_push_descriptors_ = true;
    extensions_.push_back(VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME);
  }
  instance().vkGetPhysicalDeviceFeatures2(device, &base_);
  // Enable only features that kernels use. The others cost time (checks of every buffer access) or have no use here.
  VkPhysicalDeviceFeatures used{};
  used.shaderInt64 = base_.features.shaderInt64;
  used.shaderInt16 = base_.features.shaderInt16;
  used.shaderFloat64 = base_.features.shaderFloat64;
  base_.features = used;
  robustness_.robustBufferAccess2 = robustness_.nullDescriptor = VK_FALSE;
  matrix_.cooperativeMatrixRobustBufferAccess = VK_FALSE;
  memory_model_.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
  VkPhysicalDeviceProperties2 asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &subgroup_sizes_};
  const bool has_sizes = subgroup_size_.subgroupSizeControl != 0 && subgroup_size_.computeFullSubgroups != 0;
  if (has_sizes) instance().vkGetPhysicalDeviceProperties2(device, &asked);
  asked.pNext = &dot_products_;
  if (has_dot_products()) instance().vkGetPhysicalDeviceProperties2(device, &asked);
  if (matrix_.cooperativeMatrix != 0) ask_for_matrices(device);
}

void Features::ask_for_matrices(VkPhysicalDevice device) {
  using Ask = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, CooperativeMatrixProperties*);
  const auto ask = reinterpret_cast<Ask>(instance().find(instance().handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
  uint32_t count = 0;
  if (ask == nullptr || ask(device, &count, nullptr) != VK_SUCCESS) return;
  std::vector<CooperativeMatrixProperties> found(count, CooperativeMatrixProperties{kCooperativeMatrixProperties, nullptr, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  if (ask(device, &count, found.data()) < VK_SUCCESS) return;
  constexpr uint32_t kSubgroupScope = 3;
  for (const CooperativeMatrixProperties& one : found) {
    if (one.scope != kSubgroupScope || one.saturates != 0 || one.c != one.result) continue;
    const std::string sides = std::to_string(one.rows) + "x" + std::to_string(one.columns) + "x" + std::to_string(one.depth);
    matrix_products_.push_back(sides + " " + component_name(one.a) + " " + component_name(one.b) + " " + component_name(one.c));
  }
  const VkPhysicalDeviceSubgroupSizeControlProperties& sizes = subgroup_sizes_;
  const bool has_size = has_subgroup_sizes() && sizes.minSubgroupSize <= kMatrixSubgroup && kMatrixSubgroup <= sizes.maxSubgroupSize;
  const bool has_product = std::find(matrix_products_.begin(), matrix_products_.end(), "16x16x16 float16 float16 float32") != matrix_products_.end();
  has_matrices_ = has_size && has_product && has_fp16_arithmetic() && memory_model_.vulkanMemoryModel != 0;
}

const char* Features::missing(uint32_t capability) const {
  // Numbers of the SPIR-V specification, section 3.31.
  switch (capability) {
    case 9:
      return float16_.shaderFloat16 != 0 ? nullptr : "arithmetic on float16 (SPIR-V capability Float16, VK_KHR_shader_float16_int8)";
    case 10:
      return base_.features.shaderFloat64 != 0 ? nullptr : "float64 (SPIR-V capability Float64)";
    case 11:
      return base_.features.shaderInt64 != 0 ? nullptr : "int64 (SPIR-V capability Int64)";
    case 22:
      return base_.features.shaderInt16 != 0 ? nullptr : "int16 (SPIR-V capability Int16)";
    case 39:
      return float16_.shaderInt8 != 0 ? nullptr : "int8 (SPIR-V capability Int8, VK_KHR_shader_float16_int8)";
    case 4433:
      return storage16_.storageBuffer16BitAccess != 0 ? nullptr : "16-bit values in buffers (SPIR-V capability StorageBuffer16BitAccess)";
    case 4448:
      return storage8_.storageBuffer8BitAccess != 0 ? nullptr : "8-bit values in buffers (SPIR-V capability StorageBuffer8BitAccess, VK_KHR_8bit_storage)";
    case 6018:
    case 6019:
      return has_dot_products() ? nullptr : "dot products of four bytes (SPIR-V capability DotProductInput4x8BitPacked, VK_KHR_shader_integer_dot_product)";
    case 6022:
      return has_matrices_ ? nullptr : "cooperative matrices of 16x16x16 float16 in subgroups of 32 (VK_KHR_cooperative_matrix)";
    default:
      return nullptr;
  }
}

}  // namespace romou::vulkan
