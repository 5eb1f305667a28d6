// SPDX-License-Identifier: Apache-2.0
#include "recorder.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "loader.h"
#include "statistics.h"

namespace romou::opencl {
namespace {

// The functions of cl_khr_command_buffer that the runtime uses. Their signatures are the same in all of its versions. Copies have another signature
// since 0.9.5, but a model's run contains none.
// X(result, name, parameters)
#define ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(X)                                                                                 \
  X(cl_command_buffer_khr, clCreateCommandBufferKHR, (cl_uint, const cl_command_queue*, const cl_ulong*, cl_int*))           \
  X(cl_int, clFinalizeCommandBufferKHR, (cl_command_buffer_khr))                                                             \
  X(cl_int, clReleaseCommandBufferKHR, (cl_command_buffer_khr))                                                              \
  X(cl_int, clEnqueueCommandBufferKHR,                                                                                       \
    (cl_uint, cl_command_queue*, cl_command_buffer_khr, cl_uint, const cl_event*, cl_event*))                                \
  X(cl_int, clCommandNDRangeKernelKHR,                                                                                       \
    (cl_command_buffer_khr, cl_command_queue, const cl_ulong*, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, \
     cl_uint, const cl_uint*, cl_uint*, void**))

// The functions of cl_qcom_recordable_queues. Four lists (arguments, offsets, global and local sizes) may change recorded launches. Here they are empty.
#define ROMOU_CL_RECORDING_FUNCTIONS(X)                                                                                      \
  X(cl_recording_qcom, clNewRecordingQCOM, (cl_command_queue, cl_int*))                                                      \
  X(cl_int, clEndRecordingQCOM, (cl_recording_qcom))                                                                         \
  X(cl_int, clReleaseRecordingQCOM, (cl_recording_qcom))                                                                     \
  X(cl_int, clEnqueueRecordingQCOM,                                                                                          \
    (cl_command_queue, cl_recording_qcom, size_t, const void*, size_t, const void*, size_t, const void*, size_t, const void*, \
     cl_uint, const cl_event*, cl_event*))

constexpr const char *kKhronos = "cl_khr_command_buffer", *kQualcomm = "cl_qcom_recordable_queues";

#define ROMOU_CL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
struct CommandBufferApi {
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(ROMOU_CL_DECLARE)
};
struct RecordingApi {
  ROMOU_CL_RECORDING_FUNCTIONS(ROMOU_CL_DECLARE)
};
#undef ROMOU_CL_DECLARE

template <typename Function>
Function resolved(const Device& device, const char* extension, const char* name) {
  void* found = device.extension_function(name);
  if (found == nullptr) TVM_FFI_THROW(RuntimeError) << "the driver of " << device.label() << " names " << extension << " and lacks " << name;
  return reinterpret_cast<Function>(found);
}

#define ROMOU_CL_RESOLVE(result, name, parameters) found.name = resolved<result(*) parameters>(device, extension, #name);
CommandBufferApi command_buffer_api(const Device& device, const char* extension) {
  CommandBufferApi found;
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(ROMOU_CL_RESOLVE)
  return found;
}
RecordingApi recording_api(const Device& device, const char* extension) {
  RecordingApi found;
  ROMOU_CL_RECORDING_FUNCTIONS(ROMOU_CL_RESOLVE)
  return found;
}
#undef ROMOU_CL_RESOLVE

template <typename Handle>
struct Releaser {
  cl_int (*release)(Handle*);
  void operator()(Handle* handle) const noexcept {
    if (!is_exiting()) complain(release(handle), "releasing what was recorded");
  }
};

/// A command buffer belongs to queues with the same properties, so there are two: one for the queue with profiling, one for the plain queue.
class CommandBuffers final : public Recorder {
 public:
  explicit CommandBuffers(Device& device) : device_(device), cl_(command_buffer_api(device, kKhronos)), queues_(device.queues()) {
    for (cl_command_queue& queue : queues_) {
      cl_int code = CL_SUCCESS;
      cl_command_buffer_khr made = cl_.clCreateCommandBufferKHR(1, &queue, nullptr, &code);
      device.check(code, "clCreateCommandBufferKHR");
      handles_.emplace_back(made, Releaser<CommandBufferHandle>{cl_.clReleaseCommandBufferKHR});
    }
  }

  void add(cl_kernel kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local) final {
    for (const auto& handle : handles_) {
      device_.check(cl_.clCommandNDRangeKernelKHR(handle.get(), nullptr, nullptr, kernel, dimensions, nullptr, global, local, 0, nullptr, nullptr, nullptr),
                    "clCommandNDRangeKernelKHR", name);
    }
  }

