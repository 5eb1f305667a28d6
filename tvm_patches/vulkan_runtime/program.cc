// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <optional>
#include <utility>

#include "error.h"
#include "sha256.h"
#include "statistics.h"

#if !defined(ROMOU_VERSION)
#error "set ROMOU_VERSION to the version of romou, as a text"
#endif

namespace romou::vulkan {
namespace {

PipelineCache pipeline_cache(Device& device, const std::string& content) {
  const VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, nullptr, 0, content.size(), content.data()};
  VkPipelineCache made = VK_NULL_HANDLE;
  device.check(device.vk().vkCreatePipelineCache(device.handle(), &info, nullptr, &made), "vkCreatePipelineCache");
  return {device, made};
}

}  // namespace

std::string program_key(const Device& device, const std::string& spirv) {
  const DeviceFacts& facts = device.facts();
  std::string all;
  for (const std::string& part : {std::string("vulkan"), std::string(ROMOU_VERSION), facts.uuid, facts.name, facts.version, facts.driver, spirv}) {
    all += std::to_string(part.size()) + ":" + part;
  }
  return sha256_hex(all);
}

void Program::build(Device& device, const KernelText& text, ProgramCache* cache) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (kernel_ != nullptr) return;
  if (cache == nullptr || !cache->is_usable()) {
    kernel_ = std::make_shared<Kernel>(device, text, VK_NULL_HANDLE);
    return;
  }
  const std::string name = text.info->name, key = program_key(device, std::string(text.spirv.data(), text.spirv.size()));
  const auto refuse_crash = [&](const std::optional<ProgramCache::Entry>& entry) {
    if (!entry.has_value() || entry->kind != ProgramCache::Kind::kRefused) return;
    raise_error(VK_ERROR_UNKNOWN, "vkCreateComputePipelines", device.label(), name, entry->content + "; to try again remove " + cache->path_of(key));
  };
  const auto entry = cache->find(key, name);
  refuse_crash(entry);
  if (cache->loads_binaries() && entry.has_value() && entry->kind == ProgramCache::Kind::kBinary) {
    // Drivers ignore data that they did not write. A driver that crashes on its own data gets none again.
    const ProgramCache::Attempt attempt(*cache, key, ProgramCache::Work::kLoad);
    if (attempt.may_go_on()) {
      kernel_ = std::make_shared<Kernel>(device, text, pipeline_cache(device, entry->content).get());
      is_from_cache = true;
      statistics().pipelines_from_cache += 1;
      return;
    }
  }
  const ProgramCache::Attempt attempt(*cache, key, ProgramCache::Work::kCompile);
  if (!attempt.may_go_on()) refuse_crash(cache->find(key, name));
  const bool is_kept = cache->loads_binaries() && !entry.has_value();
  PipelineCache made = is_kept ? pipeline_cache(device, {}) : PipelineCache();
  kernel_ = std::make_shared<Kernel>(device, text, made.get());
  if (is_kept) key_ = key;
  compiled_ = std::move(made);
}

std::shared_ptr<const Kernel> Program::kernel() {
  std::lock_guard<std::mutex> lock(mutex_);
  return kernel_;
}

bool Program::keep(Device& device, ProgramCache& cache) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string key = std::exchange(key_, {});
  const PipelineCache made = std::exchange(compiled_, {});
  if (key.empty() || !made || !cache.is_usable()) return false;
  size_t bytes = 0;
  VkResult code = device.vk().vkGetPipelineCacheData(device.handle(), made.get(), &bytes, nullptr);
  std::string content(code == VK_SUCCESS ? bytes : 0, '\0');
  if (code == VK_SUCCESS && bytes != 0) code = device.vk().vkGetPipelineCacheData(device.handle(), made.get(), &bytes, content.data());
  if (code != VK_SUCCESS || bytes == 0) {
    cache.note("the driver gives no data of " + (kernel_ == nullptr ? std::string("a kernel") : kernel_->name()) + " (" + result_name(code) + ")");
    return false;
  }
  return cache.store(key, ProgramCache::Kind::kBinary, content);
}

}  // namespace romou::vulkan
