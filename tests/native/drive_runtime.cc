// The OpenCL runtime on a library that fails on demand (fake_opencl.cc), built with sanitizers. Each check is a function; the arguments name those
// to run. It ends with 1 at the first thing that is not so.
#include "command_buffer.cc"
#include "device.cc"
#include "device_api.cc"
#include "error.cc"
#include "loader.cc"
#include "mapping.cc"
#include "memory.cc"
#include "module.cc"
#include "program.cc"
#include "program_cache.cc"
#include "recorder.cc"
#include "source_kernel.cc"
#include "stream.h"
#include "timer.cc"

#include <tvm/support/serializer.h>

#include <functional>
#include <map>
#include <thread>

extern "C" {
void fake_fail(const char* call, int code, int skipped);
void fake_hold(bool held);
int fake_alive(const char* call);
int fake_calls(const char* call);
int fake_misused();
void fake_divides_exactly();
const char* fake_build_options();
}

namespace romou::opencl {
namespace {

#define EXPECT(condition)                                                    \
  if (!(condition)) {                                                        \
    std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    std::exit(1);                                                            \
  }

constexpr cl_int kLost = -5;  // CL_OUT_OF_RESOURCES: what drivers say of a device that is gone

const char* const kEnqueues = std::getenv("FAKE_EXTENSION") == nullptr ? "clEnqueueCommandBufferKHR" : "clEnqueueRecordingQCOM";

Device& device() { return DeviceTable::global().at(0); }

/// What `work` raises; empty if it raises nothing.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const tvm::ffi::Error& error) {
    return error.message();
  }
  return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void launch(Kernel& kernel, Memory* memory) {
  const size_t size = 1;
  const std::shared_ptr<CommandBuffer> recorded = CommandBuffer::current();
  if (recorded != nullptr) {
    Kernel& own = recorded->own(kernel, "k");
    own.set_argument(device(), "k", 0, sizeof(memory->handle), &memory->handle);
    recorded->keep(memory);
    return recorded->add(device(), own, "k", 1, &size, &size);
  }
  std::lock_guard<std::mutex> lock(kernel.mutex);
  kernel.set_argument(device(), "k", 0, sizeof(memory->handle), &memory->handle);
  Device::Queue queue = device().hold_queue();
  kernel.enqueue(device(), queue, "k", 1, &size, &size);
}

struct Work {
  Kernel kernel;
  SharedMemory memory;
  Work() {
    kernel.build(device(), "k", "source");
    memory.reset(create_buffer(device(), 64));
    std::vector<unsigned char> zeros(64);
    copy_from_host(reinterpret_cast<const char*>(zeros.data()), Place{memory.get()}, zeros.size());
  }
  std::shared_ptr<CommandBuffer> recorded(int launches = 2) {
    auto recording = CommandBuffer::begin(device(), true);
    for (int i = 0; i < launches; ++i) launch(kernel, memory.get());
    recording->finish();
    return recording;
  }
  int first_byte() {
    std::vector<unsigned char> found(64);
    copy_to_host(Place{memory.get()}, reinterpret_cast<char*>(found.data()), found.size());
    return found[0];
  }
};

/// A wait that fails releases its event once, and the recording is usable and can go.
void failed_waits() {
  Work work;
  {
    const auto recording = work.recorded();
    recording->enqueue();
    fake_fail("clWaitForEvents", kLost, 0);
    EXPECT(has(error_of([&] { recording->enqueue(); }), (std::string(kEnqueues) + " failed: CL_OUT_OF_RESOURCES").c_str()));
    EXPECT(fake_alive(kEnqueues) == 0);
    fake_fail("", 0, 0);
    recording->enqueue();
  }
  EXPECT(work.first_byte() == 4);
}

/// Nobody's launch waits for another thread that waits for a recording's last launch.
void waiting_holds_no_queue() {
  Work work;
  const auto recording = work.recorded();
  recording->enqueue();
  fake_hold(true);
  const int before = fake_calls("clWaitForEvents");
  std::thread other([&] { recording->enqueue(); });
  while (fake_calls("clWaitForEvents") == before) std::this_thread::yield();
  launch(work.kernel, work.memory.get());
  fake_hold(false);
  other.join();
  EXPECT(work.first_byte() == 5);
}

/// A recording may end on another thread; the one that recorded goes on without it.
void dropped_elsewhere() {
  Work work;
  auto recording = CommandBuffer::begin(device(), true);
  launch(work.kernel, work.memory.get());
  EXPECT(CommandBuffer::current() == recording);
  EXPECT(has(error_of([] { CommandBuffer::begin(device(), true); }), "records a run on"));
  std::thread([&] { recording.reset(); }).join();
  EXPECT(CommandBuffer::current() == nullptr);
  launch(work.kernel, work.memory.get());
  EXPECT(work.first_byte() == 1);
  recording = CommandBuffer::begin(device(), true);
  launch(work.kernel, work.memory.get());
  std::thread([&] { recording->finish(); }).join();
  EXPECT(CommandBuffer::current() == nullptr);
}

/// A buffer above the bound brings commands to the queue with profiling, and what was enqueued before is done.
void large_buffers_are_profiled() {
  device().profile_above(1000);
  Work work;
  launch(work.kernel, work.memory.get());
  EXPECT(device().queues()[0] != device().queues()[1]);
  const SharedMemory large(create_buffer(device(), 1000));
  EXPECT(device().queues()[0] == device().queues()[1]);
  const int queues = fake_alive("clCreateCommandQueue");
  const SharedMemory another(create_buffer(device(), 2000));
  launch(work.kernel, work.memory.get());
  EXPECT(work.first_byte() == 2);
  EXPECT(fake_alive("clCreateCommandQueue") == queues);
}

/// A round of everything, as a model's run does it.
void round() {
  Work work;
  EventLog log(device());
  log.start();
  launch(work.kernel, work.memory.get());
  log.stop();
  log.total_ns();
  const auto recording = work.recorded();
  recording->enqueue();
  recording->time_ns();
  const SharedMemory image(create_image(device(), ImageShape{2, 2, 1, 16})), other(create_image(device(), ImageShape{4, 1, 1, 16}));
  copy_on_device(Place{work.memory.get()}, Place{image.get()}, 64);
  copy_on_device(Place{image.get()}, Place{other.get()}, 64);
  copy_on_device(Place{other.get()}, Place{work.memory.get()}, 64);
  device().finish();
  EXPECT(work.first_byte() == 5);
}

/// Whichever call fails: one error or none, nothing leaks, nothing is used after it was released, no destructor ends the process.
void every_call_fails() {
  std::vector<std::string> calls;
#define NAME(result, name, parameters) calls.push_back(#name);
  ROMOU_CL_FUNCTIONS(NAME)
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(NAME)
  ROMOU_CL_RECORDING_FUNCTIONS(NAME)
#undef NAME
  round();
  const int queues = fake_alive("clCreateContext") + fake_alive("clCreateCommandQueue");
  EXPECT(fake_alive("") == queues);
  int errors = 0;
  calls.push_back("*");
  for (const std::string& call : calls) {
    for (int skipped = 0; skipped < (call == "*" ? 60 : 6); ++skipped) {
      fake_fail(call.c_str(), kLost, skipped);
      const std::string message = error_of(round);
      fake_fail("", 0, 0);
      errors += !message.empty();
      EXPECT(message.empty() || has(message, "CL_OUT_OF_RESOURCES (-5)"));
      EXPECT(CommandBuffer::current() == nullptr);
      EXPECT(fake_alive("") == queues);
      EXPECT(statistics().live_events == 0 && statistics().live_kernels == 0 && statistics().live_buffers == 0 && statistics().live_images == 0);
      round();
    }
  }
  EXPECT(errors > 80);
}

/// Launches, timers and recordings of many threads: each launch counts once.
void threads() {
  constexpr int kThreads = 8, kRounds = 25;
  Work shared;
  const auto recording = shared.recorded();
  std::vector<std::thread> started;
  for (int t = 0; t < kThreads; ++t) {
    started.emplace_back([&, t] {
      Work own;
      for (int i = 0; i < kRounds; ++i) {
        launch(own.kernel, own.memory.get());
        if (t % 2 == 0) recording->enqueue();
        if (t % 4 == 1) recording->time_ns();
        const auto mine = own.recorded(1);
        mine->enqueue();
        EventLog log(device());
        log.start();
        launch(own.kernel, own.memory.get());
        log.stop();
        log.total_ns();
      }
      EXPECT(own.first_byte() == 3 * kRounds);
    });
  }
  for (std::thread& thread : started) thread.join();
  EXPECT(shared.first_byte() == (6 * kRounds * 2) % 256);
  EXPECT(statistics().live_events == 1);  // of the last launch of the recording
}

/// Devices of more than three dimensions; tensors whose bytes no number counts.
void sizes() {
  EXPECT(device().facts().max_work_item_sizes[0] == 1024 && device().facts().max_work_item_sizes[2] == 64);
  const DLDataType type{kDLFloat, 32, 1};
  const int64_t huge[] = {1ll << 32, 1ll << 32, 1ll << 32, 4}, flat[] = {1ll << 62, 1, 1, 4};
  for (const int64_t* shape : {huge, flat}) EXPECT(has(error_of([&] { image_shape_of(4, shape, type, "global.texture", "OpenCL", true); }), "too large"));
}

/// What a damaged library says of its length is not believed.
void lengths() {
  for (const uint64_t length : {uint64_t{1} << 33, uint64_t{1} << 62, ~uint64_t{0}}) {
    StringStream stream;
    stream.Write(length);
    stream.content += std::string(1000, 'x');
    std::string text;
    EXPECT(!stream.Read(&text));
    EXPECT(text.capacity() < 1000);
  }
  StringStream stream;
  const std::string long_text(1 << 20, 'x');
  stream.Write(long_text);
  std::string text;
  EXPECT(stream.Read(&text) && text == long_text);
}

using tvm::ffi::Module;
using tvm::runtime::Tensor;

constexpr DLDataType kFloat{kDLFloat, 32, 1};
constexpr DLDevice kDevice{kDLOpenCL, 0};

Function function_of(const char* name) { return Function::GetGlobalRequired(name); }

Tensor zeros(tvm::ffi::Shape shape, const char* scope = "global") {
  size_t bytes = 4;
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  Tensor made = Tensor::Empty(shape, kFloat, kDevice, String(scope));
  made.CopyFromBytes(std::vector<char>(bytes).data(), bytes);
  return made;
}

int first_byte_of(const Tensor& tensor) {
  std::vector<char> found(64);
  tensor.CopyToBytes(found.data(), found.size());
  return found[0];
}

/// A module is launched, saved and loaded. What is cut off is refused; what is damaged is refused, or loaded, and nothing is read behind its end.
void modules() {
  const std::string source = "// Function: k\n__kernel void k(__global float* p, int n);\n__kernel void k(__global float* p, int n) {}\n";
  Map<String, FunctionInfo> functions;
  functions.Set("k", FunctionInfo("k", {DLDataType{kDLOpaqueHandle, 64, 1}, DLDataType{kDLInt, 32, 1}}, {"threadIdx.x"}, {}));
  Map<String, String> texts;
  texts.Set("cl", source);
  const Module made = function_of("ffi.Module.create.opencl")(Bytes(source), String("cl"), functions, texts).cast<Module>();
  EXPECT(made->InspectSource("cl") == source && !made->GetFunction("other").has_value());
  const Function load = function_of("ffi.Module.load_from_bytes.opencl");
  const Bytes saved = made->SaveToBytes();
  const Module loaded = load(saved).cast<Module>();
  const Tensor tensor = zeros({16});
  for (const Module& module : {made, loaded}) module->GetFunction("k").value()(tensor->data, 7, 4);
  EXPECT(first_byte_of(tensor) == 2);
  for (size_t length = 0; length < saved.size(); ++length) {
    EXPECT(has(error_of([&] { load(Bytes(std::string(saved.data(), length))); }), "cannot be read"));
  }
  int refused = 0;
  for (size_t i = 0; i < saved.size(); ++i) {
    std::string damaged(saved.data(), saved.size());
    damaged[i] = static_cast<char>(~damaged[i]);
    refused += !error_of([&] { load(Bytes(damaged)); }).empty();
  }
  EXPECT(refused > 16);
}

/// Kernels written by hand: arguments of each type, and what is no argument.
void source_kernels() {
  const Module kernel = function_of("romou.opencl.source_kernel")(0, String("source"), String("k")).cast<Module>();
  const Function launch = kernel->GetFunction("launch").value(), enqueue = kernel->GetFunction("enqueue").value();
  const Tensor tensor = zeros({16}), other = zeros({8});
  launch(String("miuf"), 4, 2, tensor, 1, 2, 0.5);
  enqueue(String("m"), 4, 2, tensor);
  EXPECT(first_byte_of(tensor) == 2 && kernel->GetFunction("private_bytes").value()().cast<int64_t>() == 0);
  EXPECT(has(error_of([&] { launch(String("m"), 4, 2); }), "an argument for every letter"));
  EXPECT(has(error_of([&] { launch(); }), "an argument for every letter"));
  EXPECT(has(error_of([&] { launch(String("x"), 4, 2, 1); }), "unknown type 'x'"));
  const Function copied = function_of("romou.opencl.timed_copy");
  copied(tensor, other, 32);
  EXPECT(first_byte_of(tensor) == 2);
  for (const int64_t bytes : {int64_t{33}, int64_t{-1}, int64_t{1} << 62}) EXPECT(has(error_of([&] { copied(tensor, other, bytes); }), "cannot copy"));
}

/// Tensors through TVM's device API: buffers and images, copied and let go.
void tensors() {
  const int before = fake_alive("");
  {
    const Tensor buffer = zeros({4, 4}), image = zeros({2, 2, 4}, "global.texture");
    EXPECT(first_byte_of(buffer) == 0 && first_byte_of(image) == 0);
    EXPECT(!error_of([&] { Tensor::Empty({1 << 30, 1 << 30, 1 << 30, 4}, kFloat, kDevice, String("global.texture")); }).empty());
    EXPECT(!error_of([&] { Tensor::Empty({4}, kFloat, DLDevice{kDLOpenCL, 9}); }).empty());
    for (int skipped = 0; skipped < 4; ++skipped) {
      fake_fail("*", kLost, skipped);
      error_of([&] { zeros({4, 4}); });
      fake_fail("", 0, 0);
    }
  }
  EXPECT(fake_alive("") <= before + 2);  // the context and the queue, if it was the first to ask for them
}

/// A mapped buffer is written and read in place: no copy is enqueued. Whichever call fails, nothing leaks.
void mapping() {
  const int before = fake_alive(""), copies = fake_calls("clEnqueueWriteBuffer") + fake_calls("clEnqueueReadBuffer");
  const auto work = [] {
    Tensor tensor = function_of("romou.opencl.mappable")(tvm::ffi::Shape({4, 4}), kFloat, kDevice).cast<Tensor>();
    DLTensor* view = const_cast<DLTensor*>(tensor.GetDLTensorPtr());
    for (const bool is_written : {true, false}) {
      auto* place = static_cast<float*>(function_of("romou.opencl.map")(view, is_written).cast<void*>());
      if (is_written) std::fill(place, place + 16, 7.0f);
      EXPECT(place[15] == 7.0f);
      function_of("romou.opencl.unmap")(view, static_cast<void*>(place));
      function_of("romou.opencl.flush")(0);
    }
  };
  work();
  EXPECT(copies == fake_calls("clEnqueueWriteBuffer") + fake_calls("clEnqueueReadBuffer"));
  for (int skipped = 0; skipped < 8; ++skipped) {
    fake_fail("*", kLost, skipped);
    error_of(work);
    fake_fail("", 0, 0);
  }
  const Tensor image = zeros({2, 2, 4}, "global.texture");
  EXPECT(has(error_of([&] { function_of("romou.opencl.map")(const_cast<DLTensor*>(image.GetDLTensorPtr()), true); }), "an image has no place"));
  EXPECT(fake_alive("") <= before + 3);  // the image, the context and the queue
}

std::string options_of(const char* source) {
  setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-w", 1);
  Kernel kernel;
  kernel.build(device(), "k", source);
  unsetenv("ROMOU_OPENCL_BUILD_OPTIONS");
  return fake_build_options();
}

/// A device that cannot divide correctly rounded is not asked to, and no kernel that has no need of it.
void plain_options() {
  EXPECT(options_of("rint(/* correctly rounded */(x / y))") == "-w");
}
void exact_options() {
  fake_divides_exactly();
  EXPECT(options_of("rint(/* correctly rounded */(x / y))") == "-w -cl-fp32-correctly-rounded-divide-sqrt");
  EXPECT(options_of("x / y") == "-w");
}

}  // namespace
}  // namespace romou::opencl

int main(int argc, char** argv) {
  using namespace romou::opencl;
  const std::map<std::string, void (*)()> checks = {{"failed_waits", failed_waits},
                                                    {"waiting_holds_no_queue", waiting_holds_no_queue},
                                                    {"dropped_elsewhere", dropped_elsewhere},
                                                    {"large_buffers_are_profiled", large_buffers_are_profiled},
                                                    {"every_call_fails", every_call_fails},
                                                    {"threads", threads},
                                                    {"sizes", sizes},
                                                    {"lengths", lengths},
                                                    {"modules", modules},
                                                    {"source_kernels", source_kernels},
                                                    {"tensors", tensors},
                                                    {"mapping", mapping},
                                                    {"plain_options", plain_options},
                                                    {"exact_options", exact_options}};
  if (argc == 4 && std::string(argv[1]) == "save") {
    std::printf("%s\n", save_source(argv[2], argv[3]).c_str());
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    checks.at(argv[i])();
    EXPECT(fake_misused() == 0);
    std::printf("%s\n", argv[i]);
  }
  return 0;
}
