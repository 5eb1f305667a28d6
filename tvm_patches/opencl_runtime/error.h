// SPDX-License-Identifier: Apache-2.0
//
// Errors of OpenCL calls: the message names the call, the code, the kernel if there is one, and the device.
#ifndef ROMOU_OPENCL_ERROR_H_
#define ROMOU_OPENCL_ERROR_H_

#include <string>

#include "cl_api.h"

namespace romou::opencl {

/// Return the name of a code: "CL_INVALID_WORK_GROUP_SIZE" for -54, "unknown OpenCL error" for a code that no specification lists.
const char* error_name(cl_int code);

/// Raise RuntimeError "<call> failed: <name> (<code>) ..." if `code` is an error. Empty `device`, `kernel` and `detail` (sizes, limits, explanations)
/// are left out. Use `Device::check` instead if there is a device.
[[noreturn]] void raise_error(cl_int code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail);

/// Print a failure from code that cannot raise, such as destructors. Only the first one in a process is printed, because on a lost device everything
/// fails.
void complain(cl_int code, const char* what) noexcept;

/// Write a kernel's source to $ROMOU_OPENCL_DUMP_DIR, or to a new folder below $TMPDIR that only this user can open. Return the path, or the reason
/// why the source could not be written. Links are never followed, and no file is overwritten.
std::string save_source(const std::string& kernel, const std::string& source);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_ERROR_H_
