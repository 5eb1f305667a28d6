// SPDX-License-Identifier: Apache-2.0
//
// Python's queries to the runtime: devices and their facts, counters, the opened library, the version of TVM that it was built for.
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <string>

#include "device.h"
#include "loader.h"
#include "statistics.h"

namespace romou::vulkan {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

/// Return a JSON array with an object for every device, in the order of vulkan:0, vulkan:1, …
String devices() {
  json::Array list;
  DeviceTable& table = DeviceTable::global();
  for (size_t i = 0; i < table.size(); ++i) {
    const Device& device = table.at(static_cast<int>(i));
    const DeviceFacts& facts = device.facts();
    const Features& features = device.features();
    const VkPhysicalDeviceLimits& limits = facts.limits;
    json::Object object;
    const auto number = [&](const char* name, uint64_t value) { object.Set(String(name), static_cast<int64_t>(value)); };
    number("index", i);
    object.Set("platform", String(facts.platform));
    object.Set("name", String(facts.name));
    object.Set("vendor", String(facts.vendor));
    object.Set("version", String(facts.version));
    object.Set("uuid", String(facts.uuid.substr(0, 2 * VK_UUID_SIZE)));
    object.Set("library", String(instance().library));
    object.Set("driver", String(facts.driver));
    const char* types[] = {"gpu", "cpu", "other"};
    object.Set("type", String(types[device.type_rank()]));
    object.Set("extensions", String(facts.extensions));
    number("compute_units", facts.compute_units);
    number("clock_mhz", 0);  // Vulkan does not report it
    number("max_work_group_size", limits.maxComputeWorkGroupInvocations);
    const auto& sides = limits.maxComputeWorkGroupSize;
    object.Set("max_work_group_sides", json::Array{int64_t{sides[0]}, int64_t{sides[1]}, int64_t{sides[2]}});
    number("subgroup_size", facts.subgroup_size);
    object.Set("has_subgroup_reductions", facts.has_subgroup(VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT));
    object.Set("has_subgroup_shuffles", facts.has_subgroup(VK_SUBGROUP_FEATURE_SHUFFLE_BIT));
    number("local_mem_bytes", limits.maxComputeSharedMemorySize);
    number("global_mem_bytes", facts.global_mem_bytes);
    number("max_alloc_bytes", facts.max_alloc_bytes);
    number("max_push_constant_bytes", limits.maxPushConstantsSize);
    number("max_storage_buffers", limits.maxPerStageDescriptorStorageBuffers);
    object.Set("has_images", facts.has_images);
    number("max_image_width", limits.maxImageDimension2D);
    number("max_image_height", limits.maxImageDimension2D);
    number("max_image_layers", limits.maxImageArrayLayers);
    object.Set("has_fp16_arithmetic", features.has_fp16_arithmetic());
    object.Set("has_16bit_storage", features.has_16bit_storage());
    object.Set("has_8bit_storage", features.has_8bit_storage());
    object.Set("has_int64", features.has_int64());
    object.Set("has_float64", features.has_float64());
    object.Set("has_robust_image_access", features.has_robust_image_access());
    object.Set("has_dot_products", features.has_dot_products());
    object.Set("fast_dot_products", String(features.fast_dot_products()));
    object.Set("has_cooperative_matrix", features.has_cooperative_matrix());
    json::Array products;
    for (const std::string& product : features.matrix_products()) products.push_back(String(product));
    object.Set("cooperative_matrices", products);
    object.Set("keeps_programs", true);
    object.Set("has_unified_memory", facts.has_unified_memory);
    object.Set("timestamp_period_ns", static_cast<double>(facts.timestamp_bits == 0 ? 0 : limits.timestampPeriod));
    list.push_back(object);
  }
  return json::Stringify(list);
}

String counters() {
  json::Object object;
#define ROMOU_VK_SET(name) object.Set(String(#name), statistics().name.load());
  ROMOU_VK_COUNTERS(ROMOU_VK_SET)
#undef ROMOU_VK_SET
  return json::Stringify(object);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("romou.vulkan.devices", devices)
      .def("romou.vulkan.statistics", counters)
      .def("romou.vulkan.library", [] { return String(instance().library); })
      .def("romou.vulkan.failure", [] { return String(instance().failure); })
      .def("romou.vulkan.built_against", [] { return String(ROMOU_TVM_VERSION); });
}

}  // namespace romou::vulkan
