// SPDX-License-Identifier: Apache-2.0
//
// Opens the OpenCL ICD loader (or a phone's vendor library) at run time and holds the functions found in it.
#ifndef ROMOU_OPENCL_LOADER_H_
#define ROMOU_OPENCL_LOADER_H_

#include <string>
#include <vector>

#include "cl_api.h"

namespace romou::opencl {

/// Function pointers of the opened library. All are set, or `loaded` is false and none may be called.
struct Api {
#define ROMOU_CL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  ROMOU_CL_FUNCTIONS(ROMOU_CL_DECLARE)
#undef ROMOU_CL_DECLARE
  /// Null if the library has no extensions.
  void* (*clGetExtensionFunctionAddressForPlatform)(cl_platform_id, const char*) = nullptr;
  /// OpenCL 1.1. Null if the library is older.
  cl_mem (*clCreateSubBuffer)(cl_mem, cl_bitfield, cl_uint, const void*, cl_int*) = nullptr;
  /// Null in a library that maps nothing.
  void* (*clEnqueueMapBuffer)(cl_command_queue, cl_mem, cl_bool, cl_bitfield, size_t, size_t, cl_uint, const cl_event*, cl_event*, cl_int*) = nullptr;
  cl_int (*clEnqueueUnmapMemObject)(cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*) = nullptr;
  bool loaded = false;
  std::string library;  ///< name or path of the opened library, or empty
  std::string failure;  ///< why no library was opened: one line per attempt
};

/// Return the process-wide library, opened at the first call and never closed (drivers do not survive dlclose).
///
/// Search order: only $ROMOU_OPENCL_LIBRARY if it is set. Otherwise the system's ICD loader, then the vendor paths of phones, then the offered
/// driver.
const Api& api();

/// Offer a driver that no ICD loader lists: its libraries in the order of opening, the driver last. Only before the first call of `api`.
void offer_driver(std::vector<std::string> libraries);

/// A platform, and the library that listed it.
struct Platform {
  cl_platform_id id;
  std::string library;
};

/// Return the platforms of the opened library, then the platforms of the offered driver. Every object of an ICD driver begins with a table of its
/// functions, so the loader's functions also work on objects of a driver that it has not loaded.
std::vector<Platform> platforms();

/// True once the process runs its exit handlers. Drivers may have shut down, so nothing is released any more.
bool is_exiting();

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_LOADER_H_
