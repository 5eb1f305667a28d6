// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <tvm/ffi/error.h>

#include <cstdlib>
#include <sstream>

#include "loader.h"
#include "statistics.h"

namespace romou::opencl {
namespace {

/// What the user asks for, and what the source does: romou/passes/exact_division.py marks divisions whose last bit counts.
std::string options_for(const Device& device, const std::string& source) {
  const char* given = std::getenv("ROMOU_OPENCL_BUILD_OPTIONS");
  std::string options = given == nullptr ? "" : given;
  if (device.facts().divides_exactly && source.find("/* correctly rounded */") != std::string::npos) {
    options += " -cl-fp32-correctly-rounded-divide-sqrt";
  }
  return options;
}

}  // namespace

void Kernel::build(Device& device, const std::string& name, const std::string& source) {
  const char* content = source.c_str();
  const size_t length = source.size();
  cl_int code = CL_SUCCESS;
  if (!program) {
    Program made(api().clCreateProgramWithSource(device.context(), 1, &content, &length, &code));
    device.check(code, "clCreateProgramWithSource", name);
    cl_device_id id = device.id();
    code = api().clBuildProgram(made.get(), 1, &id, options_for(device, source).c_str(), nullptr, nullptr);
    if (code != CL_SUCCESS) {
      size_t bytes = 0;
      api().clGetProgramBuildInfo(made.get(), id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
      std::string log(bytes, '\0');
      if (bytes != 0) api().clGetProgramBuildInfo(made.get(), id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
      while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
      device.check(code, "clBuildProgram", name, "source saved in " + save_source(name, source) + "\nbuild log:\n" + log);
    }
    program = std::move(made);
  }
  create(device, name, program.get());
}

void Kernel::create(Device& device, const std::string& name, cl_program built) {
  cl_int code = CL_SUCCESS;
  handle = KernelObject(api().clCreateKernel(built, name.c_str(), &code));
  device.check(code, "clCreateKernel", name);
}

void Kernel::set_argument(Device& device, const std::string& name, size_t index, size_t bytes, const void* value) {
  const cl_int code = api().clSetKernelArg(handle.get(), static_cast<cl_uint>(index), bytes, value);
  if (code != CL_SUCCESS) device.check(code, "clSetKernelArg", name, "argument " + std::to_string(index));
}

void Kernel::enqueue(Device& device, Device::Queue& queue, const std::string& name, cl_uint dimensions, const size_t* global,
                     const size_t* local) {
  cl_event event = nullptr;
  const bool is_logged = queue.is_logging();
  const cl_int code =
      api().clEnqueueNDRangeKernel(queue.handle(), handle.get(), dimensions, nullptr, global, local, 0, nullptr, is_logged ? &event : nullptr);
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
    api().clGetKernelWorkGroupInfo(handle.get(), device.id(), CL_KERNEL_WORK_GROUP_SIZE, sizeof(allowed), &allowed, nullptr);
    detail << "the kernel allows a work group of " << allowed << ", the device of " << device.facts().max_work_group_size;
    device.check(code, "clEnqueueNDRangeKernel", name, detail.str());
  }
  statistics().launches += 1;
  if (is_logged) queue.log_event(Event(event));
}

}  // namespace romou::opencl
