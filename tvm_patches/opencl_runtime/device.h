// SPDX-License-Identifier: Apache-2.0
//
// The devices of this process: enumeration, selection by name, and each device's context and in-order queues.
#ifndef ROMOU_OPENCL_DEVICE_H_
#define ROMOU_OPENCL_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cl_api.h"
#include "error.h"
#include "loader.h"
#include "owned.h"

namespace romou::opencl {

/// Receives the event of every launch. `append` is called while the queue is held.
class LaunchLog {
 public:
  virtual void append(Event event) = 0;

 protected:
  ~LaunchLog() = default;
};

/// The driver's answers, queried once at enumeration.
struct DeviceFacts {
  std::string platform, platform_version, name, vendor, version, driver, extensions;
  std::string uuid;     ///< of the hardware, in hex digits, the same in other APIs. Empty if the driver does not report it
  std::string library;  ///< the ICD loader or driver that lists the platform
  cl_bitfield type = 0;
  size_t max_work_group_size = 0;
  size_t max_work_item_sizes[3] = {0, 0, 0};
  std::vector<size_t> sub_group_sizes;  ///< sizes that kernels may choose (cl_intel_required_subgroup_size)
  cl_ulong local_mem_bytes = 0, constant_mem_bytes = 0, global_mem_bytes = 0, global_cache_bytes = 0, max_alloc_bytes = 0;
  cl_uint compute_units = 0, clock_mhz = 0, warp_size = 1, compute_capability = 0, global_cache_line_bytes = 0, mem_base_align_bits = 0, image_pitch_align_texels = 0;
  bool has_images = false, has_unified_memory = false;
  bool divides_exactly = false;  ///< whether fp32 division is correctly rounded in programs built for it
  bool has_vnni = false;         ///< whether programs may have AVX-512's products of bytes as inline assembly (VNNI)
  size_t image_max_width = 0, image_max_height = 0, image_max_layers = 0;
  size_t timer_resolution_ns = 0;
};

/// One OpenCL device and its context. Thread-safe.
///
/// Commands go to one in-order queue shared by all threads. While a timer runs they go to a second queue, created with profiling. There are two
/// queues because a profiled queue costs time per launch on some drivers, and a queue cannot be switched after its creation. Each change of queues
/// waits for the former one, and no change happens while a thread enqueues, so commands keep their order.
class Device {
 public:
  Device(const Platform& platform, cl_device_id id);

  const DeviceFacts& facts() const { return facts_; }
  cl_device_id id() const { return id_; }
  /// "opencl:0 'name' (platform)"
  std::string label() const;
  /// Device type: GPU, accelerator or CPU. Of a CPU's drivers, the faster one comes first.
  int type_rank() const;
  int index = 0;  ///< the N of opencl:N
  /// Return the device that this thread's host code chose last.
  static int& current() {
    thread_local int index = 0;
    return index;
  }

  /// Return the context. It is created at the first use, so that listing devices costs nothing.
  cl_context context();
  /// The queue for commands. While this object lives, other threads cannot change or use the queue. Do not wait for the device meanwhile, because
  /// other threads could not launch.
  class Queue {
   public:
    cl_command_queue handle() const { return device_.active_queue_; }
    /// Return whether launches should request an event.
    bool is_logging() const { return !device_.logs_.empty(); }
    /// Hand a launch's event to the active logs.
    void log_event(Event event);

   private:
    friend class Device;
    explicit Queue(Device& device);
    Device& device_;
    std::lock_guard<std::mutex> lock_;
  };
  Queue hold_queue() { return Queue(*this); }
  /// Use the queue with profiling for everything as soon as there is a buffer of `bytes`. Some drivers corrupt large buffers on other queues.
  void profile_above(size_t bytes) { profiled_bytes_ = bytes; }
  /// Compile all programs with these options, besides those of the environment and of the source.
  void set_build_options(const std::string& options) {
    std::lock_guard<std::mutex> lock(options_mutex_);
    build_options_ = options;
  }
  std::string build_options() const {
    std::lock_guard<std::mutex> lock(options_mutex_);
    return build_options_;
  }
  /// Called when a buffer of `bytes` bytes was created.
  void note_buffer(size_t bytes);
  /// Create a queue besides the queues for commands.
  cl_command_queue create_queue(cl_bitfield properties);
  /// Return both queues: the plain one and the one with profiling.
  std::array<cl_command_queue, 2> queues();
  /// Return a function of an extension, or null.
  void* extension_function(const char* name) const;
  /// Wait until every command has finished.
  void finish();
  /// Wait for the event that the OpenCL call `call` returned.
  void wait(Event event, const char* call);
  /// Raise RuntimeError that names the call and this device unless `code` is CL_SUCCESS.
  void check(cl_int code, const char* call, const std::string& kernel = {}, const std::string& detail = {}) const {
    if (code != CL_SUCCESS) raise_error(code, call, label(), kernel, detail);
  }

  /// Log the events of every launch from now on, until `stop_logging`, which returns the code of clFinish. Several logs may be active at a time.
  void start_logging(LaunchLog* log);
  cl_int stop_logging(LaunchLog* log);

 private:
  cl_platform_id platform_;
  cl_device_id id_;
  DeviceFacts facts_;
  std::mutex context_mutex_;
  cl_context context_ = nullptr;
  std::mutex queue_mutex_;  ///< guards the queues and the logs
  cl_command_queue plain_queue_ = nullptr, profiling_queue_ = nullptr, active_queue_ = nullptr;
  std::vector<LaunchLog*> logs_;
  std::atomic<size_t> profiled_bytes_ = SIZE_MAX;
  mutable std::mutex options_mutex_;
  std::string build_options_;
};

/// All devices, GPUs first, then accelerators, then CPUs, each group in the order of the platforms' names. Devices with $ROMOU_OPENCL_DEVICE in the
/// name of the platform or device (any case) are moved to the front. Enumerated at the first call. Empty without a loader. The order is that of
/// archprobe/devices/order.py.
class DeviceTable {
 public:
  static DeviceTable& global();
  /// Return the number of usable devices. Raises ValueError if $ROMOU_OPENCL_DEVICE matches none.
  size_t size();
  /// Return the device opencl:`index`. The RuntimeError for a missing device has the reason.
  Device& at(int index);
  /// Return every device, even if the selection failed.
  const std::vector<std::unique_ptr<Device>>& all() const { return devices_; }

 private:
  DeviceTable();
  std::vector<std::unique_ptr<Device>> devices_;
  std::string selection_error_;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_DEVICE_H_
