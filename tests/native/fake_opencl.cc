// An OpenCL library without a device, for errors that no driver makes on demand: any call fails when it is told to, handles are counted, and
// each use of one that was released is noticed. Commands are done when they are enqueued; a kernel adds one to each byte of its first argument.
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cl_api.h"

namespace romou::opencl {

struct Object {
  int references = 1;
};
struct PlatformHandle : Object {};
struct DeviceHandle : Object {};
struct ContextHandle : Object {};
struct QueueHandle : Object {
  bool is_recordable = false;
  struct RecordingHandle* recording = nullptr;
};
struct ProgramHandle : Object {};
struct EventHandle : Object {};
struct MemHandle : Object {
  std::vector<unsigned char> bytes;
};
struct KernelHandle : Object {
  MemHandle* memory = nullptr;
};
struct CommandBufferHandle : Object {
  std::vector<KernelHandle*> kernels;
};
struct RecordingHandle : Object {
  std::vector<KernelHandle*> kernels;
  bool has_ended = false;
};

namespace {

struct Failure {
  cl_int code;
  int skipped;  ///< so many calls are right before
};

std::mutex mutex;
std::condition_variable changed;
std::map<Object*, std::string> alive;  // with the call that made it
std::map<std::string, Failure> failures;
std::map<std::string, int> calls;
std::atomic<int> misused{0};
bool is_held = false;
bool divides_exactly = false;
std::string build_options;

PlatformHandle the_platform;
DeviceHandle the_device;

/// The code with which a call has to fail; CL_SUCCESS.
cl_int code_of(const std::string& call) {
  calls[call] += 1;
  auto found = failures.find(call);
  if (found == failures.end()) found = failures.find("*");
  if (found == failures.end() || found->second.skipped-- > 0) return CL_SUCCESS;
  return found->second.code;
}

bool is_misused(const char* call, Object* object) {
  if (alive.count(object) != 0) return false;
  std::fprintf(stderr, "fake_opencl: %s of a handle that is not alive\n", call);
  misused += 1;
  return true;
}

/// What each call begins with: the handles that it is given, and its failure.
cl_int begin(const char* call, std::initializer_list<Object*> handles) {
  for (Object* handle : handles) {
    if (is_misused(call, handle)) return -30;
  }
  return code_of(call);
}

template <typename T>
T* make(const char* call, cl_int* code, std::initializer_list<Object*> handles) {
  std::lock_guard<std::mutex> lock(mutex);
  *code = begin(call, handles);
  if (*code != CL_SUCCESS) return nullptr;
  T* made = new T();
  alive[made] = call;
  return made;
}

/// A failing release gives its handle back all the same: the device is lost, and so is what was on it.
template <typename T>
cl_int release(const char* call, T* handle) {
  std::lock_guard<std::mutex> lock(mutex);
  const cl_int code = begin(call, {handle});
  if (alive.count(handle) != 0 && --handle->references == 0) {
    alive.erase(handle);
    delete handle;
  }
  return code;
}

cl_int command(const char* call, std::initializer_list<Object*> handles, cl_event* event) {
  std::lock_guard<std::mutex> lock(mutex);
  const cl_int code = begin(call, handles);
  if (code == CL_SUCCESS && event != nullptr) {
    *event = new EventHandle();
    alive[*event] = call;
  }
  return code;
}

void run(KernelHandle* kernel) {
  std::lock_guard<std::mutex> lock(mutex);
  if (kernel->memory == nullptr || is_misused("the kernel's argument", kernel->memory)) return;
  for (unsigned char& byte : kernel->memory->bytes) byte += 1;
}

cl_int answer(const void* bytes, size_t count, size_t room, void* value, size_t* needed) {
  if (needed != nullptr) *needed = count;
  if (value == nullptr) return CL_SUCCESS;
  if (room < count) return -30;
  std::memcpy(value, bytes, count);
  return CL_SUCCESS;
}

/// $FAKE_EXTENSION: the one of both kinds of recorded launches that the library has.
const char* extension() {
  const char* chosen = std::getenv("FAKE_EXTENSION");
  return chosen == nullptr ? "cl_khr_command_buffer" : chosen;
}

size_t texels(const size_t* extent) { return extent[0] * extent[1] * extent[2]; }

}  // namespace

extern "C" {

// For tests: the calls of `call` fail with `code` after `skipped` right ones ("*": any call), until it is told again; 0: none fails.
void fake_fail(const char* call, int code, int skipped) {
  std::lock_guard<std::mutex> lock(mutex);
  failures.clear();
  if (code != CL_SUCCESS) failures[call] = {code, skipped};
}
// While it is held, nobody comes back from waiting for an event.
void fake_hold(bool held) {
  std::lock_guard<std::mutex> lock(mutex);
  is_held = held;
  changed.notify_all();
}
// Handles that `call` made and that are alive.
int fake_alive(const char* call) {
  std::lock_guard<std::mutex> lock(mutex);
  int count = 0;
  for (const auto& [object, maker] : alive) count += *call == '\0' || maker == call;
  return count;
}
int fake_calls(const char* call) {
  std::lock_guard<std::mutex> lock(mutex);
  return calls[call];
}
int fake_misused() { return misused; }
// Whether the device can divide fp32 numbers correctly rounded; asked when devices are listed.
void fake_divides_exactly() { divides_exactly = true; }
// Those of the last program.
const char* fake_build_options() { return build_options.c_str(); }

cl_int clGetPlatformIDs(cl_uint, cl_platform_id* ids, cl_uint* count) {
  if (ids != nullptr) *ids = &the_platform;
  if (count != nullptr) *count = 1;
  return CL_SUCCESS;
}
cl_int clGetPlatformInfo(cl_platform_id, cl_uint, size_t room, void* value, size_t* needed) { return answer("fake", 5, room, value, needed); }
cl_int clGetDeviceIDs(cl_platform_id, cl_bitfield, cl_uint, cl_device_id* ids, cl_uint* count) {
  if (ids != nullptr) *ids = &the_device;
  if (count != nullptr) *count = 1;
  return CL_SUCCESS;
}
cl_int clGetDeviceInfo(cl_device_id, cl_uint what, size_t room, void* value, size_t* needed) {
  const auto text = [&](const char* found) { return answer(found, std::strlen(found) + 1, room, value, needed); };
  const auto number = [&](auto found) { return answer(&found, sizeof(found), room, value, needed); };
  // More dimensions than kernels of ours have.
  const size_t sizes[4] = {1024, 512, 64, 7};
  switch (what) {
    case CL_DEVICE_TYPE:
      return number(CL_DEVICE_TYPE_CPU);
    case CL_DEVICE_SINGLE_FP_CONFIG:
      return number(divides_exactly ? CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT : cl_bitfield{0});
    case CL_DEVICE_EXTENSIONS:
      return text(extension());
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
      return answer(sizes, sizeof(sizes), room, value, needed);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
    case CL_DEVICE_IMAGE_SUPPORT:
      return number(cl_uint{1});
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
    case CL_DEVICE_IMAGE2D_MAX_WIDTH:
    case CL_DEVICE_IMAGE2D_MAX_HEIGHT:
    case CL_DEVICE_IMAGE_MAX_ARRAY_SIZE:
      return number(size_t{1024});
    case CL_DEVICE_NAME:
    case CL_DEVICE_VENDOR:
    case CL_DRIVER_VERSION:
    case CL_DEVICE_VERSION:
      return text("fake");
    default:
      return -30;
  }
}

cl_context clCreateContext(const intptr_t*, cl_uint, const cl_device_id*, ContextCallback, void*, cl_int* code) {
  return make<ContextHandle>("clCreateContext", code, {});
}
cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id, cl_bitfield properties, cl_int* code) {
  cl_command_queue made = make<QueueHandle>("clCreateCommandQueue", code, {context});
  if (made != nullptr) made->is_recordable = properties == CL_QUEUE_RECORDABLE_QCOM;
  return made;
}
cl_int clReleaseCommandQueue(cl_command_queue queue) { return release("clReleaseCommandQueue", queue); }
cl_int clFlush(cl_command_queue queue) { return command("clFlush", {queue}, nullptr); }
cl_int clFinish(cl_command_queue queue) { return command("clFinish", {queue}, nullptr); }

cl_mem clCreateBuffer(cl_context context, cl_bitfield, size_t bytes, void*, cl_int* code) {
  cl_mem made = make<MemHandle>("clCreateBuffer", code, {context});
  if (made != nullptr) made->bytes.resize(bytes);
  return made;
}
cl_mem clCreateImage(cl_context context, cl_bitfield, const cl_image_format*, const cl_image_desc* shape, void*, cl_int* code) {
  cl_mem made = make<MemHandle>("clCreateImage", code, {context});
  if (made != nullptr) made->bytes.resize(16 * shape->image_width * shape->image_height * shape->image_array_size);
  return made;
}
cl_int clReleaseMemObject(cl_mem memory) { return release("clReleaseMemObject", memory); }

cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool, size_t at, size_t bytes, void* host, cl_uint, const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueReadBuffer", {queue, memory}, event);
  if (code == CL_SUCCESS) std::memcpy(host, memory->bytes.data() + at, bytes);
  return code;
}
cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool, size_t at, size_t bytes, const void* host, cl_uint, const cl_event*,
                            cl_event* event) {
  const cl_int code = command("clEnqueueWriteBuffer", {queue, memory}, event);
  if (code == CL_SUCCESS) std::memcpy(memory->bytes.data() + at, host, bytes);
  return code;
}
void* clEnqueueMapBuffer(cl_command_queue queue, cl_mem memory, cl_bool, cl_bitfield, size_t at, size_t, cl_uint, const cl_event*, cl_event* event, cl_int* code) {
  *code = command("clEnqueueMapBuffer", {queue, memory}, event);
  return *code == CL_SUCCESS ? memory->bytes.data() + at : nullptr;
}
cl_int clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem memory, void*, cl_uint, const cl_event*, cl_event* event) {
  return command("clEnqueueUnmapMemObject", {queue, memory}, event);
}
cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t, size_t, size_t bytes, cl_uint, const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueCopyBuffer", {queue, from, to}, event);
  if (code == CL_SUCCESS) std::memcpy(to->bytes.data(), from->bytes.data(), bytes);
  return code;
}
cl_int clEnqueueReadImage(cl_command_queue queue, cl_mem memory, cl_bool, const size_t*, const size_t* extent, size_t, size_t, void* host, cl_uint,
                          const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueReadImage", {queue, memory}, event);
  if (code == CL_SUCCESS) std::memcpy(host, memory->bytes.data(), 16 * texels(extent));
  return code;
}
cl_int clEnqueueWriteImage(cl_command_queue queue, cl_mem memory, cl_bool, const size_t*, const size_t* extent, size_t, size_t, const void* host, cl_uint,
                           const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueWriteImage", {queue, memory}, event);
  if (code == CL_SUCCESS) std::memcpy(memory->bytes.data(), host, 16 * texels(extent));
  return code;
}
cl_int clEnqueueCopyImage(cl_command_queue queue, cl_mem from, cl_mem to, const size_t*, const size_t*, const size_t* extent, cl_uint, const cl_event*,
                          cl_event* event) {
  const cl_int code = command("clEnqueueCopyImage", {queue, from, to}, event);
  if (code == CL_SUCCESS) std::memcpy(to->bytes.data(), from->bytes.data(), 16 * texels(extent));
  return code;
}
cl_int clEnqueueCopyImageToBuffer(cl_command_queue queue, cl_mem from, cl_mem to, const size_t*, const size_t* extent, size_t, cl_uint, const cl_event*,
                                  cl_event* event) {
  const cl_int code = command("clEnqueueCopyImageToBuffer", {queue, from, to}, event);
  if (code == CL_SUCCESS) std::memcpy(to->bytes.data(), from->bytes.data(), 16 * texels(extent));
  return code;
}
cl_int clEnqueueCopyBufferToImage(cl_command_queue queue, cl_mem from, cl_mem to, size_t, const size_t*, const size_t* extent, cl_uint, const cl_event*,
                                  cl_event* event) {
  const cl_int code = command("clEnqueueCopyBufferToImage", {queue, from, to}, event);
  if (code == CL_SUCCESS) std::memcpy(to->bytes.data(), from->bytes.data(), 16 * texels(extent));
  return code;
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint, const char**, const size_t*, cl_int* code) {
  return make<ProgramHandle>("clCreateProgramWithSource", code, {context});
}
cl_program clCreateProgramWithBinary(cl_context context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int* status, cl_int* code) {
  *status = CL_SUCCESS;
  return make<ProgramHandle>("clCreateProgramWithBinary", code, {context});
}
cl_int clGetProgramInfo(cl_program program, cl_uint what, size_t room, void* value, size_t* needed) {
  const cl_int code = command("clGetProgramInfo", {program}, nullptr);
  if (code != CL_SUCCESS) return code;
  const size_t bytes = 6;
  if (what == CL_PROGRAM_BINARY_SIZES) return answer(&bytes, sizeof(bytes), room, value, needed);
  std::memcpy(*static_cast<unsigned char**>(value), "binary", bytes);
  return CL_SUCCESS;
}
cl_int clBuildProgram(cl_program program, cl_uint, const cl_device_id*, const char* options, BuildCallback, void*) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    build_options = options;
  }
  return command("clBuildProgram", {program}, nullptr);
}
cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_uint, size_t room, void* value, size_t* needed) {
  return answer("as it was told", 15, room, value, needed);
}
cl_int clReleaseProgram(cl_program program) { return release("clReleaseProgram", program); }
cl_kernel clCreateKernel(cl_program program, const char*, cl_int* code) { return make<KernelHandle>("clCreateKernel", code, {program}); }
cl_int clSetKernelArg(cl_kernel kernel, cl_uint, size_t bytes, const void* value) {
  const cl_int code = command("clSetKernelArg", {kernel}, nullptr);
  if (code != CL_SUCCESS || bytes != sizeof(cl_mem)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  cl_mem memory = nullptr;
  std::memcpy(&memory, value, bytes);
  // A number may be as large as a handle.
  if (alive.count(memory) != 0) kernel->memory = memory;
  return code;
}
cl_int clGetKernelInfo(cl_kernel, cl_uint, size_t, void*, size_t*) { return -30; }
cl_int clGetKernelWorkGroupInfo(cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*) { return -30; }
cl_int clReleaseKernel(cl_kernel kernel) { return release("clReleaseKernel", kernel); }
cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,
                              cl_event* event) {
  const cl_int code = command("clEnqueueNDRangeKernel", {queue, kernel}, event);
  if (code == CL_SUCCESS && queue->is_recordable) {
    if (queue->recording == nullptr || queue->recording->has_ended) return -59;
    queue->recording->kernels.push_back(kernel);
  } else if (code == CL_SUCCESS) {
    run(kernel);
  }
  return code;
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint, const cl_event*, cl_event* event) {
  return command("clEnqueueMarkerWithWaitList", {queue}, event);
}
cl_int clWaitForEvents(cl_uint count, const cl_event* events) {
  std::unique_lock<std::mutex> lock(mutex);
  for (cl_uint i = 0; i < count; ++i) {
    if (is_misused("clWaitForEvents", events[i])) return -58;
  }
  const cl_int code = code_of("clWaitForEvents");
  changed.wait(lock, [] { return !is_held; });
  return code;
}
cl_int clGetEventProfilingInfo(cl_event event, cl_uint, size_t room, void* value, size_t* needed) {
  const cl_ulong now = 1;
  const cl_int code = command("clGetEventProfilingInfo", {event}, nullptr);
  return code == CL_SUCCESS ? answer(&now, sizeof(now), room, value, needed) : code;
}
cl_int clRetainEvent(cl_event event) {
  const cl_int code = command("clRetainEvent", {event}, nullptr);
  if (code == CL_SUCCESS) event->references += 1;
  return code;
}
cl_int clReleaseEvent(cl_event event) { return release("clReleaseEvent", event); }

