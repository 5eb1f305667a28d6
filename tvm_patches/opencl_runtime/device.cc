// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <tuple>

#include "loader.h"
#include "selection.h"

namespace romou::opencl {
namespace {

// A query that fails leaves the default: one odd driver answer must not hide the device.
template <typename T>
T query(cl_device_id id, cl_uint what, T fallback = T{}) {
  T value{};
  return api().clGetDeviceInfo(id, what, sizeof(T), &value, nullptr) == CL_SUCCESS ? value : fallback;
}

template <typename Ask>
std::string query_text(Ask ask) {
  size_t bytes = 0;
  if (ask(0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  if (ask(bytes, text.data(), nullptr) != CL_SUCCESS) return {};
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

std::string device_text(cl_device_id id, cl_uint what) {
  return query_text([&](size_t bytes, void* out, size_t* need) { return api().clGetDeviceInfo(id, what, bytes, out, need); });
}

/// Return the first three dimensions. A device may have more, and refuses a query without room for all of them.
void read_work_item_sizes(cl_device_id id, size_t* sizes) {
  size_t bytes = 0;
  if (api().clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, 0, nullptr, &bytes) != CL_SUCCESS) return;
  std::vector<size_t> found(bytes / sizeof(size_t));
  if (api().clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, bytes, found.data(), nullptr) != CL_SUCCESS) return;
  std::copy_n(found.begin(), std::min<size_t>(3, found.size()), sizes);
}

/// Return the sub-group sizes that kernels may choose.
std::vector<size_t> read_sub_group_sizes(cl_device_id id) {
  size_t bytes = 0;
  if (api().clGetDeviceInfo(id, CL_DEVICE_SUB_GROUP_SIZES_INTEL, 0, nullptr, &bytes) != CL_SUCCESS) return {};
  std::vector<size_t> sizes(bytes / sizeof(size_t));
  if (api().clGetDeviceInfo(id, CL_DEVICE_SUB_GROUP_SIZES_INTEL, bytes, sizes.data(), nullptr) != CL_SUCCESS) return {};
  return sizes;
}

std::string platform_text(cl_platform_id id, cl_uint what) {
  return query_text([&](size_t bytes, void* out, size_t* need) { return api().clGetPlatformInfo(id, what, bytes, out, need); });
}

/// Return whether this processor has VNNI for vectors of 128 to 512 bits, and the driver's compiler takes assembly: PoCL's does, Intel's does not.
bool takes_vnni(const DeviceFacts& facts) {
#if defined(__x86_64__)
  const bool is_pocl = (facts.type & CL_DEVICE_TYPE_CPU) && facts.platform == "Portable Computing Language";
  return is_pocl && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

DeviceFacts read_facts(const Platform& platform, cl_device_id id) {
  DeviceFacts facts;
  facts.platform = platform_text(platform.id, CL_PLATFORM_NAME);
  facts.platform_version = platform_text(platform.id, CL_PLATFORM_VERSION);
  facts.library = platform.library;
  facts.name = device_text(id, CL_DEVICE_NAME);
  facts.vendor = device_text(id, CL_DEVICE_VENDOR);
  facts.version = device_text(id, CL_DEVICE_VERSION);
  facts.driver = device_text(id, CL_DRIVER_VERSION);
  facts.extensions = device_text(id, CL_DEVICE_EXTENSIONS);
  facts.type = query<cl_bitfield>(id, CL_DEVICE_TYPE);
  facts.max_work_group_size = query<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  read_work_item_sizes(id, facts.max_work_item_sizes);
  facts.local_mem_bytes = query<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  facts.constant_mem_bytes = query<cl_ulong>(id, CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE);
  facts.global_mem_bytes = query<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
  facts.global_cache_bytes = query<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  facts.global_cache_line_bytes = query<cl_uint>(id, CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE);
  facts.max_alloc_bytes = query<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  facts.compute_units = query<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  facts.clock_mhz = query<cl_uint>(id, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  facts.mem_base_align_bits = query<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN);
  facts.image_pitch_align_texels = query<cl_uint>(id, CL_DEVICE_IMAGE_PITCH_ALIGNMENT);
  facts.timer_resolution_ns = query<size_t>(id, CL_DEVICE_PROFILING_TIMER_RESOLUTION);
  facts.divides_exactly = query<cl_bitfield>(id, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
  facts.has_vnni = takes_vnni(facts);
  facts.has_unified_memory = query<cl_bool>(id, CL_DEVICE_HOST_UNIFIED_MEMORY) == CL_TRUE;
  facts.has_images = query<cl_bool>(id, CL_DEVICE_IMAGE_SUPPORT) == CL_TRUE;
  if (facts.has_images) {
    facts.image_max_width = query<size_t>(id, CL_DEVICE_IMAGE2D_MAX_WIDTH);
    facts.image_max_height = query<size_t>(id, CL_DEVICE_IMAGE2D_MAX_HEIGHT);
    facts.image_max_layers = query<size_t>(id, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE);
  }
  if (facts.extensions.find("cl_intel_required_subgroup_size") != std::string::npos) facts.sub_group_sizes = read_sub_group_sizes(id);
  if (facts.extensions.find("cl_khr_device_uuid") != std::string::npos) {
    for (const uint8_t byte : query<std::array<uint8_t, 16>>(id, CL_DEVICE_UUID_KHR)) {
      for (const int digit : {byte >> 4, byte & 15}) facts.uuid += "0123456789abcdef"[digit];
    }
  }
  // OpenCL 1.2 has no query for the warp size, but these two vendors have extensions.
  if (facts.extensions.find("cl_nv_device_attribute_query") != std::string::npos) {
    facts.warp_size = query<cl_uint>(id, CL_DEVICE_WARP_SIZE_NV, 1);
    facts.compute_capability = 10 * query<cl_uint>(id, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, 0) + query<cl_uint>(id, CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV, 0);
  } else if (facts.extensions.find("cl_amd_device_attribute_query") != std::string::npos) {
    facts.warp_size = query<cl_uint>(id, CL_DEVICE_WAVEFRONT_WIDTH_AMD, 1);
  }
  return facts;
}

}  // namespace

Device::Device(const Platform& platform, cl_device_id id) : platform_(platform.id), id_(id), facts_(read_facts(platform, id)) {}

int Device::type_rank() const {
  if (facts_.type & CL_DEVICE_TYPE_GPU) return 0;
  if (facts_.type & CL_DEVICE_TYPE_ACCELERATOR) return 1;
  if (!(facts_.type & CL_DEVICE_TYPE_CPU)) return 4;
  // It is faster than PoCL in the mean of the bundled networks, and compiles faster.
  return facts_.platform == "Intel(R) OpenCL" ? 2 : 3;
}

std::string Device::label() const {
  return "opencl:" + std::to_string(index) + " '" + facts_.name + "' (" + facts_.platform + ")";
}

cl_context Device::context() {
  std::lock_guard<std::mutex> lock(context_mutex_);
  if (context_ == nullptr) {
    cl_int code = CL_SUCCESS;
    // CL_CONTEXT_PERF_HINT_QCOM and CL_PERF_HINT_HIGH_QCOM, which Khronos' headers lack.
    const char* hint = std::getenv("ROMOU_OPENCL_PERF_HINT");
    const bool is_hinted = hint != nullptr && std::string(hint) == "high" && facts_.extensions.find("cl_qcom_perf_hint") != std::string::npos;
    const intptr_t properties[] = {is_hinted ? 0x40C2 : 0, 0x40C3, 0};
    context_ = api().clCreateContext(is_hinted ? properties : nullptr, 1, &id_, nullptr, nullptr, &code);
    check(code, "clCreateContext");
  }
  return context_;
}

cl_command_queue Device::create_queue(cl_bitfield properties) {
  cl_int code = CL_SUCCESS;
  cl_command_queue queue = api().clCreateCommandQueue(context(), id_, properties, &code);
  check(code, "clCreateCommandQueue");
  return queue;
}

Device::Queue::Queue(Device& device) : device_(device), lock_(device.queue_mutex_) {
  if (device.active_queue_ == nullptr) device.active_queue_ = device.plain_queue_ = device.create_queue(0);
}

void Device::Queue::log_event(Event event) {
  for (LaunchLog* log : device_.logs_) {
    device_.check(api().clRetainEvent(event.get()), "clRetainEvent");
    log->append(Event(event.get()));
  }
}

void Device::finish() {
  cl_command_queue queue = nullptr;
  {
    // All commands of the other queue are done, because each change of queues waits for them.
    std::lock_guard<std::mutex> lock(queue_mutex_);
    queue = active_queue_;
  }
  if (queue != nullptr) check(api().clFinish(queue), "clFinish");
}

void Device::wait(Event event, const char* call) {
  const cl_event handle = event.get();
  check(api().clWaitForEvents(1, &handle), call);
}

std::array<cl_command_queue, 2> Device::queues() {
  Queue queue = hold_queue();
  if (profiling_queue_ == nullptr) profiling_queue_ = create_queue(CL_QUEUE_PROFILING_ENABLE);
  return {plain_queue_, profiling_queue_};
}

void Device::note_buffer(size_t bytes) {
  if (bytes < profiled_bytes_) return;
  Queue queue = hold_queue();
  if (profiling_queue_ == nullptr) profiling_queue_ = create_queue(CL_QUEUE_PROFILING_ENABLE);
  if (plain_queue_ == profiling_queue_) return;
  check(api().clFinish(active_queue_), "clFinish");
  // The former plain queue stays with the commands that were recorded for it.
  plain_queue_ = active_queue_ = profiling_queue_;
}

void* Device::extension_function(const char* name) const {
  const auto find = api().clGetExtensionFunctionAddressForPlatform;
  return find == nullptr ? nullptr : find(platform_, name);
}

void Device::start_logging(LaunchLog* log) {
  Queue queue = hold_queue();
  if (logs_.empty()) {
    if (profiling_queue_ == nullptr) profiling_queue_ = create_queue(CL_QUEUE_PROFILING_ENABLE);
    check(api().clFinish(plain_queue_), "clFinish");
    active_queue_ = profiling_queue_;
  }
  logs_.push_back(log);
}

cl_int Device::stop_logging(LaunchLog* log) {
  Queue queue = hold_queue();
  std::erase(logs_, log);
  if (!logs_.empty()) return CL_SUCCESS;
  active_queue_ = plain_queue_;
  return api().clFinish(profiling_queue_);
}

DeviceTable& DeviceTable::global() {
  // Leaked on purpose: modules and tensors of the interpreter may outlive any static of this library.
  static auto* instance = new DeviceTable();
  return *instance;
}

DeviceTable::DeviceTable() {
  if (!api().loaded) return;
  for (const Platform& platform : platforms()) {
    cl_uint count = 0;
    if (api().clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) continue;
    std::vector<cl_device_id> ids(count);
    if (api().clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr) != CL_SUCCESS) continue;
    for (cl_device_id id : ids) devices_.push_back(std::make_unique<Device>(platform, id));
  }
  // Loaders list platforms in different orders, and pyopencl brings a loader of its own: names order the platforms within a type.
  std::stable_sort(devices_.begin(), devices_.end(), [](const auto& a, const auto& b) {
    return std::tie(a->facts().platform, a->facts().driver) < std::tie(b->facts().platform, b->facts().driver);
  });
  selection_error_ = choose_devices(devices_, "ROMOU_OPENCL_DEVICE", "OpenCL");
}

size_t DeviceTable::size() {
  if (!selection_error_.empty()) TVM_FFI_THROW(ValueError) << selection_error_;
  return devices_.size();
}

Device& DeviceTable::at(int index) {
  const size_t count = size();
  if (index >= 0 && static_cast<size_t>(index) < count) return *devices_[index];
  if (!api().loaded) {
    TVM_FFI_THROW(RuntimeError) << "no OpenCL device opencl:" << index << ": no OpenCL library could be opened:\n"
                                << api().failure
                                << "Install an OpenCL driver (pip install intel-opencl-rt intel-cmplr-lib-rt tbb, or on Debian apt-get install pocl-opencl-icd), or set ROMOU_OPENCL_LIBRARY.";
  }
  if (count == 0) {
    TVM_FFI_THROW(RuntimeError) << "no OpenCL device opencl:" << index << ": " << api().library
                                << " was opened but lists no device. Install a driver (pip install intel-opencl-rt intel-cmplr-lib-rt tbb, or on Debian apt-get install "
                                   "pocl-opencl-icd), or set OCL_ICD_VENDORS to the folder of the system's .icd files.";
  }
  TVM_FFI_THROW(RuntimeError) << "no OpenCL device opencl:" << index << "; there are " << count << ":\n" << device_listing(devices_);
  TVM_FFI_UNREACHABLE();
}

}  // namespace romou::opencl
