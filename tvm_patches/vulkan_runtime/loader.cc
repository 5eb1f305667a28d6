// SPDX-License-Identifier: Apache-2.0
#include "loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>

#include "error.h"

namespace romou::vulkan {
namespace {

constexpr const char* kLayer = "VK_LAYER_KHRONOS_validation";
constexpr size_t kMaxComplaints = 20;

std::atomic<bool> exiting{false}, forked{false};
std::mutex complaints_mutex;
std::vector<std::string> complaints;

VKAPI_ATTR VkBool32 VKAPI_CALL complained(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                          const VkDebugUtilsMessengerCallbackDataEXT* data, void*) {
  std::lock_guard<std::mutex> lock(complaints_mutex);
  if (complaints.size() < kMaxComplaints) complaints.emplace_back(data->pMessage);
  return VK_FALSE;
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

std::vector<std::string> candidates() {
  if (const char* chosen = std::getenv("ROMOU_VULKAN_LIBRARY"); chosen != nullptr && *chosen != '\0') {
    // An explicit choice has no fallback: a typing error must not run on another driver unnoticed.
    return {chosen};
  }
#if defined(__ANDROID__)
  return {"libvulkan.so"};
#elif defined(__APPLE__)
  return {"libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
  return {"libvulkan.so.1", "libvulkan.so"};
#endif
}

/// Create the instance with an opened library. Return the reason if that fails, otherwise an empty text.
std::string create_instance(Instance& made, PFN_vkGetInstanceProcAddr find) {
#define ROMOU_VK_RESOLVE(name)                                                     \
  made.name = reinterpret_cast<PFN_##name>(find(made.handle, #name));              \
  if (made.name == nullptr) return "opened, but it lacks " #name " (Vulkan 1.1 is needed)";
  made.find = find;
  ROMOU_VK_GLOBAL_FUNCTIONS(ROMOU_VK_RESOLVE)
  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = "romou";
  application.apiVersion = VK_API_VERSION_1_3;
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pApplicationInfo = &application;

  VkDebugUtilsMessengerCreateInfoEXT messenger{VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
  messenger.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT;
  messenger.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
  messenger.pfnUserCallback = complained;
  const VkValidationFeatureEnableEXT checks[] = {VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
  VkValidationFeaturesEXT features{VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT, &messenger, 1, checks, 0, nullptr};
  const char* extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME, VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME};
  const bool is_validating = is_set("ROMOU_VULKAN_VALIDATE");
  if (is_validating) {
    uint32_t count = 0;
    made.vkEnumerateInstanceLayerProperties(&count, nullptr);
    std::vector<VkLayerProperties> layers(count);
    made.vkEnumerateInstanceLayerProperties(&count, layers.data());
    if (std::none_of(layers.begin(), layers.end(), [](const VkLayerProperties& layer) { return std::strcmp(layer.layerName, kLayer) == 0; })) {
      return std::string("ROMOU_VULKAN_VALIDATE is set, but there is no ") + kLayer + "; on Debian: apt-get install vulkan-validationlayers";
    }
    info.pNext = &features;
    info.enabledLayerCount = 1;
    info.ppEnabledLayerNames = &kLayer;
    info.enabledExtensionCount = 2;
    info.ppEnabledExtensionNames = extensions;
  }
  const VkResult code = made.vkCreateInstance(&info, nullptr, &made.handle);
  if (code != VK_SUCCESS) {
    return std::string("vkCreateInstance failed: ") + result_name(code) + " (" + std::to_string(code) + ")" +
           (code == VK_ERROR_INCOMPATIBLE_DRIVER ? ": the loader finds no driver that works" : "");
  }
  ROMOU_VK_INSTANCE_FUNCTIONS(ROMOU_VK_RESOLVE)
#undef ROMOU_VK_RESOLVE
  if (is_validating) {
    // The messenger in the chain above is active only during the instance's creation and destruction.
    const auto add = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(find(made.handle, "vkCreateDebugUtilsMessengerEXT"));
    VkDebugUtilsMessengerEXT handle = VK_NULL_HANDLE;
    if (add == nullptr || add(made.handle, &messenger, nullptr, &handle) != VK_SUCCESS) return "the validation layer has no vkCreateDebugUtilsMessengerEXT";
  }
  // Registered after the driver's own handlers and therefore run before them.
  std::atexit([] { exiting.store(true); });
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  return {};
}

Instance* open() {
  std::string failure;
  for (const std::string& name : candidates()) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      failure += "  " + name + ": " + (reason != nullptr ? reason : "cannot be opened") + "\n";
      continue;
    }
    auto* made = new Instance();
    made->library = name;
    const auto find = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
    const std::string reason = find == nullptr ? "opened, but it lacks vkGetInstanceProcAddr" : create_instance(*made, find);
    if (reason.empty()) return made;
    failure += "  " + name + ": " + reason + "\n";
  }
  auto* none = new Instance();
  none->failure = failure;
  return none;
}

}  // namespace

const Instance& instance() {
  // Leaked on purpose: modules and tensors of the interpreter may outlive any static of this library.
  static const Instance* made = open();
  return *made;
}

void raise_complaints() {
  std::string text;
  {
    std::lock_guard<std::mutex> lock(complaints_mutex);
    for (const std::string& complaint : complaints) text += "\n" + complaint;
    complaints.clear();
  }
  if (!text.empty()) TVM_FFI_THROW(RuntimeError) << "Vulkan's validation layer (ROMOU_VULKAN_VALIDATE) says:" << text;
}

bool is_left_out(const std::string& ability) {
  const char* value = std::getenv("ROMOU_VULKAN_WITHOUT");
  if (value == nullptr) return false;
  std::istringstream names(value);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == ability) return true;
  }
  return false;
}

bool is_exiting() { return exiting.load(); }

bool is_forked() { return forked.load(); }

}  // namespace romou::vulkan
