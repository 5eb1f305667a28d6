// The system's OpenCL library with a flaw, which $STANDIN names: in its command buffers, or another one. What is not defined here is found in that library, which this one
// is linked to: dlsym looks there too.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

bool is(const char* flaw) {
  const char* chosen = std::getenv("STANDIN");
  return chosen != nullptr && std::strcmp(chosen, flaw) == 0;
}

template <typename Function>
Function real(const char* name) {
  static void* library = dlopen("libOpenCL.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(dlsym(library, name));
}

int32_t refuse(...) { return -5; }
int32_t idle(uint32_t, void*, void*, uint32_t, const void*, void** event);

constexpr uint32_t kExtensions = 0x1030;

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t clGetDeviceInfo(void* device, uint32_t what, size_t bytes, void* value, size_t* needed) {
  const int32_t code = real<decltype(&clGetDeviceInfo)>("clGetDeviceInfo")(device, what, bytes, value, needed);
  if (what == kExtensions && value != nullptr && (is("no extension") || is("wrong each 50th time"))) {
    // The longer names of other extensions are no sign of this one.
    if (char* found = std::strstr(static_cast<char*>(value), "cl_khr_command_buffer ")) std::memcpy(found, "cl_khr_command_bufferX", 22);
  }
  return code;
}

// Each 50th kernel computes nothing, and none is recorded.
extern "C" __attribute__((visibility("default"))) int32_t clEnqueueNDRangeKernel(void* queue, void* kernel, uint32_t dimensions, const size_t* offset,
                                                                                const size_t* global, const size_t* local, uint32_t count,
                                                                                const void* events, void** event) {
  static int launches = 0;
  if (is("wrong each 50th time") && ++launches % 50 == 0) {
    return real<int32_t (*)(void*, uint32_t, const void*, void**)>("clEnqueueMarkerWithWaitList")(queue, count, events, event);
  }
  return real<decltype(&clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(queue, kernel, dimensions, offset, global, local, count, events, event);
}

extern "C" __attribute__((visibility("default"))) void* clCreateBuffer(void* context, uint64_t flags, size_t bytes, void* host, int32_t* code) {
  if (is("small allocations") && bytes > (size_t{64} << 20)) {
    *code = -61;
    return nullptr;
  }
  return real<decltype(&clCreateBuffer)>("clCreateBuffer")(context, flags, bytes, host, code);
}

extern "C" __attribute__((visibility("default"))) void* clCreateProgramWithBinary(void* context, uint32_t count, void* const* devices, const size_t* lengths,
                                                                                  const unsigned char** binaries, int32_t* status, int32_t* code) {
  if (is("crashes on binaries")) std::abort();
  return real<decltype(&clCreateProgramWithBinary)>("clCreateProgramWithBinary")(context, count, devices, lengths, binaries, status, code);
}

extern "C" __attribute__((visibility("default"))) void* clGetExtensionFunctionAddressForPlatform(void* platform, const char* name) {
  if (is("no functions") && std::strstr(name, "CommandBuffer")) return nullptr;
  if (is("refused") && std::strcmp(name, "clCommandNDRangeKernelKHR") == 0) return reinterpret_cast<void*>(refuse);
  if (is("idle") && std::strcmp(name, "clEnqueueCommandBufferKHR") == 0) return reinterpret_cast<void*>(idle);
  return real<decltype(&clGetExtensionFunctionAddressForPlatform)>("clGetExtensionFunctionAddressForPlatform")(platform, name);
}

namespace {

void* last_queue = nullptr;

// Ends at once, and has computed nothing.
int32_t idle(uint32_t, void*, void*, uint32_t, const void*, void** event) {
  return real<int32_t (*)(void*, uint32_t, const void*, void**)>("clEnqueueMarkerWithWaitList")(last_queue, 0, nullptr, event);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* clCreateCommandQueue(void* context, void* device, uint64_t properties, int32_t* code) {
  return last_queue = real<decltype(&clCreateCommandQueue)>("clCreateCommandQueue")(context, device, properties, code);
}