// The extensions.
static cl_recording_qcom clNewRecordingQCOM(cl_command_queue queue, cl_int* code) {
  cl_recording_qcom made = make<RecordingHandle>("clNewRecordingQCOM", code, {queue});
  if (made != nullptr) queue->recording = made;
  return made;
}
static cl_int clEndRecordingQCOM(cl_recording_qcom recording) {
  const cl_int code = command("clEndRecordingQCOM", {recording}, nullptr);
  if (code == CL_SUCCESS) recording->has_ended = true;
  return code;
}
static cl_int clReleaseRecordingQCOM(cl_recording_qcom recording) { return release("clReleaseRecordingQCOM", recording); }
static cl_int clEnqueueRecordingQCOM(cl_command_queue queue, cl_recording_qcom recording, size_t, const void*, size_t, const void*, size_t, const void*, size_t,
                                     const void*, cl_uint, const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueRecordingQCOM", {queue, recording}, event);
  if (code == CL_SUCCESS && (queue->is_recordable || !recording->has_ended)) return -59;
  for (KernelHandle* kernel : recording->kernels) {
    if (code == CL_SUCCESS) run(kernel);
  }
  return code;
}
static cl_command_buffer_khr clCreateCommandBufferKHR(cl_uint, const cl_command_queue* queue, const cl_ulong*, cl_int* code) {
  return make<CommandBufferHandle>("clCreateCommandBufferKHR", code, {*queue});
}
static cl_int clFinalizeCommandBufferKHR(cl_command_buffer_khr buffer) { return command("clFinalizeCommandBufferKHR", {buffer}, nullptr); }
static cl_int clReleaseCommandBufferKHR(cl_command_buffer_khr buffer) { return release("clReleaseCommandBufferKHR", buffer); }
static cl_int clEnqueueCommandBufferKHR(cl_uint, cl_command_queue*, cl_command_buffer_khr buffer, cl_uint, const cl_event*, cl_event* event) {
  const cl_int code = command("clEnqueueCommandBufferKHR", {buffer}, event);
  for (KernelHandle* kernel : buffer->kernels) {
    if (code == CL_SUCCESS) run(kernel);
  }
  return code;
}
static cl_int clCommandNDRangeKernelKHR(cl_command_buffer_khr buffer, cl_command_queue, const cl_ulong*, cl_kernel kernel, cl_uint, const size_t*,
                                        const size_t*, const size_t*, cl_uint, const cl_uint*, cl_uint*, void**) {
  const cl_int code = command("clCommandNDRangeKernelKHR", {buffer, kernel}, nullptr);
  if (code == CL_SUCCESS) buffer->kernels.push_back(kernel);
  return code;
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id, const char* name) {
  const std::map<std::string, void*> known = {
#define KNOWN(function) {#function, reinterpret_cast<void*>(function)}
      KNOWN(clCreateCommandBufferKHR), KNOWN(clFinalizeCommandBufferKHR), KNOWN(clReleaseCommandBufferKHR), KNOWN(clEnqueueCommandBufferKHR),
      KNOWN(clCommandNDRangeKernelKHR), KNOWN(clNewRecordingQCOM), KNOWN(clEndRecordingQCOM), KNOWN(clReleaseRecordingQCOM), KNOWN(clEnqueueRecordingQCOM)};
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

}  // extern "C"
}  // namespace romou::opencl
