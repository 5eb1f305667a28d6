// SPDX-License-Identifier: Apache-2.0
//
// Which variant of a model suits which device, by the name that the driver gives the device.
#ifndef ROMOU_APP_RUNTIME_CHOICE_H_
#define ROMOU_APP_RUNTIME_CHOICE_H_

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace romou::app {

/// The model compiled for one device. Its library and its weights stand in the folder `name`.
struct Variant {
  std::string name, kind, device, target;
  std::vector<std::string> words;  ///< words of the device's name, as drivers write it
  int64_t device_type = 0, scopes = 0;
};

/// A device as its driver describes it. A variant for the processor itself has the one device of kind "cpu".
struct Device {
  std::string kind, name, type;
  int index = 0;
  std::string driver, platform;
};

/// Split a driver's name of a device: "QUALCOMM Adreno(TM) 740" -> qualcomm adreno 740, "Immortalis-G715" -> mali g 715.
inline std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  char last = '\0';
  const auto kind = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) ? '0' : std::isalpha(static_cast<unsigned char>(c)) ? 'a' : '\0'; };
  for (const char c : name) {
    if (kind(c) != '\0') {
      if (kind(c) != last) words.emplace_back();
      words.back().push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
    last = kind(c);
  }
  words.erase(std::remove_if(words.begin(), words.end(), [](const std::string& word) { return word == "tm" || word == "r"; }), words.end());
  // Mesa writes "FD630", Arm names its GPUs with ray tracing Immortalis.
  std::replace(words.begin(), words.end(), std::string("fd"), std::string("adreno"));
  std::replace(words.begin(), words.end(), std::string("immortalis"), std::string("mali"));
  return words;
}

/// How little a variant suits a device; 0 is its own device.
struct Misfit {
  /// 0: its device. 1: another GPU of its family, or a processor for a variant of no named device. 2: another GPU. 3: the processor.
  /// 4: a GPU's kernels on a processor.
  int rank;
  int distance;  ///< between the numbers in both names
  bool operator<(const Misfit& other) const { return rank != other.rank ? rank < other.rank : distance < other.distance; }
};

inline int number_in(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return std::atoi(word.substr(0, 6).c_str());
  }
  return 0;
}

inline Misfit misfit(const Variant& variant, const Device& device) {
  if (device.kind == "cpu") return {3, 0};
  const bool is_cpu = device.type == "cpu", is_for_cpu = variant.device == "host";
  if (is_cpu) return {is_for_cpu ? 0 : variant.device.empty() ? 1 : 4, 0};
  if (is_for_cpu) return {2, 1 << 20};
  const std::vector<std::string> names = words_of(device.name);
  if (!variant.words.empty() && std::search(names.begin(), names.end(), variant.words.begin(), variant.words.end()) != names.end()) return {0, 0};
  const bool is_family = !variant.words.empty() && std::find(names.begin(), names.end(), variant.words[0]) != names.end();
  return {is_family ? 1 : 2, std::abs(number_in(names) - number_in(variant.words))};
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_CHOICE_H_
