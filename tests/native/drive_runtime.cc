// The OpenCL runtime on a library that fails on demand (fake_opencl.cc), built with sanitizers. Each check is a function; the arguments name those
// to run. It ends with 1 at the first thing that is not so.
#include "command_buffer.cc"
#include "device.cc"
#include "error.cc"
#include "loader.cc"
#include "memory.cc"
#include "program.cc"
#include "program_cache.cc"
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
    copy(Place{nullptr, zeros.data()}, Place{memory.get()}, zeros.size());
  }
  std::shared_ptr<CommandBuffer> recorded(int launches = 2) {
    auto recording = CommandBuffer::begin(device());
    for (int i = 0; i < launches; ++i) launch(kernel, memory.get());
    recording->finish();
    return recording;
  }
  int first_byte() {
    std::vector<unsigned char> found(64);
    copy(Place{memory.get()}, Place{nullptr, found.data()}, found.size());
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
    EXPECT(has(error_of([&] { recording->enqueue(); }), "clEnqueueCommandBufferKHR failed: CL_OUT_OF_RESOURCES"));
    EXPECT(fake_alive("clEnqueueCommandBufferKHR") == 0);
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
  auto recording = CommandBuffer::begin(device());
  launch(work.kernel, work.memory.get());
  EXPECT(CommandBuffer::current() == recording);
  EXPECT(has(error_of([] { CommandBuffer::begin(device()); }), "records a run on"));
  std::thread([&] { recording.reset(); }).join();
  EXPECT(CommandBuffer::current() == nullptr);
  launch(work.kernel, work.memory.get());
  EXPECT(work.first_byte() == 1);
  recording = CommandBuffer::begin(device());
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
  copy(Place{work.memory.get()}, Place{image.get()}, 64);
  copy(Place{image.get()}, Place{other.get()}, 64);
  copy(Place{other.get()}, Place{work.memory.get()}, 64);
  device().finish();
  EXPECT(work.first_byte() == 5);
}

/// Whichever call fails: one error or none, nothing leaks, nothing is used after it was released, no destructor ends the process.
void every_call_fails() {
  std::vector<std::string> calls;
#define NAME(result, name, parameters) calls.push_back(#name);
  ROMOU_CL_FUNCTIONS(NAME)
  ROMOU_CL_COMMAND_BUFFER_FUNCTIONS(NAME)
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
