// SPDX-License-Identifier: Apache-2.0
//
// Counters of live objects and of events, for tests ("romou.vulkan.statistics").
#ifndef ROMOU_VULKAN_STATISTICS_H_
#define ROMOU_VULKAN_STATISTICS_H_

#include <atomic>
#include <cstdint>

namespace romou::vulkan {

// X(name): live_* are numbers of live objects, the others only grow
#define ROMOU_VK_COUNTERS(X)                                                                                       \
  X(live_buffers) X(live_images) X(live_bytes) X(live_kernels) X(live_blocks) X(live_block_bytes) X(launches) \
  X(submissions) X(memory_barriers) X(execution_barriers) X(pipelines_from_cache)

struct Statistics {
#define ROMOU_VK_DECLARE(name) std::atomic<int64_t> name{0};
  ROMOU_VK_COUNTERS(ROMOU_VK_DECLARE)
#undef ROMOU_VK_DECLARE
};

inline Statistics& statistics() {
  static auto* instance = new Statistics();
  return *instance;
}

}  // namespace romou::vulkan

#endif  // ROMOU_VULKAN_STATISTICS_H_
