// SPDX-License-Identifier: Apache-2.0
//
// One session, in a child process of the server: TVM's RPC protocol on one connection.
#ifndef ROMOU_PHONE_SESSION_H_
#define ROMOU_PHONE_SESSION_H_

#include <sys/socket.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "process.h"
#include "sockets.h"

namespace romou::phone {

namespace ffi = tvm::ffi;
namespace fs = std::filesystem;

inline constexpr size_t kPieceBytes = 1 << 20;

/// Shared by parent and child: when the session last made progress.
struct Pulse {
  std::atomic<int64_t> last_ms{0};
  void beat() { last_ms.store(now_ms(), std::memory_order_relaxed); }
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) TVM_FFI_THROW(ValueError) << "there is no file " << fs::path(path).filename().string() << "; upload it first";
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Register the functions that tvm.rpc.RPCSession expects of a server and TVM's runtime lacks.
inline void register_session_functions(const std::string& folder) {
  const auto path = [folder](const ffi::String& name) {
    // The host sends names, and files have to stay inside the session's folder.
    const fs::path last = fs::path(std::string(name)).filename();
    if (last.empty() || last == "." || last == "..") TVM_FFI_THROW(ValueError) << "'" << name << "' is no name of a file";
    return (fs::path(folder) / last).string();
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

/// Serve one connection until the client is gone, keep uploads in `folder`, and return the exit code.
inline int serve(int fd, const std::string& folder, Pulse* pulse) {
  try {
    if (chdir(folder.c_str()) != 0) throw Disconnected(folder + ": " + std::strerror(errno));
    register_session_functions(folder);
    const ffi::Function send = ffi::Function::FromTyped([fd, pulse](ffi::Bytes bytes) {
      send_all(fd, bytes.data(), bytes.size());
      pulse->beat();
      return static_cast<int64_t>(bytes.size());
    });
    const ffi::Function receive = ffi::Function::FromTyped([fd, pulse](int64_t wanted) {
      // At most kPieceBytes at a time, so that a large tensor needs no second copy of its size.
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

}  // namespace romou::phone

#endif  // ROMOU_PHONE_SESSION_H_
