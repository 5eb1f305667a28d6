// The system's OpenCL library with a flaw, which $STANDIN names: in its command buffers, or another one; or, "recordable queues", with Qualcomm's extension in the
// place of command buffers. $STANDIN_PITCH, texels: with cl_ext_image_from_buffer besides. What is not defined here is found in that library, which this one is linked to: dlsym looks there too.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

bool is(const char* flaw) {
  const char* chosen = std::getenv("STANDIN");
  return chosen != nullptr && std::strcmp(chosen, flaw) == 0;
}

bool makes_images() { return std::getenv("STANDIN_PITCH") != nullptr; }

template <typename Function>
Function real(const char* name) {
  static void* library = dlopen("libOpenCL.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(dlsym(library, name));
}

int32_t refuse(...) { return -5; }

// cl_qcom_recordable_queues. A queue of this property alone records while there is a recording of it, and computes nothing.
constexpr uint64_t kRecordable = 1 << 30;
struct Launch {
  void* kernel;
  std::vector<size_t> global, local;
};
struct Recording {
  std::vector<Launch> launches;
  bool has_ended = false;
};
struct RecordableQueue {
  Recording* recording = nullptr;
};
std::set<void*> recordable;

void* new_recording(void* queue, int32_t* code) {
  *code = recordable.count(queue) != 0 && static_cast<RecordableQueue*>(queue)->recording == nullptr ? 0 : -36;
  return *code == 0 ? static_cast<RecordableQueue*>(queue)->recording = new Recording() : nullptr;
}
int32_t end_recording(Recording* recording) {
  recording->has_ended = true;
  return 0;
}
int32_t release_recording(Recording* recording) {
  for (void* queue : recordable) {
    if (auto* owner = static_cast<RecordableQueue*>(queue); owner->recording == recording) owner->recording = nullptr;
  }
  delete recording;
  return 0;
}
int32_t enqueue_recording(void* queue, Recording* recording, size_t arguments, const void*, size_t offsets, const void*, size_t globals, const void*, size_t locals, const void*,
                          uint32_t count, const void* events, void** event);
int32_t idle(uint32_t, void*, void*, uint32_t, const void*, void** event);

constexpr uint32_t kExtensions = 0x1030;

// cl_ext_image_from_buffer, on a CPU, whose buffers and images are memory of the host: every buffer has memory of this library, and an image over one is an image in this
// memory. The memory is full of NaNs at first. Rows of images over a buffer begin at multiples of $STANDIN_PITCH.
struct Format {
  uint32_t order, type;
  size_t bytes() const { return type == 0x10DD ? 8 : 16; }
};
struct Description {
  uint32_t kind;
  size_t width, height, depth, layers, row_pitch, slice_pitch;
  uint32_t levels, samples;
  void* buffer;
};
struct Bytes {
  char* start;
  size_t count;
};
std::map<void*, Bytes> bytes_of;
constexpr uint64_t kUseHost = 1 << 3, kAllocHost = 1 << 4, kCopyHost = 1 << 5;
constexpr size_t kBase = 64;

size_t pitch_of(const Format& format) { return format.bytes() * std::atoi(std::getenv("STANDIN_PITCH")); }

int32_t image_requirements(void*, const void*, uint64_t, const Format* format, const Description* image, uint32_t what, size_t, size_t* value, size_t*) {
  const size_t row = (image->width * format->bytes() + pitch_of(*format) - 1) / pitch_of(*format) * pitch_of(*format);
  switch (what) {
    case 0x1290:
    case 0x1291:
      return *value = pitch_of(*format), 0;
    case 0x1292:
      return *value = kBase, 0;
    case 0x12B2:
      return *value = row * image->height * std::max<size_t>(image->layers, 1), 0;
  }
  return -30;
}

void* create_in_memory(void* context, uint64_t flags, size_t bytes, int32_t* code) {
  char* start = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  std::memset(start, 0xFF, bytes);
  void* buffer = real<void* (*)(void*, uint64_t, size_t, void*, int32_t*)>("clCreateBuffer")(context, flags | kUseHost, bytes, start, code);
  bytes_of[buffer] = {start, bytes};
  real<int32_t (*)(void*, void (*)(void*, void*), void*)>("clSetMemObjectDestructorCallback")(buffer, [](void*, void* memory) { std::free(memory); }, start);
  return buffer;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* clCreateSubBuffer(void* whole, uint64_t flags, uint32_t kind, const size_t* region, int32_t* code) {
  void* part = real<decltype(&clCreateSubBuffer)>("clCreateSubBuffer")(whole, flags, kind, region, code);
  if (const auto found = bytes_of.find(whole); *code == 0 && found != bytes_of.end()) bytes_of[part] = {found->second.start + region[0], region[1]};
  return part;
}

extern "C" __attribute__((visibility("default"))) void* clCreateImage(void* context, uint64_t flags, const Format* format, const Description* image, void* host, int32_t* code) {
  const auto create = real<decltype(&clCreateImage)>("clCreateImage");
  if (image->buffer == nullptr) return create(context, flags, format, image, host, code);
  const Bytes memory = bytes_of.at(image->buffer);
  const size_t layers = image->kind == 0x10F3 ? image->layers : 1, layer = image->kind == 0x10F3 ? image->slice_pitch : image->row_pitch * image->height;
  const bool fits = layer >= image->row_pitch * image->height && layer * layers <= memory.count;
  const bool is_aligned = image->row_pitch % pitch_of(*format) == 0 && reinterpret_cast<uintptr_t>(memory.start) % kBase == 0;
  if (!fits || !is_aligned || is("refused images")) {
    *code = fits ? -39 : -40;
    return nullptr;
  }
  Description inside = *image;
  inside.buffer = nullptr;
  return create(context, flags | kUseHost, format, &inside, memory.start, code);
}

extern "C" __attribute__((visibility("default"))) int32_t clGetDeviceInfo(void* device, uint32_t what, size_t bytes, void* value, size_t* needed) {
  const auto ask = real<decltype(&clGetDeviceInfo)>("clGetDeviceInfo");
  if (what == kExtensions && (is("recordable queues") || is("performance hint") || makes_images())) {
    std::string text(1 << 14, '\0');
    if (const int32_t code = ask(device, what, text.size(), text.data(), nullptr)) return code;
    text = std::string(text.c_str()) + (is("performance hint") ? " cl_qcom_perf_hint" : is("recordable queues") ? " cl_qcom_recordable_queues" : "");
    if (const size_t found = text.find("cl_khr_command_buffer "); found != std::string::npos) text.erase(found, 22);
    if (makes_images()) text += " cl_ext_image_requirements_info cl_ext_image_from_buffer";
    if (needed != nullptr) *needed = text.size() + 1;
    if (value != nullptr) std::memcpy(value, text.c_str(), std::min(bytes, text.size() + 1));
    return 0;
  }
  const int32_t code = ask(device, what, bytes, value, needed);
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
  if (recordable.count(queue) != 0) {
    Recording* recording = static_cast<RecordableQueue*>(queue)->recording;
    if (recording == nullptr || recording->has_ended || offset != nullptr || count != 0 || event != nullptr) return -59;
    recording->launches.push_back({kernel, {global, global + dimensions}, {local, local + dimensions}});
    return 0;
  }
  static int launches = 0;
  if (is("wrong each 50th time") && ++launches % 50 == 0) {
    return real<int32_t (*)(void*, uint32_t, const void*, void**)>("clEnqueueMarkerWithWaitList")(queue, count, events, event);
  }
  return real<decltype(&clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(queue, kernel, dimensions, offset, global, local, count, events, event);
}

// Prints the properties of contexts, which only Qualcomm's driver knows.
extern "C" __attribute__((visibility("default"))) void* clCreateContext(const intptr_t* properties, uint32_t count, void* const* devices, void* callback, void* data,
                                                                        int32_t* code) {
  if (is("performance hint")) {
    std::printf("properties");
    for (const intptr_t* each = properties; each != nullptr && *each != 0; ++each) std::printf(" %lx", static_cast<long>(*each));
    std::printf("\n");
    std::fflush(stdout);
    properties = nullptr;
  }
  return real<decltype(&clCreateContext)>("clCreateContext")(properties, count, devices, callback, data, code);
}

extern "C" __attribute__((visibility("default"))) void* clCreateBuffer(void* context, uint64_t flags, size_t bytes, void* host, int32_t* code) {
  if (is("small allocations") && bytes > (size_t{64} << 20)) {
    *code = -61;
    return nullptr;
  }
  if (makes_images() && (flags & (kUseHost | kAllocHost | kCopyHost)) == 0) return create_in_memory(context, flags, bytes, code);
  return real<decltype(&clCreateBuffer)>("clCreateBuffer")(context, flags, bytes, host, code);
}

extern "C" __attribute__((visibility("default"))) void* clCreateProgramWithBinary(void* context, uint32_t count, void* const* devices, const size_t* lengths,
                                                                                  const unsigned char** binaries, int32_t* status, int32_t* code) {
  if (is("crashes on binaries")) std::abort();
  return real<decltype(&clCreateProgramWithBinary)>("clCreateProgramWithBinary")(context, count, devices, lengths, binaries, status, code);
}

// The compiler crashes on sources with the text $STANDIN_SOURCE.
extern "C" __attribute__((visibility("default"))) void* clCreateProgramWithSource(void* context, uint32_t count, const char** texts, const size_t* lengths,
                                                                                  int32_t* code) {
  if (is("crashes on source") && std::strstr(texts[0], std::getenv("STANDIN_SOURCE")) != nullptr) std::abort();
  return real<decltype(&clCreateProgramWithSource)>("clCreateProgramWithSource")(context, count, texts, lengths, code);
}

extern "C" __attribute__((visibility("default"))) void* clGetExtensionFunctionAddressForPlatform(void* platform, const char* name) {
  if (is("no functions") && std::strstr(name, "CommandBuffer")) return nullptr;
  if (is("refused") && std::strcmp(name, "clCommandNDRangeKernelKHR") == 0) return reinterpret_cast<void*>(refuse);
  if (makes_images() && std::strcmp(name, "clGetImageRequirementsInfoEXT") == 0) return reinterpret_cast<void*>(image_requirements);
  if (is("recordable queues")) {
    if (std::strcmp(name, "clNewRecordingQCOM") == 0) return reinterpret_cast<void*>(new_recording);
    if (std::strcmp(name, "clEndRecordingQCOM") == 0) return reinterpret_cast<void*>(end_recording);
    if (std::strcmp(name, "clReleaseRecordingQCOM") == 0) return reinterpret_cast<void*>(release_recording);
    if (std::strcmp(name, "clEnqueueRecordingQCOM") == 0) return reinterpret_cast<void*>(enqueue_recording);
  }
  if (is("idle") && std::strcmp(name, "clEnqueueCommandBufferKHR") == 0) return reinterpret_cast<void*>(idle);
  return real<decltype(&clGetExtensionFunctionAddressForPlatform)>("clGetExtensionFunctionAddressForPlatform")(platform, name);
}

namespace {

void* last_queue = nullptr;

// Ends at once, and has computed nothing.
int32_t idle(uint32_t, void*, void*, uint32_t, const void*, void** event) {
  return real<int32_t (*)(void*, uint32_t, const void*, void**)>("clEnqueueMarkerWithWaitList")(last_queue, 0, nullptr, event);
}

int32_t enqueue_recording(void* queue, Recording* recording, size_t arguments, const void*, size_t offsets, const void*, size_t globals, const void*, size_t locals, const void*,
                          uint32_t count, const void* events, void** event) {
  if (!recording->has_ended || recordable.count(queue) != 0 || arguments + offsets + globals + locals + count != 0) return -59;
  for (const Launch& launch : recording->launches) {
    const auto dimensions = static_cast<uint32_t>(launch.global.size());
    const int32_t code = real<decltype(&clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(queue, launch.kernel, dimensions, nullptr, launch.global.data(), launch.local.data(), 0,
                                                                                           nullptr, nullptr);
    if (code != 0) return code;
  }
  return real<int32_t (*)(void*, uint32_t, const void*, void**)>("clEnqueueMarkerWithWaitList")(queue, 0, events, event);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t clReleaseCommandQueue(void* queue) {
  if (recordable.erase(queue) == 0) return real<decltype(&clReleaseCommandQueue)>("clReleaseCommandQueue")(queue);
  delete static_cast<RecordableQueue*>(queue);
  return 0;
}

extern "C" __attribute__((visibility("default"))) void* clCreateCommandQueue(void* context, void* device, uint64_t properties, int32_t* code) {
  if (is("recordable queues") && properties == kRecordable) {
    *code = 0;
    return *recordable.insert(new RecordableQueue()).first;
  }
  return last_queue = real<decltype(&clCreateCommandQueue)>("clCreateCommandQueue")(context, device, properties, code);
}
