// SPDX-License-Identifier: Apache-2.0
//
// Errors of OpenCL calls: the message names the call, the code, the kernel if there is one, and the device.
#ifndef ROMOU_OPENCL_ERROR_H_
#define ROMOU_OPENCL_ERROR_H_

#include <string>

#include "cl_api.h"

namespace romou::opencl {

/// "CL_INVALID_WORK_GROUP_SIZE" for -54; "unknown OpenCL error" for a code that no specification lists.
const char* error_name(cl_int code);

/// Raise RuntimeError "<call> failed: <name> (<code>) ..." if `code` is an error. `device`, `kernel` and `detail` (sizes, limits: anything
/// that explains it) are left out if they are empty. `Device::check` is the way to it.
[[noreturn]] void raise_error(cl_int code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail);

/// Print a failure where nothing can be raised, in destructors: the first time in a process, because a lost device fails everywhere.
void complain(cl_int code, const char* what) noexcept;

/// Write a kernel's source to $ROMOU_OPENCL_DUMP_DIR, or to a new folder below $TMPDIR that only this user can open. Return the path, or a text
/// saying why it could not be written. Links are never followed, and no file is written over.
std::string save_source(const std::string& kernel, const std::string& source);

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_ERROR_H_
