// SPDX-License-Identifier: Apache-2.0
#include "error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>

namespace romou::opencl {
namespace {

struct CodeName {
  cl_int code;
  const char* name;
};

constexpr CodeName kCodeNames[] = {
    {0, "CL_SUCCESS"},
    {-1, "CL_DEVICE_NOT_FOUND"},
    {-2, "CL_DEVICE_NOT_AVAILABLE"},
    {-3, "CL_COMPILER_NOT_AVAILABLE"},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    {-5, "CL_OUT_OF_RESOURCES"},
    {-6, "CL_OUT_OF_HOST_MEMORY"},
    {-7, "CL_PROFILING_INFO_NOT_AVAILABLE"},
    {-8, "CL_MEM_COPY_OVERLAP"},
    {-9, "CL_IMAGE_FORMAT_MISMATCH"},
    {-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED"},
    {-11, "CL_BUILD_PROGRAM_FAILURE"},
    {-12, "CL_MAP_FAILURE"},
    {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET"},
    {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {-15, "CL_COMPILE_PROGRAM_FAILURE"},
    {-16, "CL_LINKER_NOT_AVAILABLE"},
    {-17, "CL_LINK_PROGRAM_FAILURE"},
    {-18, "CL_DEVICE_PARTITION_FAILED"},
    {-19, "CL_KERNEL_ARG_INFO_NOT_AVAILABLE"},
    {-30, "CL_INVALID_VALUE"},
    {-31, "CL_INVALID_DEVICE_TYPE"},
    {-32, "CL_INVALID_PLATFORM"},
    {-33, "CL_INVALID_DEVICE"},
    {-34, "CL_INVALID_CONTEXT"},
    {-35, "CL_INVALID_QUEUE_PROPERTIES"},
    {-36, "CL_INVALID_COMMAND_QUEUE"},
    {-37, "CL_INVALID_HOST_PTR"},
    {-38, "CL_INVALID_MEM_OBJECT"},
    {-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR"},
    {-40, "CL_INVALID_IMAGE_SIZE"},
    {-41, "CL_INVALID_SAMPLER"},
    {-42, "CL_INVALID_BINARY"},
    {-43, "CL_INVALID_BUILD_OPTIONS"},
    {-44, "CL_INVALID_PROGRAM"},
    {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
    {-46, "CL_INVALID_KERNEL_NAME"},
    {-47, "CL_INVALID_KERNEL_DEFINITION"},
    {-48, "CL_INVALID_KERNEL"},
    {-49, "CL_INVALID_ARG_INDEX"},
    {-50, "CL_INVALID_ARG_VALUE"},
    {-51, "CL_INVALID_ARG_SIZE"},
    {-52, "CL_INVALID_KERNEL_ARGS"},
    {-53, "CL_INVALID_WORK_DIMENSION"},
    {-54, "CL_INVALID_WORK_GROUP_SIZE"},
    {-55, "CL_INVALID_WORK_ITEM_SIZE"},
    {-56, "CL_INVALID_GLOBAL_OFFSET"},
    {-57, "CL_INVALID_EVENT_WAIT_LIST"},
    {-58, "CL_INVALID_EVENT"},
    {-59, "CL_INVALID_OPERATION"},
    {-60, "CL_INVALID_GL_OBJECT"},
    {-61, "CL_INVALID_BUFFER_SIZE"},
    {-62, "CL_INVALID_MIP_LEVEL"},
    {-63, "CL_INVALID_GLOBAL_WORK_SIZE"},
    {-64, "CL_INVALID_PROPERTY"},
    {-65, "CL_INVALID_IMAGE_DESCRIPTOR"},
    {-66, "CL_INVALID_COMPILER_OPTIONS"},
    {-67, "CL_INVALID_LINKER_OPTIONS"},
    {-68, "CL_INVALID_DEVICE_PARTITION_COUNT"},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
    {-1138, "CL_INVALID_COMMAND_BUFFER_KHR"},
    {-1139, "CL_INVALID_SYNC_POINT_WAIT_LIST_KHR"},
    {-1140, "CL_INCOMPATIBLE_COMMAND_QUEUE_KHR"},
    // NVIDIA's undocumented code for a kernel that read or wrote out of bounds.
    {-9999, "NV_ILLEGAL_BUFFER_READ_OR_WRITE"},
};

/// Return $ROMOU_OPENCL_DUMP_DIR, or this process's folder, which the first call makes under an unpredictable name.
std::string dump_folder() {
  if (const char* chosen = std::getenv("ROMOU_OPENCL_DUMP_DIR"); chosen != nullptr && *chosen != '\0') {
    mkdir(chosen, 0700);
    return chosen;
  }
  static const std::string made = [] {
    const char* root = std::getenv("TMPDIR");
    std::string name = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/romou-opencl-XXXXXX";
    return mkdtemp(name.data()) == nullptr ? std::string("/nonexistent") : name;
  }();
  return made;
}

}  // namespace

const char* error_name(cl_int code) {
  for (const CodeName& entry : kCodeNames) {
    if (entry.code == code) return entry.name;
  }
  return "unknown OpenCL error";
}

void raise_error(cl_int code, const char* call, const std::string& device, const std::string& kernel, const std::string& detail) {
  std::ostringstream text;
  text << call << " failed: " << error_name(code) << " (" << code << ")";
  if (!kernel.empty()) text << "; kernel " << kernel;
  if (!device.empty()) text << "; device " << device;
  if (!detail.empty()) text << "; " << detail;
  TVM_FFI_THROW(RuntimeError) << text.str();
  TVM_FFI_UNREACHABLE();
}

void complain(cl_int code, const char* what) noexcept {
  static std::atomic_flag is_told;
  if (code == CL_SUCCESS || is_told.test_and_set()) return;
  std::fprintf(stderr, "romou: %s failed: %s (%d); the device may be lost. Later failures of this kind are not told.\n", what, error_name(code), code);
}

std::string save_source(const std::string& kernel, const std::string& source) {
  // Named by content: building the same broken kernel a thousand times leaves one file.
  char digest[20];
  std::snprintf(digest, sizeof(digest), "%016zx", std::hash<std::string>{}(source));
  const std::string path = dump_folder() + "/" + kernel.substr(0, 100) + "-" + digest + ".cl";
  // Other users may be able to write to the folder, so an existing file of the name, above all a link, is left as it is.
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  struct stat found {};
  if (file < 0 && errno == EEXIST && lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid()) return path;
  const bool is_written = file >= 0 && write(file, source.data(), source.size()) == static_cast<ssize_t>(source.size());
  const int reason = errno;
  if (file >= 0) close(file);
  return is_written ? path : "(could not be written to " + path + ": " + std::strerror(reason) + ")";
}

}  // namespace romou::opencl
