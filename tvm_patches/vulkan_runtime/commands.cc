// SPDX-License-Identifier: Apache-2.0
#include "commands.h"

#include <tvm/ffi/error.h>

#include <utility>

#include "statistics.h"

namespace romou::vulkan {
namespace {

constexpr VkPipelineStageFlags kStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kWrites = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
constexpr VkAccessFlags kAll = kWrites | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
constexpr uint32_t kSetsPerPool = 128, kDescriptorsPerSet = 8;

/// Return the first layers of an image, up to `bytes`.
VkImageSubresourceLayers layers_of(const Memory& image, size_t bytes) {
  return {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, static_cast<uint32_t>(image.image.first(bytes).layers)};
}

VkExtent3D extent_of(const Memory& image) { return {static_cast<uint32_t>(image.image.width), static_cast<uint32_t>(image.image.height), 1}; }

}  // namespace

Tracker::Barrier Tracker::before(std::span<const Use> uses) {
  Barrier due = Barrier::kNone;
  for (const Use& use : uses) {
    const auto found = accesses_.find(use.memory);
    if (found == accesses_.end()) continue;
    if (found->second & kWrite) due = Barrier::kMemory;
    if ((use.access & kWrite) && due == Barrier::kNone) due = Barrier::kExecution;
  }
  if (due == Barrier::kMemory) {
    accesses_.clear();
  } else if (due == Barrier::kExecution) {
    for (auto& [memory, access] : accesses_) access &= kWrite;
    std::erase_if(accesses_, [](const auto& entry) { return entry.second == 0; });
  }
  for (const Use& use : uses) accesses_[use.memory] |= use.access;
  return due;
}

Commands::Commands(Device& device, bool is_recording) : device_(device), vk_(device.vk()), is_recording_(is_recording) {
  VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pool.queueFamilyIndex = device.facts().queue_family;
  VkCommandPool made = VK_NULL_HANDLE;
  device.check(vk_.vkCreateCommandPool(device.handle(), &pool, nullptr, &made), "vkCreateCommandPool");
  pool_ = CommandPool(device, made);
  VkCommandBufferAllocateInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, made, VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  device.check(vk_.vkAllocateCommandBuffers(device.handle(), &info, &handle_), "vkAllocateCommandBuffers");
}

Commands::~Commands() { clear(); }

void Commands::begin(uint64_t serial) {
  serial_ = serial;
  is_begun_ = true;
  VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  info.flags = is_recording_ ? VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  device_.check(vk_.vkBeginCommandBuffer(handle_, &info), "vkBeginCommandBuffer");
}

void Commands::end() {
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, kWrites, kAll | VK_ACCESS_HOST_READ_BIT};
  vk_.vkCmdPipelineBarrier(handle_, kStages, kStages | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  device_.check(vk_.vkEndCommandBuffer(handle_), "vkEndCommandBuffer");
  tracker_.clear();
  known_.clear();
  bound_ = nullptr;
}

void Commands::clear() {
  if (is_recording_) {
    for (const SharedMemory& memory : kept_) memory->recordings -= 1;
  }
  kept_.clear();
  objects_.clear();
  tracker_.clear();
  known_.clear();
  bound_ = nullptr;
  launches_ = commands_ = 0;
  staged_bytes_ = 0;
  used_pools_ = 0;
  if (!std::exchange(is_begun_, false) || is_exiting() || is_forked()) return;
  // If it cannot be reset (a lost device), the next call that can raise reports it.
  vk_.vkResetCommandPool(device_.handle(), pool_.get(), 0);
  for (const DescriptorPool& pool : descriptor_pools_) vk_.vkResetDescriptorPool(device_.handle(), pool.get(), 0);
}

void Commands::keep(Memory* memory) {
  if (!known_.insert(memory).second) return;
  if (serial_ != 0) memory->last_use = serial_;
  if (is_recording_) memory->recordings += 1;
  if (memory->is_staging) staged_bytes_ += memory->bytes;
  kept_.push_back(share(memory));
}

void Commands::keep(std::shared_ptr<const void> object) {
  if (known_.insert(object.get()).second) objects_.push_back(std::move(object));
}

/// Return the barrier that is due before a command, and count it as inserted.
void Commands::use(std::span<const Use> uses) {
  commands_ += 1;
  for (const Use& each : uses) keep(each.memory);
  const Tracker::Barrier due = tracker_.before(uses);
  if (due == Tracker::Barrier::kMemory) {
    statistics().memory_barriers += 1;
    const VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, kWrites, kAll};
    vk_.vkCmdPipelineBarrier(handle_, kStages, kStages, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  } else if (due == Tracker::Barrier::kExecution) {
    statistics().execution_barriers += 1;
    vk_.vkCmdPipelineBarrier(handle_, kStages, kStages, 0, 0, nullptr, 0, nullptr, 0, nullptr);
  }
}

void Commands::dispatch(const std::shared_ptr<const Kernel>& kernel, std::span<Memory* const> bindings, std::span<const char> push_constants,
                        const std::array<uint32_t, 3>& groups) {
  const VkPhysicalDeviceLimits& limits = device_.facts().limits;
  for (int i = 0; i < 3; ++i) {
    if (groups[i] > limits.maxComputeWorkGroupCount[i]) {
      TVM_FFI_THROW(RuntimeError) << "kernel " << kernel->name() << " needs " << groups[i] << " work groups in dimension " << i << "; " << device_.label()
                                  << " allows " << limits.maxComputeWorkGroupCount[i] << " (maxComputeWorkGroupCount)";
    }
  }
  std::vector<Use> uses;
  size_t next = 0;
  for (const Argument& argument : kernel->arguments()) {
    if (argument.is_binding()) uses.push_back({bindings[next++], argument.access});
  }
  use(uses);
  keep(kernel);
  if (bound_ != kernel.get()) vk_.vkCmdBindPipeline(handle_, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->pipeline());
  bound_ = kernel.get();
  bind(*kernel, bindings);
  if (!push_constants.empty()) {
    vk_.vkCmdPushConstants(handle_, kernel->layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(push_constants.size()), push_constants.data());
  }
  vk_.vkCmdDispatch(handle_, groups[0], groups[1], groups[2]);
  launches_ += 1;
  statistics().launches += 1;
}

void Commands::bind(const Kernel& kernel, std::span<Memory* const> bindings) {
  if (bindings.empty()) return;
  const size_t count = bindings.size();
  std::vector<VkDescriptorBufferInfo> buffers(count);
  std::vector<VkDescriptorImageInfo> images(count);
  std::vector<VkWriteDescriptorSet> writes(count, {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET});
  size_t next = 0;
  for (const Argument& argument : kernel.arguments()) {
    if (!argument.is_binding()) continue;
    const Memory& memory = *bindings[next];
    VkWriteDescriptorSet& write = writes[next];
    write.dstBinding = static_cast<uint32_t>(next);
    write.descriptorCount = 1;
    write.descriptorType = argument.descriptor();
    if (memory.is_image) {
      images[next] = {VK_NULL_HANDLE, memory.view.get(), VK_IMAGE_LAYOUT_GENERAL};
      write.pImageInfo = &images[next];
    } else {
      buffers[next] = {memory.buffer.get(), 0, VK_WHOLE_SIZE};
      write.pBufferInfo = &buffers[next];
    }
    ++next;
  }
  const uint32_t written = static_cast<uint32_t>(count);
  if (vk_.vkCmdPushDescriptorSetKHR != nullptr) {
    vk_.vkCmdPushDescriptorSetKHR(handle_, VK_PIPELINE_BIND_POINT_COMPUTE, kernel.layout(), 0, written, writes.data());
    return;
  }
  const VkDescriptorSet set = allocate_set(kernel);
  for (VkWriteDescriptorSet& write : writes) write.dstSet = set;
  vk_.vkUpdateDescriptorSets(device_.handle(), written, writes.data(), 0, nullptr);
  vk_.vkCmdBindDescriptorSets(handle_, VK_PIPELINE_BIND_POINT_COMPUTE, kernel.layout(), 0, 1, &set, 0, nullptr);
}

VkDescriptorSet Commands::allocate_set(const Kernel& kernel) {
  const VkDescriptorSetLayout layout = kernel.set_layout();
  for (;; ++used_pools_) {
    const bool is_new = used_pools_ == descriptor_pools_.size();
    if (is_new) {
      constexpr uint32_t kCount = kSetsPerPool * kDescriptorsPerSet;
      const VkDescriptorPoolSize sizes[] = {
          {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kCount}, {VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, kCount}, {VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, kCount}};
      const VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, kSetsPerPool, 3, sizes};
      VkDescriptorPool made = VK_NULL_HANDLE;
      device_.check(vk_.vkCreateDescriptorPool(device_.handle(), &info, nullptr, &made), "vkCreateDescriptorPool");
      descriptor_pools_.emplace_back(device_, made);
    }
    const VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, descriptor_pools_[used_pools_].get(), 1, &layout};
    VkDescriptorSet set = VK_NULL_HANDLE;
    const VkResult code = vk_.vkAllocateDescriptorSets(device_.handle(), &info, &set);
    if (code == VK_SUCCESS) return set;
    const bool is_full = code == VK_ERROR_OUT_OF_POOL_MEMORY || code == VK_ERROR_FRAGMENTED_POOL;
    if (is_new || !is_full) device_.check(code, "vkAllocateDescriptorSets", kernel.name());
  }
}

