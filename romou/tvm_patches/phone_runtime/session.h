// SPDX-License-Identifier: Apache-2.0
//
// One session, in a child of the server's.
#ifndef ROMOU_PHONE_SESSION_H_
#define ROMOU_PHONE_SESSION_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "process.h"

namespace romou::phone {

/// Shared by parent and child: when the session last made progress.
struct Pulse {
  std::atomic<int64_t> last_ms{0};
  void beat() { last_ms.store(now_ms(), std::memory_order_relaxed); }
};

/// Serve one connection until the client is gone, keeping uploads in `folder`; return the exit code.
int serve(int fd, const std::string& folder, Pulse* pulse);

}  // namespace romou::phone

#endif  // ROMOU_PHONE_SESSION_H_
