// SPDX-License-Identifier: Apache-2.0
//
// Python's queries to the runtime: devices and their facts, counters, the opened library, the version of TVM that it was built for.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <string>

#include "device.h"
#include "loader.h"
#include "statistics.h"

namespace romou::opencl {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

const char* type_name(cl_bitfield type) {
  if (type & CL_DEVICE_TYPE_GPU) return "gpu";
  if (type & CL_DEVICE_TYPE_ACCELERATOR) return "accelerator";
  return type & CL_DEVICE_TYPE_CPU ? "cpu" : "other";
}

int64_t number(uint64_t value) { return static_cast<int64_t>(value); }

/// Return a JSON array with an object for every device, in the order of opencl:0, opencl:1, …
String devices() {
  json::Array list;
  DeviceTable& table = DeviceTable::global();
  for (size_t i = 0; i < table.size(); ++i) {
    const DeviceFacts& facts = table.at(static_cast<int>(i)).facts();
    json::Object object;
    object.Set("index", number(i));
    object.Set("platform", String(facts.platform));
    object.Set("name", String(facts.name));
    object.Set("vendor", String(facts.vendor));
    object.Set("version", String(facts.version));
    object.Set("uuid", String(facts.uuid));
    object.Set("library", String(facts.library));
    object.Set("driver", String(facts.driver));
    object.Set("type", String(type_name(facts.type)));
    object.Set("extensions", String(facts.extensions));
    object.Set("compute_units", number(facts.compute_units));
    object.Set("clock_mhz", number(facts.clock_mhz));
    object.Set("max_work_group_size", number(facts.max_work_group_size));
    object.Set("warp_size", number(facts.warp_size));
    object.Set("compute_capability", number(facts.compute_capability));
    json::Array sub_group_sizes;
    for (const size_t size : facts.sub_group_sizes) sub_group_sizes.push_back(number(size));
    object.Set("sub_group_sizes", sub_group_sizes);
    object.Set("local_mem_bytes", number(facts.local_mem_bytes));
    object.Set("constant_mem_bytes", number(facts.constant_mem_bytes));
    object.Set("global_mem_bytes", number(facts.global_mem_bytes));
    object.Set("global_cache_bytes", number(facts.global_cache_bytes));
    object.Set("global_cache_line_bytes", number(facts.global_cache_line_bytes));
    object.Set("keeps_programs", true);
    object.Set("makes_windows", api().clCreateSubBuffer != nullptr);
    object.Set("max_alloc_bytes", number(facts.max_alloc_bytes));
    object.Set("has_unified_memory", facts.has_unified_memory);
    object.Set("has_vnni", facts.has_vnni);
    object.Set("has_images", facts.has_images);
    object.Set("max_image_width", number(facts.image_max_width));
    object.Set("max_image_height", number(facts.image_max_height));
    object.Set("max_image_layers", number(facts.image_max_layers));
    object.Set("timer_resolution_ns", number(facts.timer_resolution_ns));
    list.push_back(object);
  }
  return json::Stringify(list);
}

String counters() {
  const Statistics& s = statistics();
  json::Object object;
  object.Set("live_buffers", s.live_buffers.load());
  object.Set("live_images", s.live_images.load());
  object.Set("live_bytes", s.live_bytes.load());
  object.Set("live_kernels", s.live_kernels.load());
  object.Set("live_programs", s.live_programs.load());
  object.Set("live_events", s.live_events.load());
  object.Set("launches", s.launches.load());
  object.Set("created", s.created.load());
  object.Set("copies", s.copies.load());
  return json::Stringify(object);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("romou.opencl.devices", devices)
      .def("romou.opencl.statistics", counters)
      .def("romou.opencl.library", [] { return String(api().library); })
      .def("romou.opencl.offer_driver",
           [](tvm::ffi::Array<String> libraries) { offer_driver({libraries.begin(), libraries.end()}); })
      .def("romou.opencl.set_build_options",
           [](int device, const tvm::ffi::String& options) { DeviceTable::global().at(device).set_build_options(options); })
      .def("romou.opencl.profile_above",
           [](int device, int64_t bytes) { DeviceTable::global().at(device).profile_above(static_cast<size_t>(bytes)); })
      .def("romou.opencl.failure", [] { return String(api().failure); })
      .def("romou.opencl.built_against", [] { return String(ROMOU_TVM_VERSION); });
}

}  // namespace romou::opencl
