// SPDX-License-Identifier: Apache-2.0
//
// What model.json says of an exported model.
#ifndef ROMOU_APP_RUNTIME_DESCRIPTION_H_
#define ROMOU_APP_RUNTIME_DESCRIPTION_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>
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
// Far above what is exported: a damaged or forged file ends in a code, not in a full memory or stack.
inline constexpr size_t kMostBytes = 64 << 20;
inline constexpr int kMostDepth = 32;
inline constexpr int64_t kMostScopes = 256, kMostElements = INT32_MAX;

/// Device kinds of this runtime, by their DLPack device types.
inline const std::map<std::string, DLDeviceType> kDeviceTypes = {{"cpu", kDLCPU}, {"opencl", kDLOpenCL}, {"vulkan", kDLVulkan}};

struct FileInfo {
  size_t bytes;
  uint32_t checksum;
};

struct Description {
  std::vector<TensorInfo> inputs, outputs;  ///< of the largest shape
  ShapeSet set;
  Decoder decoder;
  std::vector<Variant> variants;
  std::map<std::string, FileInfo> files;

  /// Return the content of a file. Raises ROMOU_DAMAGED unless it is what was exported.
  Content read(const Files& from, const std::string& name) const {
    const auto known = files.find(name);
    if (known == files.end()) throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " does not name " + name);
    Content content = from.read(name, known->second.bytes);
    if (content.bytes.size() != known->second.bytes) {
      throw Failure(ROMOU_DAMAGED, name + " has " + std::to_string(content.bytes.size()) + " bytes, " + std::to_string(known->second.bytes) + " were exported; export the model again");
    }
    if (adler32(content.bytes) != known->second.checksum) throw Failure(ROMOU_DAMAGED, name + " is not what was exported; export the model again");
    return content;
  }
};

[[noreturn]] inline void refuse(const std::string& reason) { throw Failure(ROMOU_DAMAGED, std::string(kDescription) + ": " + reason + "; export the model again"); }

/// Return an integer from `least` to `most`. Raises ROMOU_DAMAGED for any other.
inline int64_t integer(const ffi::Any& value, const char* what, int64_t least, int64_t most) {
  const int64_t number = value.cast<int64_t>();
  if (number < least || number > most) refuse(std::string(what) + " is " + std::to_string(number) + ", allowed are " + std::to_string(least) + " to " + std::to_string(most));
  return number;
}

inline ffi::Any field(const json::Object& object, const char* name) {
  const auto found = object.find(ffi::String(name));
  if (found == object.end()) throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " lacks " + name);
  return (*found).second;
}

inline std::string text(const json::Object& object, const char* name) {
  std::string text = field(object, name).cast<ffi::String>();
  if (text.find('\0') != std::string::npos) refuse(std::string(name) + " holds a NUL");
  return text;
}

inline json::Array list(const json::Object& object, const char* name) { return field(object, name).cast<json::Array>(); }

/// Return a row of integers, each from `least` to `most`. `count` 0: any number of them.
inline std::vector<int64_t> integers(const ffi::Any& row, const char* what, size_t count, int64_t least, int64_t most) {
  std::vector<int64_t> numbers;
  for (const ffi::Any& number : row.cast<json::Array>()) numbers.push_back(integer(number, what, least, most));
  if (count != 0 && numbers.size() != count) refuse(std::string(what) + " has " + std::to_string(numbers.size()) + " numbers, not " + std::to_string(count));
  return numbers;
}

/// Return a place in a list.
inline size_t place(int64_t number, size_t count, const char* what) {
  if (number < 0 || static_cast<size_t>(number) >= count) refuse(std::string(what) + " has no number " + std::to_string(number));
  return static_cast<size_t>(number);
}

inline std::string element_bytes_of(const ffi::Any& row, const char* what, size_t count) {
  std::string bytes;
  for (const int64_t byte : integers(row, what, 0, 0, UINT8_MAX)) bytes.push_back(static_cast<char>(byte));
  if (bytes.size() != count) refuse(std::string(what) + " has " + std::to_string(bytes.size()) + " bytes, not " + std::to_string(count));
  return bytes;
}

