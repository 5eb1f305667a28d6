// SPDX-License-Identifier: Apache-2.0
//
// Abilities beyond Vulkan 1.1 that kernels may need: queried, and turned on if a device has them.
#ifndef ROMOU_VULKAN_DEVICE_FEATURES_H_
#define ROMOU_VULKAN_DEVICE_FEATURES_H_

#include <string>
#include <vector>

#include "loader.h"

namespace romou::vulkan {

/// VK_KHR_cooperative_matrix is younger than the header in third_party.
struct CooperativeMatrixFeatures {
  VkStructureType sType;
  void* pNext;
  VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
};
struct CooperativeMatrixProperties {
  VkStructureType sType;
  void* pNext;
  uint32_t rows, columns, depth, a, b, c, result;
  VkBool32 saturates;
  uint32_t scope;
};
constexpr auto kCooperativeMatrixFeatures = static_cast<VkStructureType>(1000506000);
constexpr auto kCooperativeMatrixProperties = static_cast<VkStructureType>(1000506001);
/// Work-items of a subgroup in kernels with cooperative matrices.
constexpr uint32_t kMatrixSubgroup = 32;

/// Features as Vulkan reads and writes them: a chain of structures. Not to be copied, because they point to each other.
class Features {
 public:
  /// Query a device, which has `extensions`.
  Features(VkPhysicalDevice device, uint32_t api_version, const std::vector<std::string>& extensions);
  Features(const Features&) = delete;
  Features& operator=(const Features&) = delete;

  /// The chain for vkCreateDevice.
  const void* chain() const { return &base_; }
  /// Extensions to turn on, because features come from them.
  const std::vector<const char*>& extensions() const { return extensions_; }

  bool has_8bit_storage() const { return storage8_.storageBuffer8BitAccess != 0; }
  bool has_float64() const { return base_.features.shaderFloat64 != 0; }
  bool has_int64() const { return base_.features.shaderInt64 != 0; }
  bool has_dot_products() const { return dot_product_.shaderIntegerDotProduct != 0; }
  /// Return the bytes whose dot products with four signed bytes are faster than products and sums: "signed", "mixed" for unsigned ones too, or "".
  const char* fast_dot_products() const {
    if (!has_dot_products() || dot_products_.integerDotProduct4x8BitPackedSignedAccelerated == 0) return "";
    return dot_products_.integerDotProduct4x8BitPackedMixedSignednessAccelerated != 0 ? "mixed" : "signed";
  }
  bool has_fp16_arithmetic() const { return float16_.shaderFloat16 != 0; }
  bool has_16bit_storage() const { return storage16_.storageBuffer16BitAccess != 0; }
  /// Return whether reads outside of an image give zeros.
  bool has_robust_image_access() const { return robustness_.robustImageAccess2 != 0; }
  /// Return whether subgroups of `kMatrixSubgroup` multiply 16 x 16 matrices of fp16 with sums in fp32, as kernels need.
  bool has_cooperative_matrix() const { return has_matrices_; }
  /// Return all products that the driver lists for subgroups, as "16x16x16 float16 float16 float32" (rows x columns x depth, then the types of A, B
  /// and the sums).
  const std::vector<std::string>& matrix_products() const { return matrix_products_; }
  /// Return whether pipelines may require full subgroups of a size.
  bool has_subgroup_sizes() const { return subgroup_sizes_.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT; }
  bool has_push_descriptors() const { return has_push_descriptors_; }
  /// Return the name of a SPIR-V capability that kernels use if it is off. Null otherwise.
  const char* missing(uint32_t capability) const;

 private:
  void ask_for_matrices(VkPhysicalDevice device);

  VkPhysicalDeviceFeatures2 base_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  VkPhysicalDevice16BitStorageFeatures storage16_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
  VkPhysicalDevice8BitStorageFeatures storage8_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES};
  VkPhysicalDeviceShaderFloat16Int8Features float16_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
  VkPhysicalDeviceVulkanMemoryModelFeatures memory_model_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES};
  VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures subgroup_types_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES};
  VkPhysicalDeviceShaderIntegerDotProductFeatures dot_product_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES};
  VkPhysicalDeviceShaderIntegerDotProductProperties dot_products_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES};
  VkPhysicalDeviceSubgroupSizeControlFeatures subgroup_size_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES};
  VkPhysicalDeviceSubgroupSizeControlProperties subgroup_sizes_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
  VkPhysicalDeviceRobustness2FeaturesEXT robustness_{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT};
  CooperativeMatrixFeatures matrix_{kCooperativeMatrixFeatures, nullptr, 0, 0};
  std::vector<const char*> extensions_;
  std::vector<std::string> matrix_products_;
  bool has_push_descriptors_ = false, has_matrices_ = false;
};

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_DEVICE_FEATURES_H_
