// SPDX-License-Identifier: Apache-2.0
//
// Counters of live objects, of launches, of created memory and of copies, for tests ("romou.opencl.statistics").
#ifndef ROMOU_OPENCL_STATISTICS_H_
#define ROMOU_OPENCL_STATISTICS_H_

#include <atomic>
#include <cstdint>

namespace romou::opencl {

struct Statistics {
  std::atomic<int64_t> live_buffers{0}, live_images{0}, live_bytes{0}, live_kernels{0}, live_programs{0}, live_events{0}, launches{0}, created{0}, copies{0};
};

inline Statistics& statistics() {
  static auto* instance = new Statistics();
  return *instance;
}

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_STATISTICS_H_
