// SPDX-License-Identifier: Apache-2.0
//
// A command buffer: several kernels recorded once and enqueued as a whole (cl_khr_command_buffer).
#ifndef ROMOU_OPENCL_COMMAND_BUFFER_H_
#define ROMOU_OPENCL_COMMAND_BUFFER_H_

#include <array>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "cl_api.h"
#include "device.h"
#include "program.h"

namespace romou::opencl {

struct Memory;

// The functions of the extension that are used; their signatures are the same in all of its versions. Copies have another one since 0.9.5,
// and are none of the commands of a model's run.
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

struct CommandBufferApi {
#define ROMOU_CL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(ROMOU_CL_DECLARE)
#undef ROMOU_CL_DECLARE
};

/// While a thread records one, its launches on any device go into the command buffer instead of the queue, and nothing is computed.
///
/// The memory that kernels are given stays alive with the recording: no pool frees it or hands it to another run. A command buffer belongs to
/// queues of the same properties, so there are two: for the queue with profiling and for the one without.
class CommandBuffer {
 public:
  /// Begin to record. Raises RuntimeError if the device has no command buffers, or the thread records already.
  explicit CommandBuffer(Device& device);
  ~CommandBuffer();
  CommandBuffer(const CommandBuffer&) = delete;
  CommandBuffer& operator=(const CommandBuffer&) = delete;

  /// The command buffer that this thread records; null if none.
  static CommandBuffer*& current() {
    thread_local CommandBuffer* buffer = nullptr;
    return buffer;
  }

  /// A kernel object of this recording's own, for one launch of `kernel`. Arguments are part of the object, and not every driver
  /// (PoCL 3.1) copies them when a launch is recorded.
  Kernel& own(const Kernel& kernel, const std::string& name);
  /// Record a launch of a kernel that `own` returned, with the arguments that it has now.
  void add(Device& device, const Kernel& kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local);
  void keep(Memory* memory);
  /// End the recording. Raises RuntimeError if it is empty.
  void finish();
  /// Enqueue all of it, on whichever queue is active.
  void enqueue();
  /// Enqueue it, wait, and return its time from begin to end by the device's clock in ns.
  int64_t time_ns();

  int64_t launches() const { return launches_; }

 private:
  void enqueue(Device::Queue& queue);
  void release();

  Device& device_;
  const CommandBufferApi api_;
  std::array<cl_command_queue, 2> queues_;
  std::array<cl_command_buffer_khr, 2> handles_{};
  std::array<cl_event, 2> last_{};
  std::unordered_set<Memory*> kept_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  int64_t launches_ = 0;
  bool is_finished_ = false;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_COMMAND_BUFFER_H_
