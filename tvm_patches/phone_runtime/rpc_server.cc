// SPDX-License-Identifier: Apache-2.0
//
// A TVM RPC server without Python, for a phone: the protocol of tvm/rpc/server.py and tracker.py, one session at a time.
//
// The parent listens, shakes hands and watches. Each session runs in a child, so that a crashing or hanging kernel ends only its session.
// The parent never opens OpenCL or Vulkan: drivers do not survive a fork.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "handshakes.h"
#include "options.h"
#include "process.h"
#include "session.h"
#include "sockets.h"
#include "tracker.h"

namespace romou::phone {
namespace {

constexpr int kTickMs = 2000;  // between two queries to the tracker, as in tvm/rpc/server.py
constexpr int kWatchMs = 200;
constexpr int kReapMs = 20000;  // longest wait for a killed child, which may hang in the driver

/// The request of a client. It is refused without the right key.
struct Greeting {
  bool is_accepted = false;
  double limit_s = 0;  ///< longest time for the whole session, or 0 for no limit
};

Greeting answer(const Guest& guest, const std::string& expected_key, const std::string& own_key) {
  const int fd = guest.connection.get();
  // The answer is short: it fits into an empty socket buffer, or the other end does not read.
  set_patience(fd, kHandshakeMs);
  std::istringstream words(guest.greeting());
  std::string key, option;
  words >> key;
  if (key != "client:" + expected_key) {
    send_number(fd, kMismatch);
    return {};
  }
  Greeting greeting{true, 0};
  while (words >> option) {
    if (option.starts_with("-timeout=")) greeting.limit_s = std::atof(option.c_str() + std::strlen("-timeout="));
  }
  send_number(fd, kMagic);
  send_text(fd, "server:" + own_key);
  set_patience(fd, 0);
  return greeting;
}

/// Wait for the end of a child and its processes. Return why it was killed, or an empty text if it was not.
std::string watch(pid_t child, const Pulse& pulse, const Options& options, double limit_s, int* status) {
  const int64_t started = now_ms();
  const auto is_over = [&] { return waitpid(child, status, WNOHANG) == child; };
  std::string reason;
  for (int pause_ms = 1; !is_over(); pause_ms = std::min(2 * pause_ms, kWatchMs)) {
    const double silent_s = 1e-3 * static_cast<double>(now_ms() - pulse.last_ms.load(std::memory_order_relaxed));
    const double total_s = 1e-3 * static_cast<double>(now_ms() - started);
    char text[200] = "";
    if (options.timeout_s > 0 && silent_s > options.timeout_s) {
      std::snprintf(text, sizeof(text), "nothing was sent or received for %g s (--timeout of the server)", options.timeout_s);
    } else if (limit_s > 0 && total_s > limit_s) {
      std::snprintf(text, sizeof(text), "your session of %g s has expired; ask for a larger session_timeout", limit_s);
    } else if (stopping) {
      std::snprintf(text, sizeof(text), "the server is stopped");
    }
    if (*text != '\0') {
      reason = text;
      kill(-child, SIGKILL);
      for (const int64_t until = now_ms() + kReapMs; now_ms() < until && !is_over();) usleep(1000 * 20);
      return reason;
    }
    usleep(1000 * static_cast<useconds_t>(pause_ms));
  }
  kill(-child, SIGKILL);
  return reason;
}

void run_session(const Guest& guest, Handle& listener, Guests& others, const Options& options, double limit_s, Pulse* pulse) {
  const Handle& connection = guest.connection;
  const std::string& peer = guest.peer;
  std::string folder = options.work_dir + "/romou-rpc-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    say("cannot make a folder in %s: %s", options.work_dir.c_str(), std::strerror(errno));
    return;
  }
  const int on = 1;
  setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(connection.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  pulse->beat();
  say("session with %s", peer.c_str());
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // A separate process group: processes that the driver starts end with it.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGINT, SIG_DFL);
    listener.reset();
    others.clear();
    // Skip exit handlers, because drivers may hang in theirs.
    _exit(serve(connection.get(), folder, pulse));
  }
  if (child < 0) {
    say("cannot start a session: %s", std::strerror(errno));
  } else {
    setpgid(child, child);
    int status = 0;
    const std::string reason = watch(child, *pulse, options, limit_s, &status);
    // Remove the folder before the end of the session is announced.
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    if (!reason.empty()) {
      say("session with %s was ended: %s", peer.c_str(), reason.c_str());
      try {
        set_patience(connection.get(), kHandshakeMs);
        ffi::Function::GetGlobalRequired("rpc.ReturnException")(connection.get(), ffi::String("RPCSessionTimeoutError: " + reason));
      } catch (const std::exception&) {  // the client is gone
      }
    } else if (WIFSIGNALED(status)) {
      say("session with %s died of signal %d (%s)", peer.c_str(), WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
      say("session with %s is over%s", peer.c_str(), WEXITSTATUS(status) == 0 ? "" : ", with an error");
    }
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

void accept_sessions(const Options& options, Handle& listener) {
  // A page of memory that parent and children share.
  void* page = mmap(nullptr, sizeof(Pulse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) refuse(std::string("mmap: ") + std::strerror(errno));
  Pulse* pulse = new (page) Pulse();
  Tracker tracker(options, port_of(listener.get()));
  tracker.offer();
  Guests guests;
  while (!stopping) {
    const std::optional<Guest> guest = guests.next(listener.get(), kTickMs);
    if (!guest) {
      tracker.ping();
      continue;
    }
    Greeting greeting;
    try {
      greeting = answer(*guest, tracker.is_connected() ? tracker.match_key() : options.key, options.key);
      if (!greeting.is_accepted) say("refused %s: wrong key", guest->peer.c_str());
    } catch (const std::exception& error) {
      say("refused %s: %s", guest->peer.c_str(), error.what());
    }
    if (!greeting.is_accepted) continue;
    run_session(*guest, listener, guests, options, greeting.limit_s, pulse);
    tracker.offer();
  }
}

constexpr const char* kKinds[] = {"opencl", "vulkan"};

/// Load the device runtimes beside this program. The server works without them, because clients may want only the CPU.
void load_runtimes() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* kind : kKinds) {
    const fs::path library = folder / (std::string("libtvm_runtime_") + kind + ".so");
    if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) say("warning: no runtime of %s devices: %s", kind, dlerror());
  }
}

/// Return the library opened for a kind and its devices, or the reason why there are none.
json::Object describe(const std::string& kind) {
  json::Object answer;
  try {
    const auto ask = [&](const char* name) { return ffi::Function::GetGlobalRequired("romou." + kind + "." + name)().cast<ffi::String>(); };
    answer.Set(ffi::String("library"), ask("library"));
    answer.Set(ffi::String("failure"), ask("failure"));
    answer.Set(ffi::String("devices"), json::Parse(ask("devices")));
  } catch (const std::exception& error) {
    answer.Set(ffi::String("failure"), ffi::String(error.what()));
  }
  return answer;
}

/// Print library and devices of each kind. `romou phone status` reads it.
int print_devices() {
  json::Object answer;
  for (const char* kind : kKinds) answer.Set(ffi::String(kind), describe(kind));
  say("%s", json::Stringify(answer).c_str());
  // Skip exit handlers, because drivers may hang in theirs.
  _exit(0);
}

}  // namespace
}  // namespace romou::phone

int main(int argc, char** argv) {
  using namespace romou::phone;
  const Options options = parse(argc, argv);
  if (options.is_query) {
    load_runtimes();
    return print_devices();
  }
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction stop {};
  stop.sa_handler = [](int) { stopping = 1; };  // without SA_RESTART: waiting calls return
  sigaction(SIGTERM, &stop, nullptr);
  sigaction(SIGINT, &stop, nullptr);
  Handle listener = listen_on(options.host, options.port);
  load_runtimes();
  say("serving on %s:%d", options.host.c_str(), port_of(listener.get()));
  if (!is_loopback(listener.get())) {
    say("warning: %s is open to the network; whoever knows the key can run any program here, and the key travels in the clear", options.host.c_str());
  }
  accept_sessions(options, listener);
  say("stopped");
  return 0;
}
