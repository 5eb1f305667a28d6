// SPDX-License-Identifier: Apache-2.0
#include "queue.h"

#include <algorithm>

#include "statistics.h"

namespace romou::vulkan {

Batch::Batch(Device& device) : commands(device, false), tail(device, false) {
  const VkFenceCreateInfo info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  VkFence made = VK_NULL_HANDLE;
  device.check(device.vk().vkCreateFence(device.handle(), &info, nullptr, &made), "vkCreateFence");
  fence = Fence(device, made);
  if (device.facts().timestamp_bits == 0) return;
  VkQueryPoolCreateInfo stamps{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  stamps.queryType = VK_QUERY_TYPE_TIMESTAMP;
  stamps.queryCount = 2;
  VkQueryPool pool = VK_NULL_HANDLE;
  device.check(device.vk().vkCreateQueryPool(device.handle(), &stamps, nullptr, &pool), "vkCreateQueryPool");
  times = QueryPool(device, pool);
}

Queue::Queue(Device& device, VkDevice handle, const DeviceFunctions& functions, VkQueue queue)
    : device_(device), handle_(handle), vk_(functions), queue_(queue) {}

Queue::~Queue() = default;

Batch& Queue::open() {
  if (open_ == nullptr) {
    std::shared_ptr<Batch> batch;
    if (idle_.empty()) {
      batch = std::make_shared<Batch>(device_);
    } else {
      batch = std::move(idle_.back());
      idle_.pop_back();
    }
    batch->serial = next_serial_;
    batch->timers = timers_;
    batch->commands.begin(batch->serial);
    if (!batch->timers.empty() && batch->times) {
      vk_.vkCmdResetQueryPool(batch->commands.handle(), batch->times.get(), 0, 2);
      stamp(batch->commands, *batch, 0);
    }
    next_serial_ += 1;
    open_ = std::move(batch);
  }
  return *open_;
}

/// The device takes each timestamp when all commands before it are done. The difference is the time of the commands between them.
void Queue::stamp(Commands& commands, const Batch& batch, uint32_t which) {
  vk_.vkCmdWriteTimestamp(commands.handle(), VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, batch.times.get(), which);
}

/// Submit the open batch and return its number.
uint64_t Queue::close(const std::shared_ptr<Commands>* recorded) {
  const std::shared_ptr<Batch> batch = std::move(open_);
  open_ = nullptr;
  const bool is_timed = !batch->timers.empty() && batch->times, has_tail = is_timed && recorded != nullptr;
  std::vector<VkCommandBuffer> handles = {batch->commands.handle()};
  if (is_timed && !has_tail) stamp(batch->commands, *batch, 1);
  batch->commands.end();
  if (recorded != nullptr) {
    for (const SharedMemory& memory : (*recorded)->kept()) memory->last_use = batch->serial;
    batch->commands.keep(*recorded);
    handles.push_back((*recorded)->handle());
  }
  if (has_tail) {
    batch->tail.begin(batch->serial);
    stamp(batch->tail, *batch, 1);
    batch->tail.end();
    handles.push_back(batch->tail.handle());
  }
  VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  info.commandBufferCount = static_cast<uint32_t>(handles.size());
  info.pCommandBuffers = handles.data();
  device_.check(vk_.vkQueueSubmit(queue_, 1, &info, batch->fence.get()), "vkQueueSubmit");
  statistics().submissions += 1;
  in_flight_.push_back(batch);
  return batch->serial;
}

void Queue::submit() {
  uint64_t oldest = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_ != nullptr) close(nullptr);
    retire();
    if (in_flight_.size() > kMaxInFlight) oldest = in_flight_.front()->serial;
  }
  if (oldest != 0) wait(oldest);
}

uint64_t Queue::submit(const std::shared_ptr<Commands>& recorded) {
  uint64_t serial = 0, oldest = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open();
    serial = close(&recorded);
    retire();
    if (in_flight_.size() > kMaxInFlight) oldest = in_flight_.front()->serial;
  }
  if (oldest != 0) wait(oldest);
  return serial;
}