inline TensorInfo tensor_info(const json::Object& object) {
  TensorInfo info{text(object, "name"), text(object, "dtype"), text(object, "stored"), {}, {}, 0, {}};
  info.type = ffi::StringToDLDataType(info.stored);
  const int bits = info.type.bits;
  const bool is_number = info.type.code == kDLInt || info.type.code == kDLUInt || info.type.code == kDLFloat || info.type.code == kDLBool;
  if (!is_number || info.type.lanes != 1 || (bits != 8 && bits != 16 && bits != 32 && bits != 64)) refuse("no tensor is stored as " + info.stored);
  info.reshape(integers(field(object, "shape"), "shape", 0, 0, INT32_MAX));
  if (info.bytes / info.element_bytes() > kMostElements) refuse(info.name + " has more than " + std::to_string(kMostElements) + " elements");
  if (object.count(ffi::String("value")) != 0) info.value = element_bytes_of(field(object, "value"), "value", info.bytes);
  return info;
}

inline std::vector<TensorInfo> tensor_infos(const json::Object& object, const char* name) {
  std::vector<TensorInfo> infos;
  for (const ffi::Any& each : list(object, name)) infos.push_back(tensor_info(each.cast<json::Object>()));
  return infos;
}

inline Extent extent_of(const std::vector<int64_t>& row, size_t at) {
  if (row[at + 2] < 1) refuse("a divisor is " + std::to_string(row[at + 2]));
  return {row[at], row[at + 1], row[at + 2]};
}

inline std::vector<FreeAxis> free_axes(const json::Object& sizes, const char* name, const std::vector<TensorInfo>& tensors, size_t count) {
  std::vector<FreeAxis> axes;
  for (const ffi::Any& each : list(sizes, name)) {
    const std::vector<int64_t> row = integers(each, name, 6, -INT32_MAX, INT32_MAX);
    const size_t tensor = place(row[0], tensors.size(), name);
    axes.push_back({tensor, place(row[1], tensors[tensor].shape.size(), "an axis"), place(row[2], count, "a size"), extent_of(row, 3)});
  }
  return axes;
}

/// Return tensors of one shape of the model, which are `whole` but for the shape.
inline std::vector<TensorInfo> tensors_like(const std::vector<TensorInfo>& whole, const json::Object& shape, const char* name) {
  std::vector<TensorInfo> tensors = tensor_infos(shape, name);
  const auto is_same = [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name && a.stored == b.stored && a.shape.size() == b.shape.size(); };
  if (!std::equal(tensors.begin(), tensors.end(), whole.begin(), whole.end(), is_same)) refuse(std::string("a shape has other ") + name);
  return tensors;
}

inline Shape shape_of(const json::Object& about, const std::vector<TensorInfo>& inputs, const std::vector<TensorInfo>& outputs) {
  Shape shape{text(about, "entry"), tensors_like(inputs, about, "inputs"), tensors_like(outputs, about, "outputs"), {}, {}, {}};
  if (about.count(ffi::String("sizes")) == 0) return shape;
  const json::Object sizes = field(about, "sizes").cast<json::Object>();
  for (const ffi::Any& row : list(sizes, "bounds")) {
    const std::vector<int64_t> bounds = integers(row, "bounds", 2, 0, INT32_MAX);
    shape.bounds.emplace_back(bounds[0], bounds[1]);
  }
  shape.free_inputs = free_axes(sizes, "inputs", shape.inputs, shape.bounds.size());
  shape.free_outputs = free_axes(sizes, "outputs", shape.outputs, shape.bounds.size());
  return shape;
}

