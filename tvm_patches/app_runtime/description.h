// SPDX-License-Identifier: Apache-2.0
//
// What model.json says of an exported model.
#ifndef ROMOU_APP_RUNTIME_DESCRIPTION_H_
#define ROMOU_APP_RUNTIME_DESCRIPTION_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choice.h"
#include "files.h"
#include "shapes.h"

namespace romou::app {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

inline constexpr const char* kDescription = "model.json";
inline constexpr int64_t kFormat = 2;

struct FileInfo {
  size_t bytes;
  uint32_t checksum;
};

struct Description {
  std::vector<TensorInfo> inputs, outputs;  ///< of the largest shape
  ShapeSet set;
  std::vector<Variant> variants;
  std::map<std::string, FileInfo> files;

  /// Return the content of a file. Raises ROMOU_DAMAGED unless it is what was exported.
  std::string read(const Files& from, const std::string& name) const {
    const auto known = files.find(name);
    if (known == files.end()) throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " does not name " + name);
    std::string bytes = from.read(name);
    if (bytes.size() != known->second.bytes) {
      throw Failure(ROMOU_DAMAGED, name + " has " + std::to_string(bytes.size()) + " bytes, " + std::to_string(known->second.bytes) + " were exported; export the model again");
    }
    if (adler32(bytes) != known->second.checksum) throw Failure(ROMOU_DAMAGED, name + " is not what was exported; export the model again");
    return bytes;
  }
};

inline ffi::Any field(const json::Object& object, const char* name) {
  const auto found = object.find(ffi::String(name));
  if (found == object.end()) throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " lacks " + name);
  return (*found).second;
}

inline std::string text(const json::Object& object, const char* name) { return field(object, name).cast<ffi::String>(); }

inline TensorInfo tensor_info(const json::Object& object) {
  TensorInfo info{text(object, "name"), text(object, "dtype"), text(object, "stored"), {}, {}, 0, {}};
  info.type = ffi::StringToDLDataType(info.stored);
  std::vector<int64_t> shape;
  for (const ffi::Any& side : field(object, "shape").cast<json::Array>()) shape.push_back(side.cast<int64_t>());
  info = info.with_shape(std::move(shape));
  if (object.count(ffi::String("value")) != 0) {
    for (const ffi::Any& byte : field(object, "value").cast<json::Array>()) info.value.push_back(static_cast<char>(byte.cast<int64_t>()));
  }
  return info;
}

inline std::vector<TensorInfo> tensor_infos(const json::Object& object, const char* name) {
  std::vector<TensorInfo> infos;
  for (const ffi::Any& each : field(object, name).cast<json::Array>()) infos.push_back(tensor_info(each.cast<json::Object>()));
  return infos;
}

inline ShapeSet shape_set(const json::Object& about) {
  ShapeSet set;
  const auto numbers = [](const ffi::Any& row) {
    std::vector<int64_t> found;
    for (const ffi::Any& number : row.cast<json::Array>()) found.push_back(number.cast<int64_t>());
    return found;
  };
  const auto free_axes = [&](const json::Object& sizes, const char* name) {
    std::vector<FreeAxis> axes;
    for (const ffi::Any& row : field(sizes, name).cast<json::Array>()) {
      const std::vector<int64_t> axis = numbers(row);
      axes.push_back({size_t(axis.at(0)), size_t(axis.at(1)), size_t(axis.at(2)), {axis.at(3), axis.at(4), axis.at(5)}});
    }
    return axes;
  };
  for (const ffi::Any& each : field(about, "shapes").cast<json::Array>()) {
    const json::Object shape = each.cast<json::Object>();
    set.shapes.push_back({text(shape, "entry"), tensor_infos(shape, "inputs"), tensor_infos(shape, "outputs"), {}, {}, {}});
    if (shape.count(ffi::String("sizes")) != 0) {
      const json::Object sizes = field(shape, "sizes").cast<json::Object>();
      for (const ffi::Any& row : field(sizes, "bounds").cast<json::Array>()) {
        const std::vector<int64_t> bounds = numbers(row);
        set.shapes.back().bounds.emplace_back(bounds.at(0), bounds.at(1));
      }
      set.shapes.back().free_inputs = free_axes(sizes, "inputs");
      set.shapes.back().free_outputs = free_axes(sizes, "outputs");
    }
  }
  for (const auto& [name, bytes] : field(about, "padding").cast<json::Object>()) {
    std::string& value = set.padding[name.cast<ffi::String>()];
    for (const ffi::Any& byte : bytes.cast<json::Array>()) value.push_back(static_cast<char>(byte.cast<int64_t>()));
  }
  for (const ffi::Any& row : field(about, "groups").cast<json::Array>()) {
    const std::vector<int64_t> axes = numbers(row);
    set.groups.emplace_back();
    for (size_t i = 0; i + 1 < axes.size(); i += 2) set.groups.back().emplace_back(axes[i], axes[i + 1]);
  }
  for (const ffi::Any& row : field(about, "cuts").cast<json::Array>()) {
    const std::vector<int64_t> cut = numbers(row);
    set.cuts.push_back({size_t(cut.at(0)), size_t(cut.at(1)), size_t(cut.at(2)), size_t(cut.at(3)), {cut.at(4), cut.at(5), cut.at(6)}});
  }
  return set;
}

inline Variant variant_of(const json::Object& object) {
  Variant variant{text(object, "name"), text(object, "kind"), text(object, "device"), text(object, "target"), {}, field(object, "device_type").cast<int64_t>(), field(object, "scopes").cast<int64_t>()};
  for (const ffi::Any& word : field(object, "words").cast<json::Array>()) variant.words.push_back(word.cast<ffi::String>());
  return variant;
}

/// Read model.json. Raises ROMOU_MISSING or ROMOU_DAMAGED.
inline Description read_description(const Files& files) {
  const std::string content = files.read(kDescription);
  return failing_as(ROMOU_DAMAGED, kDescription, [&] {
    const json::Object about = json::Parse(ffi::String(content)).cast<json::Object>();
    const int64_t format = field(about, "format").cast<int64_t>();
    if (format != kFormat) {
      throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " is of format " + std::to_string(format) + ", this library reads " + std::to_string(kFormat) + "; export the model again");
    }
    // The last entry is the checksum of the text before it.
    const size_t end = content.rfind("\"checksum\"");
    if (adler32(std::string_view(content).substr(0, end)) != static_cast<uint32_t>(field(about, "checksum").cast<int64_t>())) {
      throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " is not what was exported; export the model again");
    }
    Description description;
    description.inputs = tensor_infos(about, "inputs");
    description.outputs = tensor_infos(about, "outputs");
    if (about.count(ffi::String("shapes")) != 0) description.set = shape_set(about);
    for (const ffi::Any& each : field(about, "variants").cast<json::Array>()) description.variants.push_back(variant_of(each.cast<json::Object>()));
    for (const auto& [name, value] : field(about, "files").cast<json::Object>()) {
      const json::Object file = value.cast<json::Object>();
      description.files[name.cast<ffi::String>()] = {static_cast<size_t>(field(file, "bytes").cast<int64_t>()), static_cast<uint32_t>(field(file, "checksum").cast<int64_t>())};
    }
    return description;
  });
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_DESCRIPTION_H_
