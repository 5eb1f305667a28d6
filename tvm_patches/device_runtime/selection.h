// SPDX-License-Identifier: Apache-2.0
//
// The order of a runtime's devices, and their selection by an environment variable.
#ifndef ROMOU_DEVICE_RUNTIME_SELECTION_H_
#define ROMOU_DEVICE_RUNTIME_SELECTION_H_

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace romou {

inline std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Return the devices as text for error messages, one a line.
template <typename Device>
std::string device_listing(const std::vector<std::unique_ptr<Device>>& devices) {
  std::string text;
  for (const auto& device : devices) text += "  " + device->label() + "\n";
  return text;
}

/// Sort devices by the rank of their type, move the devices with the text of `variable` in the name of the platform or device (any case) to the
/// front, and number them. A number below the count of devices is an index in that order. Return an error with the reason if none matches, or an
/// empty text. ArchProbe has the same rule in archprobe/devices/order.py.
template <typename Device>
std::string choose_devices(std::vector<std::unique_ptr<Device>>& devices, const char* variable, const char* api) {
  std::stable_sort(devices.begin(), devices.end(), [](const auto& a, const auto& b) { return a->type_rank() < b->type_rank(); });
  const char* wanted = std::getenv(variable);
  bool is_missing = false;
  if (wanted != nullptr && *wanted != '\0') {
    const std::string pattern = lower_case(wanted);
    const bool is_number = pattern.size() < 4 && std::all_of(pattern.begin(), pattern.end(), [](unsigned char c) { return std::isdigit(c); });
    const size_t place = is_number ? static_cast<size_t>(std::atoi(wanted)) : devices.size();
    const Device* numbered = place < devices.size() ? devices[place].get() : nullptr;
    const auto chosen = std::stable_partition(devices.begin(), devices.end(), [&](const std::unique_ptr<Device>& device) {
      if (numbered != nullptr) return device.get() == numbered;
      return lower_case(device->facts().platform).find(pattern) != std::string::npos || lower_case(device->facts().name).find(pattern) != std::string::npos;
    });
    is_missing = chosen == devices.begin() && !devices.empty();
  }
  for (size_t i = 0; i < devices.size(); ++i) devices[i]->index = static_cast<int>(i);
  if (!is_missing) return {};
  return std::string(variable) + "='" + wanted + "' matches no " + api + " device; found are:\n" + device_listing(devices) +
         "Set it to a part of a platform or device name above, or to a number, or unset it.";
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_SELECTION_H_