inline ShapeSet shape_set(const json::Object& about, const std::vector<TensorInfo>& inputs, const std::vector<TensorInfo>& outputs) {
  ShapeSet set;
  for (const ffi::Any& each : list(about, "shapes")) set.shapes.push_back(shape_of(each.cast<json::Object>(), inputs, outputs));
  for (const auto& [name, bytes] : field(about, "padding").cast<json::Object>()) {
    const std::string input = name.cast<ffi::String>();
    for (const TensorInfo& each : inputs) {
      if (each.name == input) set.padding[input] = element_bytes_of(bytes, "padding", each.element_bytes());
    }
  }
  const auto axis_of = [](const std::vector<TensorInfo>& tensors, int64_t tensor, int64_t axis) {
    const size_t at = place(tensor, tensors.size(), "the model");
    return std::pair(at, place(axis, tensors[at].shape.size(), "an axis"));
  };
  for (const ffi::Any& row : list(about, "groups")) {
    const std::vector<int64_t> axes = integers(row, "groups", 0, 0, INT32_MAX);
    set.groups.emplace_back();
    for (size_t i = 0; i + 1 < axes.size(); i += 2) set.groups.back().push_back(axis_of(inputs, axes[i], axes[i + 1]));
  }
  for (const ffi::Any& each : list(about, "cuts")) {
    const std::vector<int64_t> row = integers(each, "cuts", 7, -INT32_MAX, INT32_MAX);
    const auto [output, axis] = axis_of(outputs, row[0], row[1]);
    const auto [input, input_axis] = axis_of(inputs, row[2], row[3]);
    set.cuts.push_back({output, axis, input, input_axis, extent_of(row, 4)});
  }
  return set;
}

/// Return the place of a tensor that has a number of elements, 0 for any.
inline size_t named(const std::vector<TensorInfo>& tensors, const std::string& name, size_t elements) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name && (elements == 0 || tensors[i].bytes == elements * tensors[i].element_bytes())) return i;
  }
  refuse("the decoder has no tensor " + name + ", or one of another size");
}

inline Step step_of(const json::Object& about, const Decoder& decoder, const json::Object& state, const TensorInfo& logits, size_t rows) {
  Step step{{text(about, "entry"), tensor_infos(about, "inputs"), tensor_infos(about, "outputs"), {}, {}, {}}, {}, 0, 0};
  const std::vector<TensorInfo>&inputs = step.shape.inputs, &outputs = step.shape.outputs;
  for (const auto& [name, value] : state) {
    const std::string past = name.cast<ffi::String>(), present = value.cast<ffi::String>();
    const size_t input = named(inputs, past, 0), output = named(outputs, present, 0);
    const bool is_shared = decoder.steps.empty() || inputs[input].same_numbers(decoder.steps[0].shape.inputs[named(decoder.steps[0].shape.inputs, past, 0)]);
    if (!inputs[input].same_numbers(outputs[output]) || !is_shared) refuse("the decoder's " + past + " has several shapes");
    step.state.emplace_back(output, input);
  }
  const std::map<std::string, size_t> sizes = {{"input_ids", rows}, {"attention_mask", decoder.mask(rows)}, {"position_ids", rows}, {decoder.row, 1}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (std::any_of(step.state.begin(), step.state.end(), [&](const auto& pair) { return pair.second == i; })) continue;
    const auto known = sizes.find(inputs[i].name);
    if (known == sizes.end() || named(inputs, inputs[i].name, known->second) != i) refuse("a decoder has no input " + inputs[i].name);
    if (inputs[i].type.code != kDLInt || inputs[i].type.bits < 32) refuse(inputs[i].name + " is stored as " + inputs[i].stored);
  }
  step.logits = named(outputs, logits.name, 0);
  step.token = named(outputs, decoder.token, 1);
  const DLDataType& token = outputs[step.token].type;
  if (!outputs[step.logits].same_numbers(logits) || token.code != kDLInt || token.bits != 64 || outputs.size() != step.state.size() + 2) refuse("the decoder's models have other outputs");
  return step;
}

inline Decoder decoder_of(const json::Object& about, const std::vector<TensorInfo>& outputs) {
  Decoder decoder;
  if (outputs.size() != 1 || outputs[0].type.code != kDLFloat || outputs[0].type.bits > 32 || outputs[0].bytes == 0) refuse("a decoder has one output, of float16 or float32");
  decoder.row = text(about, "row");
  decoder.token = text(about, "token");
  decoder.length = static_cast<size_t>(integer(field(about, "length"), "length", 1, kMostElements));
  decoder.chunk = static_cast<size_t>(integer(field(about, "chunk"), "chunk", 1, static_cast<int64_t>(decoder.length)));
  if (about.count(ffi::String("is_left_padded")) != 0) decoder.is_left_padded = field(about, "is_left_padded").cast<bool>();
  if (field(about, "words") != nullptr) decoder.words = integer(field(about, "words"), "words", 1, INT32_MAX);
  for (const ffi::Any& each : list(about, "models")) {
    const size_t rows = decoder.steps.empty() ? 1 : decoder.chunk;
    decoder.steps.push_back(step_of(each.cast<json::Object>(), decoder, field(about, "state").cast<json::Object>(), outputs[0], rows));
  }
  if (decoder.steps.size() != std::min<size_t>(decoder.chunk, 2)) refuse("a decoder has " + std::to_string(decoder.steps.size()) + " models");
  return decoder;
}

