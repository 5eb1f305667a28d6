// SPDX-License-Identifier: Apache-2.0
//
// A TVM RPC server without Python, for a phone: the protocol of tvm/rpc/server.py and tracker.py, one session at a time.
//
// The parent listens, shakes hands and watches; each session runs in a child, so that a kernel that crashes or hangs takes down nothing else.
// The parent never opens OpenCL: drivers do not survive a fork.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;
namespace fs = std::filesystem;

// tvm/rpc/base.py.
constexpr int32_t kMagic = 0xff271, kTrackerMagic = 0x2f271, kMismatch = kMagic + 2;
constexpr int kSuccess = 0, kPut = 3, kUpdateInfo = 5, kGetPendingMatchKeys = 7;

constexpr int kHandshakeMs = 5000;      // a client that says nothing keeps nobody waiting for longer
constexpr int kTrackerPingMs = 2000;    // as in tvm/rpc/server.py
constexpr int kTrackerRetryMs = 3000;
constexpr int kUnusedKeyPings = 3;      // after so many, a key that was given away and never came back is replaced
constexpr int kWatchMs = 200;
constexpr int kReapMs = 20000;          // a killed child may hang in the driver; it is not waited for longer
constexpr size_t kMaxKeyBytes = 4096;
constexpr size_t kPieceBytes = 1 << 20;

volatile std::sig_atomic_t stopping = 0;

struct Options {
  std::string host = "127.0.0.1";
  int port = 9090;
  std::string key;
  std::string tracker_host;
  int tracker_port = 0;
  double timeout_s = 300;
  std::string work_dir;
  bool is_query = false;  ///< print the OpenCL devices and end
};

constexpr const char* kUsage =
    "usage: romou_rpc_server --key KEY [--host 127.0.0.1] [--port 9090] [--tracker HOST:PORT] [--timeout SECONDS] [--work-dir FOLDER]\n"
    "Serves this device's OpenCL to a TVM or Romou host. It runs whatever a client with the right key sends, and nothing is encrypted.\n"
    "  --key       what a client has to name; required\n"
    "  --host      address to listen on; anything but loopback lets the network in\n"
    "  --port      port to listen on; 0: any free one\n"
    "  --tracker   report to this TVM tracker\n"
    "  --timeout   end a session in which nothing was sent or received for so long: a kernel that hangs, a host that is gone; 0: never (300)\n"
    "  --work-dir  where uploaded modules are kept during a session\n"
    "  --devices   print this device's OpenCL library and devices as JSON, and serve nobody\n";

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void say(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
}

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "romou_rpc_server: %s\n", message.c_str());
  std::exit(2);
}

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

// ---- sockets