void Commands::copy(const Place& from, const Place& to, size_t bytes) {
  const Memory &source = *from.memory, &target = *to.memory;
  const Use uses[] = {{from.memory, kRead}, {to.memory, kWrite}};
  use(uses);
  constexpr VkImageLayout kLayout = VK_IMAGE_LAYOUT_GENERAL;
  if (!source.is_image && !target.is_image) {
    const VkBufferCopy region{from.offset, to.offset, bytes};
    vk_.vkCmdCopyBuffer(handle_, source.buffer.get(), target.buffer.get(), 1, &region);
  } else if (!source.is_image) {
    const VkBufferImageCopy region{from.offset, 0, 0, layers_of(target, bytes), {0, 0, 0}, extent_of(target)};
    vk_.vkCmdCopyBufferToImage(handle_, source.buffer.get(), target.texels.get(), kLayout, 1, &region);
  } else if (!target.is_image) {
    const VkBufferImageCopy region{to.offset, 0, 0, layers_of(source, bytes), {0, 0, 0}, extent_of(source)};
    vk_.vkCmdCopyImageToBuffer(handle_, source.texels.get(), kLayout, target.buffer.get(), 1, &region);
  } else {
    const VkImageCopy region{layers_of(source, bytes), {0, 0, 0}, layers_of(target, bytes), {0, 0, 0}, extent_of(source)};
    vk_.vkCmdCopyImage(handle_, source.texels.get(), kLayout, target.texels.get(), kLayout, 1, &region);
  }
}

void Commands::prepare_image(Memory* image) {
  commands_ += 1;
  keep(image);
  VkImageMemoryBarrier barrier{VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER};
  barrier.dstAccessMask = kAll;
  barrier.oldLayout = VK_IMAGE_LAYOUT_UNDEFINED;
  barrier.newLayout = VK_IMAGE_LAYOUT_GENERAL;
  barrier.srcQueueFamilyIndex = barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
  barrier.image = image->texels.get();
  barrier.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, static_cast<uint32_t>(image->image.layers)};
  vk_.vkCmdPipelineBarrier(handle_, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, kStages, 0, 0, nullptr, 0, nullptr, 1, &barrier);
}

}  // namespace romou::vulkan
