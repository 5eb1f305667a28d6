// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <vector>

namespace romou::opencl {
namespace {

std::atomic<bool> exiting{false};

std::vector<std::string> candidates() {
  if (const char* chosen = std::getenv("ROMOU_OPENCL_LIBRARY"); chosen != nullptr && *chosen != '\0') {
    // An explicit choice has no fallback: a typing error must not run on another driver unnoticed.
    return {chosen};
  }
  std::vector<std::string> names = {"libOpenCL.so.1", "libOpenCL.so"};
#if defined(__APPLE__)
  names = {"/System/Library/Frameworks/OpenCL.framework/OpenCL"};
#elif defined(__ANDROID__) || defined(__aarch64__) || defined(__arm__)
  // Phones have no ICD loader; the driver itself exports the API. Mali drivers keep it in the GLES library.
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
  // libOpenCL-pixel.so and -car.so export two functions in the place of OpenCL's: one that turns it on and one that looks names up.
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
  return true;
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
    // Registered after the driver's own handlers and therefore run before them.
    std::atexit([] { exiting.store(true); });
    break;
  }
  return found;
}

}  // namespace

const Api& api() {
  static const Api* instance = open();
  return *instance;
}

bool is_exiting() { return exiting.load(); }

}  // namespace romou::opencl
