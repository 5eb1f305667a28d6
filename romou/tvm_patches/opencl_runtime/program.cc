// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <tvm/ffi/error.h>

#include <cstdlib>
#include <sstream>

#include "command_buffer.h"
#include "error.h"
#include "loader.h"
#include "statistics.h"

namespace romou::opencl {

Kernel::~Kernel() {
  if (is_exiting()) return;
  if (handle != nullptr) {
    api().clReleaseKernel(handle);
    statistics().live_kernels -= 1;
  }
  if (program != nullptr) {
    api().clReleaseProgram(program);
    statistics().live_programs -= 1;
  }
}

void Kernel::build(Device& device, const std::string& name, const std::string& source) {
  const char* content = source.c_str();
  const size_t length = source.size();
  cl_int code = CL_SUCCESS;
  if (program == nullptr) {
    cl_program built = api().clCreateProgramWithSource(device.context(), 1, &content, &length, &code);
    check(code, "clCreateProgramWithSource", CallSite{device.label(), name, {}});
    const char* options = std::getenv("ROMOU_OPENCL_BUILD_OPTIONS");
    cl_device_id id = device.id();
    code = api().clBuildProgram(built, 1, &id, options == nullptr ? "" : options, nullptr, nullptr);
    if (code != CL_SUCCESS) {
      size_t bytes = 0;
      api().clGetProgramBuildInfo(built, id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
      std::string log(bytes, '\0');
      if (bytes != 0) api().clGetProgramBuildInfo(built, id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
      while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
      api().clReleaseProgram(built);
      check(code, "clBuildProgram", CallSite{device.label(), name, "source saved in " + save_source(name, source) + "\nbuild log:\n" + log});
    }
    program = built;
    statistics().live_programs += 1;
  }
  create(device, name, program);
}

void Kernel::create(Device& device, const std::string& name, cl_program built) {
  cl_int code = CL_SUCCESS;
  handle = api().clCreateKernel(built, name.c_str(), &code);
  check(code, "clCreateKernel", CallSite{device.label(), name, {}});
  statistics().live_kernels += 1;
}

void Kernel::set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value) {
  const cl_int code = api().clSetKernelArg(handle, static_cast<cl_uint>(index), bytes, value);
  if (code != CL_SUCCESS) check(code, "clSetKernelArg", CallSite{device.label(), name, "argument " + std::to_string(index)});
}

void Kernel::enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global,
                     const size_t* local) {
  if (CommandBuffer* recorded = CommandBuffer::current()) {
    recorded->add(device, *this, name, dimensions, global, local);
    return;
  }
  cl_event event = nullptr;
  const bool is_logged = queue.is_logging();
  const cl_int code =
      api().clEnqueueNDRangeKernel(queue.handle(), handle, dimensions, nullptr, global, local, 0, nullptr, is_logged ? &event : nullptr);
  if (code != CL_SUCCESS) {
    std::ostringstream detail;
    const char* names[] = {"global", "local"};
    const size_t* sizes[] = {global, local};
    for (int which = 0; which < 2; ++which) {
      detail << names[which] << " size (";
      for (cl_uint i = 0; i < dimensions; ++i) detail << (i ? ", " : "") << sizes[which][i];
      detail << "), ";
    }
    size_t allowed = 0;
    api().clGetKernelWorkGroupInfo(handle, device.id(), CL_KERNEL_WORK_GROUP_SIZE, sizeof(allowed), &allowed, nullptr);
    detail << "the kernel allows a work group of " << allowed << ", the device of " << device.facts().max_work_group_size;
    check(code, "clEnqueueNDRangeKernel", CallSite{device.label(), name, detail.str()});
  }
  statistics().launches += 1;
  if (is_logged) queue.log_event(event);
}

}  // namespace romou::opencl
