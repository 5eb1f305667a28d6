// SPDX-License-Identifier: Apache-2.0
//
// Common parts of the server's files: messages, the clock, and the flag that stops it.
#ifndef ROMOU_PHONE_PROCESS_H_
#define ROMOU_PHONE_PROCESS_H_

#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace romou::phone {

/// Set by SIGTERM and SIGINT.
inline volatile std::sig_atomic_t stopping = 0;

/// Print one line at once.
[[gnu::format(printf, 1, 2)]] inline void say(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
}

/// End the program with a message about wrong use.
[[noreturn]] inline void refuse(const std::string& message) {
  std::fprintf(stderr, "romou_rpc_server: %s\n", message.c_str());
  std::exit(2);
}

inline int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace romou::phone

#endif  // ROMOU_PHONE_PROCESS_H_
