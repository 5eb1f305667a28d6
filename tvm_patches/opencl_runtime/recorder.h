// SPDX-License-Identifier: Apache-2.0
//
// Launches that a driver records once and enqueues as a whole, by one of two extensions: cl_khr_command_buffer, or Qualcomm's
// cl_qcom_recordable_queues. Without an extension they are a list.
#ifndef ROMOU_OPENCL_RECORDER_H_
#define ROMOU_OPENCL_RECORDER_H_

#include <memory>
#include <string>

#include "cl_api.h"
#include "device.h"

namespace romou::opencl {

/// Recorded launches of one device. Not thread-safe.
class Recorder {
 public:
  /// Create a recorder with the first of the two extensions that the driver has. Without them, and if not `by_driver`, it is a list of launches.
  static std::unique_ptr<Recorder> create(Device& device, bool by_driver);

  virtual ~Recorder() = default;
  /// Record a launch of a kernel with the arguments that it has now.
  virtual void add(cl_kernel kernel, const std::string& name, cl_uint dimensions, const size_t* global, const size_t* local) = 0;
  virtual void finish() = 0;
  /// What launches are recorded in, for a person.
  virtual const char* what() const = 0;
  /// The name of the enqueueing call, for errors.
  virtual const char* call() const = 0;
  /// Enqueue all launches on one of the device's queues. Return an event if the next run has to wait for it.
  virtual cl_event enqueue(cl_command_queue queue) = 0;
};

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_RECORDER_H_