  void finish() final {
    for (const auto& handle : handles_) device_.check(cl_.clFinalizeCommandBufferKHR(handle.get()), "clFinalizeCommandBufferKHR");
  }

  const char* what() const final { return "an OpenCL command buffer"; }
  const char* call() const final { return "clEnqueueCommandBufferKHR"; }

  cl_event enqueue(cl_command_queue queue) final {
    cl_event done = nullptr;
    const auto& handle = handles_[queue == queues_[0] ? 0 : 1];
    device_.check(cl_.clEnqueueCommandBufferKHR(0, nullptr, handle.get(), 0, nullptr, &done), call());
    return done;
  }

 private:
  Device& device_;
  const CommandBufferApi cl_;
  std::array<cl_command_queue, 2> queues_;
  std::vector<std::unique_ptr<CommandBufferHandle, Releaser<CommandBufferHandle>>> handles_;
};

/// Recording by a separate queue, which keeps the commands that are enqueued on it and computes nothing. Any queue can run the recording.
class Recording final : public Recorder {
 public:
  explicit Recording(Device& device) : device_(device), cl_(recording_api(device, kQualcomm)) {
    // Without profiling, because drivers refuse this property together with it.
    queue_ = {device.create_queue(CL_QUEUE_RECORDABLE_QCOM), {api().clReleaseCommandQueue}};
    cl_int code = CL_SUCCESS;
    cl_recording_qcom made = cl_.clNewRecordingQCOM(queue_.get(), &code);
    device.check(code, "clNewRecordingQCOM");
    handle_ = {made, {cl_.clReleaseRecordingQCOM}};
  }

  void add(cl_kernel kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local) final {
    device_.check(api().clEnqueueNDRangeKernel(queue_.get(), kernel, dimensions, nullptr, global, local, 0, nullptr, nullptr), "clEnqueueNDRangeKernel", name);
  }

  void finish() final { device_.check(cl_.clEndRecordingQCOM(handle_.get()), "clEndRecordingQCOM"); }

  const char* what() const final { return "an OpenCL command buffer"; }
  const char* call() const final { return "clEnqueueRecordingQCOM"; }

  cl_event enqueue(cl_command_queue queue) final {
    cl_event done = nullptr;
    device_.check(cl_.clEnqueueRecordingQCOM(queue, handle_.get(), 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, &done), call());
    return done;
  }

 private:
  Device& device_;
  const RecordingApi cl_;
  // Destroyed from the last to the first.
  std::unique_ptr<QueueHandle, Releaser<QueueHandle>> queue_;
  std::unique_ptr<RecordingHandle, Releaser<RecordingHandle>> handle_;
};

/// Launches after which a list is flushed. The device starts while the rest is enqueued: 90 launches of a tiny kernel take 497 us on an H100, without a
/// flush 596, with one behind each launch 606.
constexpr size_t kFlushedTogether = 8;

/// The launches themselves, enqueued one after another. It needs no extension, and saves what a virtual machine does between two launches.
class LaunchList final : public Recorder {
 public:
  explicit LaunchList(Device& device) : device_(device) {}

  void add(cl_kernel kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local) final {
    Launch launch{kernel, name, dimensions, {}, {}};
    std::copy_n(global, dimensions, launch.global);
    std::copy_n(local, dimensions, launch.local);
    launches_.push_back(std::move(launch));
  }

  void finish() final {}

  const char* what() const final { return "an OpenCL launch list"; }
  const char* call() const final { return "clEnqueueNDRangeKernel"; }

  cl_event enqueue(cl_command_queue queue) final {
    size_t enqueued = 0;
    for (const Launch& launch : launches_) {
      device_.check(api().clEnqueueNDRangeKernel(queue, launch.kernel, launch.dimensions, nullptr, launch.global, launch.local, 0, nullptr, nullptr), call(),
                    launch.name);
      if (++enqueued % kFlushedTogether == 0) device_.check(api().clFlush(queue), "clFlush");
    }
    statistics().launches += static_cast<int64_t>(launches_.size());
    return nullptr;
  }

 private:
  struct Launch {
    cl_kernel kernel;
    std::string name;
    cl_uint dimensions;
    size_t global[3], local[3];
  };

  Device& device_;
  std::vector<Launch> launches_;
};

bool has_extension(const Device& device, const std::string& name) {
  std::istringstream words(device.facts().extensions);
  for (std::string found; words >> found;) {
    if (found == name) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<Recorder> Recorder::create(Device& device, bool by_driver) {
  if (by_driver && has_extension(device, kKhronos)) return std::make_unique<CommandBuffers>(device);
  if (by_driver && has_extension(device, kQualcomm)) return std::make_unique<Recording>(device);
  return std::make_unique<LaunchList>(device);
}

}  // namespace romou::opencl
