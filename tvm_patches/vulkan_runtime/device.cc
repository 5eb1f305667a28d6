// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "selection.h"

namespace romou::vulkan {
namespace {

const char* vendor_name(uint32_t id) {
  switch (id) {
    case 0x1002:
      return "AMD";
    case 0x1010:
      return "Imagination";
    case 0x106B:
      return "Apple";
    case 0x10DE:
      return "NVIDIA";
    case 0x13B5:
      return "ARM";
    case 0x144D:
      return "Samsung";
    case 0x5143:
      return "Qualcomm";
    case 0x8086:
      return "Intel";
    case VK_VENDOR_ID_MESA:
      return "Mesa";
    default:
      return "unknown";
  }
}

std::string hex(const uint8_t* bytes, size_t count) {
  std::string text;
  char digits[3];
  for (size_t i = 0; i < count; ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

std::string version_text(uint32_t version) {
  return std::to_string(VK_API_VERSION_MAJOR(version)) + "." + std::to_string(VK_API_VERSION_MINOR(version)) + "." +
         std::to_string(VK_API_VERSION_PATCH(version));
}

std::vector<std::string> extensions_of(VkPhysicalDevice device) {
  uint32_t count = 0;
  instance().vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> found(count);
  instance().vkEnumerateDeviceExtensionProperties(device, nullptr, &count, found.data());
  std::vector<std::string> names;
  for (const VkExtensionProperties& extension : found) {
    if (!is_left_out(extension.extensionName)) names.emplace_back(extension.extensionName);
  }
  return names;
}

/// Return a queue family for compute, if possible one without graphics, because its queue does not wait for drawing.
void choose_queue(VkPhysicalDevice device, DeviceFacts* facts) {
  uint32_t count = 0;
  instance().vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  instance().vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
  int best = -1;
  for (uint32_t i = 0; i < count; ++i) {
    const VkQueueFamilyProperties& family = families[i];
    if (!(family.queueFlags & VK_QUEUE_COMPUTE_BIT) || family.queueCount == 0) continue;
    const int score = (family.timestampValidBits != 0 ? 2 : 0) + (family.queueFlags & VK_QUEUE_GRAPHICS_BIT ? 0 : 1);
    if (score <= best) continue;
    best = score;
    facts->queue_family = i;
    facts->timestamp_bits = family.timestampValidBits;
  }
}

bool can_be_image(VkPhysicalDevice device, VkFormat format) {
  VkFormatProperties found{};
  instance().vkGetPhysicalDeviceFormatProperties(device, format, &found);
  constexpr VkFormatFeatureFlags kNeeded = VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT | VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT;
  return (found.optimalTilingFeatures & kNeeded) == kNeeded;
}

DeviceFacts read_facts(VkPhysicalDevice device, const std::vector<std::string>& extensions) {
  const auto has = [&](const char* name) { return std::find(extensions.begin(), extensions.end(), name) != extensions.end(); };
  DeviceFacts facts;
  VkPhysicalDeviceProperties2 asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  VkPhysicalDeviceIDProperties ids{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  VkPhysicalDeviceSubgroupProperties subgroup{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceMaintenance3Properties largest{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
  VkPhysicalDeviceDriverProperties driver{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
  VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
  VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM arm{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM};
  VkPhysicalDeviceShaderCorePropertiesAMD amd{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
  const auto ask = [&](auto& structure) {
    structure.pNext = asked.pNext;
    asked.pNext = &structure;
  };
  instance().vkGetPhysicalDeviceProperties(device, &asked.properties);
  const VkPhysicalDeviceProperties& properties = asked.properties;
  ask(ids);
  ask(subgroup);
  ask(largest);
  if (properties.apiVersion >= VK_API_VERSION_1_2 || has("VK_KHR_driver_properties")) ask(driver);
  if (has("VK_NV_shader_sm_builtins")) ask(nvidia);
  if (has("VK_ARM_shader_core_builtins")) ask(arm);
  if (has("VK_AMD_shader_core_properties")) ask(amd);
  instance().vkGetPhysicalDeviceProperties2(device, &asked);

  facts.name = properties.deviceName;
  facts.vendor = vendor_name(properties.vendorID);
  facts.platform = driver.driverName[0] != '\0' ? driver.driverName : facts.vendor;
  facts.driver = driver.driverInfo[0] != '\0' ? driver.driverInfo : version_text(properties.driverVersion);
  facts.version = "Vulkan " + version_text(properties.apiVersion);
  facts.uuid = hex(ids.deviceUUID, VK_UUID_SIZE) + hex(ids.driverUUID, VK_UUID_SIZE) + hex(properties.pipelineCacheUUID, VK_UUID_SIZE);
  facts.type = properties.deviceType;
  facts.limits = properties.limits;
  facts.api_version = properties.apiVersion;
  facts.subgroup_size = subgroup.subgroupSize;
  if (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) facts.subgroup_operations = subgroup.supportedOperations;
  // Vulkan has no query for compute units, but these vendors have extensions.
  facts.compute_units = nvidia.shaderSMCount + arm.shaderCoreCount + amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
  if (facts.type == VK_PHYSICAL_DEVICE_TYPE_CPU) facts.compute_units = std::thread::hardware_concurrency();
  for (const std::string& name : extensions) facts.extensions += (facts.extensions.empty() ? "" : " ") + name;
  facts.max_alloc_bytes = std::min<uint64_t>(largest.maxMemoryAllocationSize, properties.limits.maxStorageBufferRange);
  facts.has_images = can_be_image(device, VK_FORMAT_R32G32B32A32_SFLOAT) && can_be_image(device, VK_FORMAT_R16G16B16A16_SFLOAT);
  choose_queue(device, &facts);
  return facts;
}

}  // namespace

Device::Device(VkPhysicalDevice physical) : physical_(physical) {
  const std::vector<std::string> extensions = extensions_of(physical);
  facts_ = read_facts(physical, extensions);
  features_ = std::make_unique<Features>(physical, facts_.api_version, extensions);
  instance().vkGetPhysicalDeviceMemoryProperties(physical, &memory_types_);
  for (uint32_t i = 0; i < memory_types_.memoryHeapCount; ++i) {
    const VkMemoryHeap& heap = memory_types_.memoryHeaps[i];
    if (heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) facts_.global_mem_bytes = std::max<uint64_t>(facts_.global_mem_bytes, heap.size);
  }
  // If host and device share their memory, tensors are written and read in place. A discrete GPU's memory can be mapped as well, but reads go over
  // the bus.
  facts_.has_unified_memory =
      (facts_.type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || facts_.type == VK_PHYSICAL_DEVICE_TYPE_CPU) && !is_left_out("unified_memory");
}

Device::~Device() = default;

std::string Device::label() const { return "vulkan:" + std::to_string(index) + " '" + facts_.name + "' (" + facts_.platform + ")"; }

int Device::type_rank() const {
  switch (facts_.type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return 0;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
      return 1;
    default:
      return 2;
  }
}

void Device::open() {
  if (is_forked()) {
    TVM_FFI_THROW(RuntimeError) << "this process was forked from one that had used Vulkan, and " << label()
                                << " does not work here; start processes by spawn, or fork before Vulkan is used";
  }
  std::call_once(once_, [this] { create(); });
}

DeviceTable& DeviceTable::global() {
  // Leaked on purpose: modules and tensors of the interpreter may outlive any static of this library.
  static auto* made = new DeviceTable();
  return *made;
}

DeviceTable::DeviceTable() {
  const Instance& vulkan = instance();
  if (vulkan.handle == VK_NULL_HANDLE) return;
  uint32_t count = 0;
  if (vulkan.vkEnumeratePhysicalDevices(vulkan.handle, &count, nullptr) != VK_SUCCESS) return;
  std::vector<VkPhysicalDevice> found(count);
  if (vulkan.vkEnumeratePhysicalDevices(vulkan.handle, &count, found.data()) < VK_SUCCESS) return;
  for (VkPhysicalDevice device : found) {
    VkPhysicalDeviceProperties properties{};
    vulkan.vkGetPhysicalDeviceProperties(device, &properties);
    if (properties.apiVersion >= VK_API_VERSION_1_1) {
      devices_.push_back(std::make_unique<Device>(device));
    } else {
      skipped_ += std::string("  ") + properties.deviceName + " has Vulkan " + version_text(properties.apiVersion) + "; 1.1 is needed\n";
    }
  }
  selection_error_ = choose_devices(devices_, "ROMOU_VULKAN_DEVICE", "Vulkan");
}

size_t DeviceTable::size() {
  if (!selection_error_.empty()) TVM_FFI_THROW(ValueError) << selection_error_;
  return devices_.size();
}

Device& DeviceTable::at(int index) {
  const size_t count = size();
  if (index >= 0 && static_cast<size_t>(index) < count) return *devices_[index];
  constexpr const char* kInstall = "Install the GPU vendor's driver, or, for the CPU, on Debian: apt-get install libvulkan1 mesa-vulkan-drivers.";
  if (instance().handle == VK_NULL_HANDLE) {
    TVM_FFI_THROW(RuntimeError) << "no Vulkan device vulkan:" << index << ": Vulkan could not be opened:\n"
                                << instance().failure << kInstall << " ROMOU_VULKAN_LIBRARY names another library.";
  }
  if (count == 0) {
    TVM_FFI_THROW(RuntimeError) << "no Vulkan device vulkan:" << index << ": " << instance().library << " was opened but lists no usable device.\n"
                                << skipped_ << kInstall;
  }
  TVM_FFI_THROW(RuntimeError) << "no Vulkan device vulkan:" << index << "; there are " << count << ":\n" << device_listing(devices_);
  TVM_FFI_UNREACHABLE();
}

}  // namespace romou::vulkan
