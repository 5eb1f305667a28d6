// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

namespace romou::opencl {
namespace {

std::atomic<bool> exiting{false};
std::vector<std::string> offered;
void* offered_driver = nullptr;

std::vector<std::string> candidates() {
  if (const char* chosen = std::getenv("ROMOU_OPENCL_LIBRARY"); chosen != nullptr && *chosen != '\0') {
    // An explicit choice has no fallback: a typing error must not run on another driver unnoticed.
    return {chosen};
  }
  std::vector<std::string> names = {"libOpenCL.so.1", "libOpenCL.so"};
#if defined(__APPLE__)
  names = {"/System/Library/Frameworks/OpenCL.framework/OpenCL"};
#elif defined(__ANDROID__) || defined(__aarch64__) || defined(__arm__)
  // Phones have no ICD loader. Their driver exports the API, Mali's in the GLES library.
  const char* word = sizeof(void*) == 8 ? "lib64" : "lib";
  for (const char* root : {"/vendor/", "/system/vendor/", "/system/"}) {
    for (const char* file :
         {"libOpenCL.so", "libOpenCL-pixel.so", "libOpenCL-car.so", "egl/libGLES_mali.so", "libGLES_mali.so", "libmali.so", "libPVROCL.so"}) {
      names.push_back(std::string(root) + word + "/" + file);
    }
  }
#if !defined(__ANDROID__)
  names.push_back("libmali.so");  // ARM boards with Linux
#endif
#endif
  return names;
}

bool resolve(void* handle, Api* api, std::string* missing) {
  // libOpenCL-pixel.so and -car.so do not export OpenCL's functions, but one function that enables OpenCL and one that returns functions by name.
  const auto lookup = reinterpret_cast<void* (*)(const char*)>(dlsym(handle, "loadOpenCLPointer"));
  if (const auto enable = reinterpret_cast<void (*)()>(dlsym(handle, "enableOpenCL")); lookup != nullptr && enable != nullptr) enable();
  const auto find = [&](const char* name) { return lookup != nullptr ? lookup(name) : dlsym(handle, name); };
#define ROMOU_CL_RESOLVE(result, name, parameters)                     \
  api->name = reinterpret_cast<result(*) parameters>(find(#name)); \
  if (api->name == nullptr) {                                          \
    *missing = #name;                                                  \
    return false;                                                      \
  }
  ROMOU_CL_FUNCTIONS(ROMOU_CL_RESOLVE)
#undef ROMOU_CL_RESOLVE
  api->clGetExtensionFunctionAddressForPlatform =
      reinterpret_cast<void* (*)(cl_platform_id, const char*)>(find("clGetExtensionFunctionAddressForPlatform"));
  api->clCreateSubBuffer = reinterpret_cast<decltype(api->clCreateSubBuffer)>(find("clCreateSubBuffer"));
  api->clEnqueueMapBuffer = reinterpret_cast<decltype(api->clEnqueueMapBuffer)>(find("clEnqueueMapBuffer"));
  api->clEnqueueUnmapMemObject = reinterpret_cast<decltype(api->clEnqueueUnmapMemObject)>(find("clEnqueueUnmapMemObject"));
  return true;
}

/// Open the offered driver. The system does not search the folders of its libraries, so they are opened in order, and then found by name.
void* open_offered(std::string* failure) {
  // An explicit choice has no fallback.
  if (const char* chosen = std::getenv("ROMOU_OPENCL_LIBRARY"); chosen != nullptr && *chosen != '\0') return nullptr;
  void* handle = nullptr;
  for (const std::string& library : offered) {
    handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      *failure += "  " + library + ": " + (reason ? reason : "cannot be opened") + "\n";
      return nullptr;
    }
  }
  return handle;
}

Api* open() {
  auto* found = new Api();
  for (const std::string& name : candidates()) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      found->failure += "  " + name + ": " + (reason ? reason : "cannot be opened") + "\n";
      continue;
    }
    std::string missing;
    if (!resolve(handle, found, &missing)) {
      found->failure += "  " + name + ": opened, but it lacks " + missing + " (OpenCL 1.2 is needed)\n";
      dlclose(handle);
      continue;
    }
    found->loaded = true;
    found->library = name;
    break;
  }
  offered_driver = open_offered(&found->failure);
  if (std::string missing; !found->loaded && offered_driver != nullptr && resolve(offered_driver, found, &missing)) {
    found->loaded = true;
    found->library = offered.back();
  }
  // Registered after the driver's own handlers and therefore run before them.
  if (found->loaded) std::atexit([] { exiting.store(true); });
  return found;
}

}  // namespace

const Api& api() {
  static const Api* instance = open();
  return *instance;
}

void offer_driver(std::vector<std::string> libraries) { offered = std::move(libraries); }

std::vector<Platform> platforms() {
  using GetPlatforms = cl_int (*)(cl_uint, cl_platform_id*, cl_uint*);
  std::vector<Platform> found;
  const auto append = [&](GetPlatforms get, const std::string& library) {
    cl_uint count = 0;
    if (get(0, nullptr, &count) != CL_SUCCESS || count == 0) return;
    std::vector<cl_platform_id> ids(count);
    if (get(count, ids.data(), nullptr) != CL_SUCCESS) return;
    for (cl_platform_id id : ids) {
      // The loader may list the same driver.
      if (std::none_of(found.begin(), found.end(), [&](const Platform& known) { return known.id == id; })) found.push_back({id, library});
    }
  };
  if (!api().loaded) return found;
  append(api().clGetPlatformIDs, api().library);
  if (offered_driver != nullptr) {
    const auto find = reinterpret_cast<void* (*)(const char*)>(dlsym(offered_driver, "clGetExtensionFunctionAddress"));
    const auto get = find == nullptr ? nullptr : reinterpret_cast<GetPlatforms>(find("clIcdGetPlatformIDsKHR"));
    if (get != nullptr) append(get, offered.back());
  }
  return found;
}

bool is_exiting() { return exiting.load(); }

}  // namespace romou::opencl