void Queue::wait(uint64_t serial) {
  std::shared_ptr<Batch> batch;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_ != nullptr && open_->serial <= serial) close(nullptr);
    const auto none = in_flight_.end();
    const auto found = serial <= done_ ? none : std::find_if(in_flight_.begin(), in_flight_.end(), [&](const auto& each) { return each->serial >= serial; });
    if (found != none) batch = *found;
  }
  if (batch != nullptr) {
    const VkFence fence = batch->fence.get();
    VkResult code = poll(fence);
    if (code == VK_NOT_READY) code = vk_.vkWaitForFences(handle_, 1, &fence, VK_TRUE, UINT64_MAX);
    batch.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    retire();
    device_.check(code, "vkWaitForFences");
  }
  raise_complaints();
}

/// Poll a fence for about the time that a sleep would cost: waking up takes tens of microseconds with a GPU. A discrete GPU does not share power with
/// this processor, so it is polled for longer. If the device is the CPU, polling takes time from the kernels.
VkResult Queue::poll(VkFence fence) {
  const VkPhysicalDeviceType type = device_.facts().type;
  const std::chrono::microseconds limit(type == VK_PHYSICAL_DEVICE_TYPE_CPU ? 0 : type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 1000 : 50);
  const auto stop = std::chrono::steady_clock::now() + limit;
  VkResult code = vk_.vkGetFenceStatus(handle_, fence);
  while (code == VK_NOT_READY && std::chrono::steady_clock::now() < stop) code = vk_.vkGetFenceStatus(handle_, fence);
  return code;
}

void Queue::finish() {
  uint64_t last = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last = next_serial_ - 1;
  }
  wait(last);
}

bool Queue::is_done(uint64_t serial) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (serial <= done_) return true;
  retire();
  return serial <= done_;
}

/// Take finished batches out of the queue. On a lost device all batches count as finished.
void Queue::retire() {
  while (!in_flight_.empty()) {
    std::shared_ptr<Batch> batch = in_flight_.front();
    const VkResult code = vk_.vkGetFenceStatus(handle_, batch->fence.get());
    if (code == VK_NOT_READY) return;
    in_flight_.pop_front();
    done_ = batch->serial;
    if (code == VK_SUCCESS) settle(*batch);
    batch->timers.clear();
    batch->commands.clear();
    batch->tail.clear();
    const VkFence fence = batch->fence.get();
    // A thread that still waits for the batch polls its fence.
    if (code == VK_SUCCESS && batch.use_count() == 1 && vk_.vkResetFences(handle_, 1, &fence) == VK_SUCCESS) idle_.push_back(std::move(batch));
  }
}

/// Add a batch's time to the timers that ran while it was filled.
void Queue::settle(Batch& batch) {
  if (batch.timers.empty() || !batch.times) return;
  uint64_t ticks[2] = {0, 0};
  if (vk_.vkGetQueryPoolResults(handle_, batch.times.get(), 0, 2, sizeof(ticks), ticks, sizeof(uint64_t), VK_QUERY_RESULT_64_BIT) != VK_SUCCESS) return;
  const uint32_t bits = device_.facts().timestamp_bits;
  const uint64_t mask = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  const auto ns = static_cast<int64_t>(static_cast<double>((ticks[1] - ticks[0]) & mask) * device_.facts().limits.timestampPeriod);
  for (const auto& timer : batch.timers) timer->ns += ns;
}

void Queue::start_timing(const std::shared_ptr<TimeSum>& sum) {
  finish();
  std::lock_guard<std::mutex> lock(mutex_);
  if (open_ != nullptr) close(nullptr);
  timers_.push_back(sum);
  sum->started = std::chrono::steady_clock::now();
}

void Queue::stop_timing(const std::shared_ptr<TimeSum>& sum) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_ != nullptr) close(nullptr);
    std::erase(timers_, sum);
  }
  if (device_.facts().timestamp_bits != 0) return;
  finish();
  sum->ns += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - sum->started).count();
}

}  // namespace romou::vulkan