/// Closes what it holds.
class Handle {
 public:
  explicit Handle(int fd = -1) : fd_(fd) {}
  Handle(Handle&& other) noexcept : fd_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Handle() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

struct Disconnected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void set_patience(int fd, int milliseconds) {
  const timeval limit{milliseconds / 1000, (milliseconds % 1000) * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void send_all(int fd, const void* bytes, size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count != 0;) {
    const ssize_t n = send(fd, at, count, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

void receive_all(int fd, void* bytes, size_t count) {
  for (char* at = static_cast<char*>(bytes); count != 0;) {
    const ssize_t n = recv(fd, at, count, 0);
    if (n < 0 && errno == EINTR && !stopping) continue;
    if (n <= 0) throw Disconnected(n == 0 ? "closed by the other side" : std::strerror(errno));
    at += n;
    count -= static_cast<size_t>(n);
  }
}

// TVM's protocol is little-endian on every machine that it runs on.
void send_number(int fd, int32_t value) { send_all(fd, &value, sizeof(value)); }
int32_t receive_number(int fd) {
  int32_t value = 0;
  receive_all(fd, &value, sizeof(value));
  return value;
}
void send_text(int fd, std::string_view text) {
  send_number(fd, static_cast<int32_t>(text.size()));
  send_all(fd, text.data(), text.size());
}
std::string receive_text(int fd, size_t limit) {
  const int32_t size = receive_number(fd);
  if (size < 0 || static_cast<size_t>(size) > limit) throw Disconnected("it does not speak TVM's protocol");
  std::string text(static_cast<size_t>(size), '\0');
  receive_all(fd, text.data(), text.size());
  return text;
}

/// Call `use(const addrinfo&) -> bool` with each address of the host until one is taken; the last reason if none is.
template <typename F>
std::string try_addresses(const std::string& host, int port, int flags, F use) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0) return gai_strerror(code);
  std::string reason = "no address";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (use(*each)) {
      reason.clear();
      break;
    }
    reason = std::strerror(errno);
  }
  freeaddrinfo(found);
  return reason;
}

Handle listen_on(const Options& options) {
  Handle listener;
  const std::string reason = try_addresses(options.host, options.port, AI_PASSIVE, [&](const addrinfo& at) {
    listener.reset(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
    const int on = 1;
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return bind(listener.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(listener.get(), 16) == 0;
  });
  if (!reason.empty()) refuse("cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " + reason);
  return listener;
}

sockaddr_storage own_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

int port_of(int fd) {
  const sockaddr_storage address = own_address(fd);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(int fd) {
  const sockaddr_storage address = own_address(fd);
  if (address.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

std::string peer_name(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  return std::string(host) + ":" + port;
}

// ---- the tracker

/// Reports this server to a tracker under its key and a random match key, which a client has to name in the place of the key.
class Tracker {
 public:
  Tracker(const Options& options, int port) : options_(options), port_(port) {}

  bool is_wanted() const { return !options_.tracker_host.empty(); }
  bool is_connected() const { return static_cast<bool>(connection_); }
  const std::string& match_key() const { return match_key_; }

  /// Connect if that is due, and offer the server under a new match key.
  void offer() {
    if (!is_wanted()) return;
    attempt([&] {
      if (!connection_) connect_now();
      if (connection_) put();
    });
  }

  /// Between sessions: is the tracker still there, and was the key given to a client that never came?
  void ping() {
    if (!is_wanted()) return;
    if (!connection_) return offer();
    attempt([&] {
      const json::Array pending = ask(json::Array{kGetPendingMatchKeys}).cast<json::Array>();
      const bool is_pending = std::any_of(pending.begin(), pending.end(), [&](const ffi::Any& k) { return std::string(k.cast<ffi::String>()) == match_key_; });
      unused_pings_ = is_pending ? 0 : unused_pings_ + 1;
      if (unused_pings_ > kUnusedKeyPings) put();
    });
  }

 private:
  template <typename F>
  void attempt(F work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (connection_) say("lost the tracker (%s); trying again", error.what());
      connection_.reset();
      retry_at_ = now_ms() + kTrackerRetryMs;
    }
  }

  void connect_now() {
    if (now_ms() < retry_at_) return;
    retry_at_ = now_ms() + kTrackerRetryMs;
    Handle fresh;
    const std::string reason = try_addresses(options_.tracker_host, options_.tracker_port, 0, [&](const addrinfo& at) {
      fresh.reset(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
      set_patience(fresh.get(), kHandshakeMs);
      return connect(fresh.get(), at.ai_addr, at.ai_addrlen) == 0;
    });
    if (!reason.empty()) {
      if (!is_missed_) say("no tracker at %s:%d (%s); trying again", options_.tracker_host.c_str(), options_.tracker_port, reason.c_str());
      is_missed_ = true;
      return;
    }
    send_number(fresh.get(), kTrackerMagic);
    if (receive_number(fresh.get()) != kTrackerMagic) throw Disconnected("what answers there is no TVM tracker");
    connection_ = std::move(fresh);
    is_missed_ = false;
    // The tracker fills in the address from which it sees this connection.
    json::Object about;
    about.Set(ffi::String("key"), ffi::String("server:" + options_.key));
    about.Set(ffi::String("addr"), json::Array{nullptr, port_});
    must_succeed(json::Array{kUpdateInfo, about});
    say("reported to the tracker at %s:%d", options_.tracker_host.c_str(), options_.tracker_port);
  }

  void put() {
    std::random_device random;
    match_key_ = options_.key + ":0." + std::to_string(random()) + std::to_string(random());
    unused_pings_ = 0;
    must_succeed(json::Array{kPut, ffi::String(options_.key), json::Array{port_, ffi::String(match_key_)}, nullptr});
  }

  void must_succeed(const json::Array& message) {
    if (ask(message).cast<int>() != kSuccess) throw Disconnected("it refused this server");
  }

  ffi::Any ask(const json::Array& message) {
    send_text(connection_.get(), std::string(json::Stringify(message)));
    return json::Parse(receive_text(connection_.get(), 1 << 20));
  }

  const Options& options_;
  int port_;
  Handle connection_;
  std::string match_key_;
  int unused_pings_ = 0;
  int64_t retry_at_ = 0;
  bool is_missed_ = false;
};

// ---- a session, in the child

/// Shared by parent and child: when the session last made progress.
struct Pulse {
  std::atomic<int64_t> last_ms{0};
  void beat() { last_ms.store(now_ms(), std::memory_order_relaxed); }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) TVM_FFI_THROW(ValueError) << "there is no file " << fs::path(path).filename().string() << "; upload it first";
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The functions that tvm.rpc.RPCSession expects of a server besides those in TVM's runtime.
void register_session_functions(const std::string& folder) {
  const auto path = [folder](const ffi::String& name) {
    // Names come from the host; they stay inside the folder of the session.
    return (fs::path(folder) / fs::path(std::string(name)).filename()).string();
  };
  const auto define = [](const char* name, ffi::Function function) { ffi::Function::SetGlobal(name, std::move(function), true); };
  define("tvm.rpc.server.workpath", ffi::Function::FromTyped([path](ffi::String name) { return ffi::String(path(name)); }));
  define("tvm.rpc.server.load_module", ffi::Function::FromTyped([path](ffi::String name) { return ffi::Module::LoadFromFile(path(name)); }));
  define("tvm.rpc.server.download_linked_module", ffi::Function::FromTyped([path](ffi::String name) {
           const std::string text = name;
           if (!text.ends_with(".so")) TVM_FFI_THROW(ValueError) << "there is no linker here: link " << text << " on the host and upload the .so";
           return ffi::Bytes(read_file(path(name)));
         }));
  define("tvm.rpc.server.listdir", ffi::Function::FromTyped([folder](ffi::String) {
           std::string names;
           for (const auto& entry : fs::directory_iterator(folder)) names += (names.empty() ? "" : ",") + entry.path().filename().string();
           return ffi::String(names);
         }));
}

/// Serve one connection until the client is gone; the exit code.
int serve(int fd, const std::string& folder, Pulse* pulse) {
  try {
    if (chdir(folder.c_str()) != 0) throw Disconnected(folder + ": " + std::strerror(errno));
    register_session_functions(folder);
    const ffi::Function send = ffi::Function::FromTyped([fd, pulse](ffi::Bytes bytes) {
      send_all(fd, bytes.data(), bytes.size());
      pulse->beat();
      return static_cast<int64_t>(bytes.size());
    });
    const ffi::Function receive = ffi::Function::FromTyped([fd, pulse](int64_t wanted) {
      // At most a piece at a time: a large tensor needs no second copy of its size.
      std::string piece(std::min(static_cast<size_t>(wanted), kPieceBytes), '\0');
      ssize_t n;
      do {
        n = recv(fd, piece.data(), piece.size(), 0);
      } while (n < 0 && errno == EINTR);
      if (n < 0) throw Disconnected(std::strerror(errno));
      pulse->beat();
      piece.resize(static_cast<size_t>(n));
      return ffi::Bytes(std::move(piece));
    });
    ffi::Function::GetGlobalRequired("rpc.ServerLoop")(send, receive);
    return 0;
  } catch (const std::exception& error) {
    say("session: %s", error.what());
    return 1;
  }
}

// ---- the parent

/// What a client asks for: empty if it does not know the key or does not speak the protocol.
struct Greeting {
  bool is_accepted = false;
  double limit_s = 0;  ///< longest time for the whole session; 0: none
};

Greeting shake_hands(int fd, const std::string& expected_key, const std::string& own_key) {
  set_patience(fd, kHandshakeMs);
  if (receive_number(fd) != kMagic) throw Disconnected("it does not speak TVM's protocol");
  std::istringstream words(receive_text(fd, kMaxKeyBytes));
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

/// Wait for the end of a child and of what it started; empty if its time did not run out, else why it was killed.
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

void run_session(Handle connection, Handle& listener, const Options& options, const std::string& peer, double limit_s, Pulse* pulse) {
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
    // A group of its own: what the driver starts ends with it.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGINT, SIG_DFL);
    listener.reset();
    // No exit handlers: drivers may hang in theirs.
    _exit(serve(connection.get(), folder, pulse));
  }
  if (child < 0) {
    say("cannot start a session: %s", std::strerror(errno));
  } else {
    setpgid(child, child);
    int status = 0;
    const std::string reason = watch(child, *pulse, options, limit_s, &status);
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
  // One page that parent and children share.
  void* page = mmap(nullptr, sizeof(Pulse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) refuse(std::string("mmap: ") + std::strerror(errno));
  Pulse* pulse = new (page) Pulse();
  Tracker tracker(options, port_of(listener.get()));
  tracker.offer();
  while (!stopping) {
    pollfd waiting{listener.get(), POLLIN, 0};
    const int ready = poll(&waiting, 1, tracker.is_wanted() ? kTrackerPingMs : -1);
    if (ready <= 0) {
      if (ready == 0) tracker.ping();
      continue;
    }
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    Handle connection(accept4(listener.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
    if (!connection) continue;
    const std::string peer = peer_name(address, length);
    Greeting greeting;
    try {
      greeting = shake_hands(connection.get(), tracker.is_connected() ? tracker.match_key() : options.key, options.key);
      if (!greeting.is_accepted) say("refused %s: wrong key", peer.c_str());
    } catch (const std::exception& error) {
      say("refused %s: %s", peer.c_str(), error.what());
    }
    if (!greeting.is_accepted) continue;
    run_session(std::move(connection), listener, options, peer, greeting.limit_s, pulse);
    tracker.offer();
  }
}

// ---- start

int whole_number(const std::string& name, const std::string& text, int low, int high) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < low || value > high) {
    refuse(name + " " + text + ": must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<int>(value);
}

std::string default_work_dir() {
  const char* wished = std::getenv("TMPDIR");
  for (const char* folder : {wished, "/tmp", "/data/local/tmp"}) {
    if (folder != nullptr && access(folder, W_OK | X_OK) == 0) return folder;
  }
  return ".";
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "-h" || name == "--help") {
      std::printf("%s", kUsage);
      std::exit(0);
    }
    if (name == "--devices") {
      options.is_query = true;
      continue;
    }
    static const std::set<std::string> known = {"--host", "--port", "--key", "--tracker", "--timeout", "--work-dir"};
    if (known.count(name) == 0) refuse("unknown option " + name + "\n" + kUsage);
    if (i + 1 == argc) refuse(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--host") options.host = value;
    if (name == "--port") options.port = whole_number(name, value, 0, 65535);
    if (name == "--key") options.key = value;
    if (name == "--work-dir") options.work_dir = value;
    if (name == "--timeout") {
      char* end = nullptr;
      options.timeout_s = std::strtod(value.c_str(), &end);
      if (value.empty() || *end != '\0' || !(options.timeout_s >= 0)) refuse("--timeout " + value + ": must be seconds, 0 or more");
    }
    if (name == "--tracker") {
      const size_t colon = value.rfind(':');
      if (colon == std::string::npos || colon == 0) refuse("--tracker " + value + ": write HOST:PORT");
      options.tracker_host = value.substr(0, colon);
      options.tracker_port = whole_number("--tracker", value.substr(colon + 1), 1, 65535);
    }
  }
  if (options.is_query) return options;
  if (options.key.empty()) refuse("--key is missing: choose a secret word, which clients have to name\n" + std::string(kUsage));
  if (options.key.find_first_of(" \t\n/") != std::string::npos) refuse("--key: no spaces and no slashes");
  if (options.work_dir.empty()) options.work_dir = default_work_dir();
  options.work_dir = fs::absolute(options.work_dir).string();
  return options;
}

/// The OpenCL runtime lies beside this program. Its absence is no failure of the server, whose clients may want the CPU alone.
void load_opencl_runtime() {
  std::error_code ignored;
  const fs::path library = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "libtvm_runtime_opencl.so";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) say("warning: no OpenCL runtime: %s", dlerror());
}

/// The OpenCL library that was opened and its devices, or why there are none; what `romou phone status` reads.
int print_devices() {
  json::Object answer;
  try {
    const auto ask = [](const char* name) { return ffi::Function::GetGlobalRequired(name)().cast<ffi::String>(); };
    answer.Set(ffi::String("library"), ask("romou.opencl.library"));
    answer.Set(ffi::String("failure"), ask("romou.opencl.failure"));
    answer.Set(ffi::String("devices"), json::Parse(ask("romou.opencl.devices")));
  } catch (const std::exception& error) {
    answer.Set(ffi::String("failure"), ffi::String(error.what()));
  }
  say("%s", json::Stringify(answer).c_str());
  // No exit handlers: drivers may hang in theirs.
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.is_query) {
    load_opencl_runtime();
    return print_devices();
  }
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction stop {};
  stop.sa_handler = [](int) { stopping = 1; };  // without SA_RESTART: waiting calls return
  sigaction(SIGTERM, &stop, nullptr);
  sigaction(SIGINT, &stop, nullptr);
  Handle listener = listen_on(options);
  load_opencl_runtime();
  say("serving on %s:%d", options.host.c_str(), port_of(listener.get()));
  if (!is_loopback(listener.get())) {
    say("warning: %s is open to the network; whoever knows the key can run any program here, and the key travels in the clear", options.host.c_str());
  }
  accept_sessions(options, listener);
  say("stopped");
  return 0;
}
