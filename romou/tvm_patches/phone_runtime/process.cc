// SPDX-License-Identifier: Apache-2.0
//
// Messages and the clock.
#include "process.h"

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace romou::phone {

volatile std::sig_atomic_t stopping = 0;

void say(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
}

void refuse(const std::string& message) {
  std::fprintf(stderr, "romou_rpc_server: %s\n", message.c_str());
  std::exit(2);
}

int64_t now_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace romou::phone
