// SPDX-License-Identifier: Apache-2.0
//
// Errors of OpenCL calls: the message names the call, the code, the kernel where there is one, and the device.
#ifndef ROMOU_OPENCL_ERROR_H_
#define ROMOU_OPENCL_ERROR_H_

#include <string>

#include "cl_api.h"

namespace romou::opencl {

/// "CL_INVALID_WORK_GROUP_SIZE" for -54; "unknown OpenCL error" for a code that no specification lists.
const char* error_name(cl_int code);

/// Where a call was made; empty fields are left out of the message.
struct CallSite {
  std::string device;  ///< "opencl:0 'name' (platform)"
  std::string kernel;
  std::string detail;  ///< sizes, limits: whatever helps to see why
};

/// Raise RuntimeError "<call> failed: <name> (<code>) ..." unless `code` is CL_SUCCESS.
void check(cl_int code, const char* call, const CallSite& site);

/// Raise as above for a call without a site.
inline void check(cl_int code, const char* call, const std::string& device) {
  if (code != CL_SUCCESS) check(code, call, CallSite{device, {}, {}});
}

/// Write a kernel's source to $ROMOU_OPENCL_DUMP_DIR (default: a folder of the user below $TMPDIR) and return the path, or a
/// text saying why it could not be written.
std::string save_source(const std::string& kernel, const std::string& source);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_ERROR_H_