inline Variant variant_of(const json::Object& object) {
  Variant variant{text(object, "name"), text(object, "kind"), text(object, "device"), text(object, "target"), {}, field(object, "device_type").cast<int64_t>(), integer(field(object, "scopes"), "scopes", 1, kMostScopes)};
  if (variant.name.empty() || variant.name[0] == '.' || variant.name.find('/') != std::string::npos) refuse("the variant " + variant.name + " is no folder of the model");
  // A newer Romou may have other kinds of devices. Its variants for them are left.
  const auto known = kDeviceTypes.find(variant.kind);
  if (known != kDeviceTypes.end() && known->second != variant.device_type) refuse("device_type of " + variant.kind + " is " + std::to_string(variant.device_type) + ", not " + std::to_string(known->second));
  for (const ffi::Any& word : list(object, "words")) variant.words.push_back(word.cast<ffi::String>());
  return variant;
}

/// Raise ROMOU_DAMAGED unless the last entry of model.json is the checksum of the text before it, and the parser, which calls itself for each bracket,
/// can read the text.
inline void check_text(const std::string& content) {
  const size_t end = std::min(content.rfind("\"checksum\""), content.size());
  const uint32_t checksum = adler32(std::string_view(content).substr(0, end));
  if (content.compare(end, std::string::npos, "\"checksum\": " + std::to_string(checksum) + "\n}") != 0) refuse("it is not what was exported");
  bool is_quoted = false;
  int depth = 0;
  for (size_t i = 0; i < end; ++i) {
    const char c = content[i];
    if (c == '"') is_quoted = !is_quoted;
    if (is_quoted && c == '\\') ++i;
    if (!is_quoted && (c == '[' || c == '{') && ++depth > kMostDepth) refuse("it is nested more than " + std::to_string(kMostDepth) + " deep");
    if (!is_quoted && (c == ']' || c == '}')) --depth;
  }
}

/// Read model.json. Raises ROMOU_MISSING or ROMOU_DAMAGED.
inline Description read_description(const Files& files) {
  const std::string content = files.read(kDescription, kMostBytes).bytes;
  return failing_as(ROMOU_DAMAGED, kDescription, [&] {
    check_text(content);
    const json::Object about = json::Parse(ffi::String(content)).cast<json::Object>();
    const int64_t format = field(about, "format").cast<int64_t>();
    if (format != kFormat) {
      throw Failure(ROMOU_DAMAGED, std::string(kDescription) + " is of format " + std::to_string(format) + ", this library reads " + std::to_string(kFormat) + "; export the model again");
    }
    Description description;
    description.inputs = tensor_infos(about, "inputs");
    description.outputs = tensor_infos(about, "outputs");
    if (about.count(ffi::String("shapes")) != 0) description.set = shape_set(about, description.inputs, description.outputs);
    if (about.count(ffi::String("decoder")) != 0) description.decoder = decoder_of(field(about, "decoder").cast<json::Object>(), description.outputs);
    for (const ffi::Any& each : list(about, "variants")) description.variants.push_back(variant_of(each.cast<json::Object>()));
    for (const auto& [name, value] : field(about, "files").cast<json::Object>()) {
      const json::Object file = value.cast<json::Object>();
      description.files[name.cast<ffi::String>()] = {static_cast<size_t>(integer(field(file, "bytes"), "bytes", 0, INT64_MAX)), static_cast<uint32_t>(integer(field(file, "checksum"), "checksum", 0, UINT32_MAX))};
    }
    return description;
  });
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_DESCRIPTION_H_
