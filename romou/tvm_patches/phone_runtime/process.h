// SPDX-License-Identifier: Apache-2.0
//
// What every file of the server uses: messages, the clock, and whether it was told to stop.
#ifndef ROMOU_PHONE_PROCESS_H_
#define ROMOU_PHONE_PROCESS_H_

#include <csignal>
#include <cstdint>
#include <string>

namespace romou::phone {

/// Set by SIGTERM and SIGINT.
extern volatile std::sig_atomic_t stopping;

/// Print one line at once.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// End the program with a message about wrong use.
[[noreturn]] void refuse(const std::string& message);

int64_t now_ms();

}  // namespace romou::phone

#endif  // ROMOU_PHONE_PROCESS_H_
