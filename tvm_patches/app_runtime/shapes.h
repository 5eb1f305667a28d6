// SPDX-License-Identifier: Apache-2.0
//
// The shapes of a model, and how inputs between them are padded and outputs cut. romou/compiler/frontend/padding.py says the same for Python.
#ifndef ROMOU_APP_RUNTIME_SHAPES_H_
#define ROMOU_APP_RUNTIME_SHAPES_H_

#include <dlpack/dlpack.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "failure.h"

namespace romou::app {

struct TensorInfo {
  std::string name, dtype, stored;
  std::vector<int64_t> shape;
  DLDataType type{};
  size_t bytes = 0;
  std::string value;  ///< the only value that an input can have, or empty

  bool same_numbers(const TensorInfo& other) const { return stored == other.stored && shape == other.shape; }
  size_t element_bytes() const { return (type.bits * type.lanes + 7) / 8; }

  /// Take another shape. Texts stay where they are. Raises std::out_of_range if a side is negative or no int32, or no memory is so large.
  void reshape(std::vector<int64_t> other) {
    size_t whole = element_bytes();
    for (const int64_t side : other) {
      if (side < 0 || side > INT32_MAX) throw std::out_of_range("a side is " + std::to_string(side) + ", allowed are 0 to " + std::to_string(INT32_MAX));
      if (__builtin_mul_overflow(whole, static_cast<size_t>(side), &whole)) throw std::out_of_range("the shape has too many elements");
    }
    shape = std::move(other);
    bytes = whole;
  }
};

/// The extent of an axis that follows from a size: floor((factor * size + offset) / divisor).
struct Extent {
  int64_t factor, offset, divisor;

  int64_t of(int64_t size) const {
    const int64_t scaled = factor * size + offset;
    return scaled / divisor - (scaled % divisor < 0 ? 1 : 0);
  }
};

/// An axis of an input or output that follows from a size at run time. Several of one axis are multiplied.
struct FreeAxis {
  size_t tensor, axis, place;  ///< place: of the size
  Extent extent;
};

/// A function of the model, for one shape or for all sizes at run time up to its shape.
struct Shape {
  std::string entry;
  std::vector<TensorInfo> inputs, outputs;
  std::vector<std::pair<int64_t, int64_t>> bounds;  ///< the least and the most of each size at run time
  std::vector<FreeAxis> free_inputs, free_outputs;

  /// Return the sizes at run time of these inputs. Empty: there are none, or the inputs have other shapes.
  std::vector<int64_t> sizes_in(const std::vector<TensorInfo>& given) const {
    std::vector<int64_t> sizes(bounds.size(), 0);
    for (const FreeAxis& each : free_inputs) {
      const std::vector<int64_t>& sides = given[each.tensor].shape;
      if (each.axis < sides.size()) sizes[each.place] = sides[each.axis] - each.extent.offset;
    }
    for (size_t place = 0; place < bounds.size(); ++place) {
      if (sizes[place] < bounds[place].first || sizes[place] > bounds[place].second) return {};
    }
    const std::vector<std::vector<int64_t>> wanted = shapes_at(inputs, free_inputs, sizes);
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].shape != wanted[i]) return {};
    }
    return sizes;
  }

  /// Return the shapes of tensors at sizes at run time. A side that is negative or no int32 is -1.
  static std::vector<std::vector<int64_t>> shapes_at(const std::vector<TensorInfo>& tensors, const std::vector<FreeAxis>& axes, const std::vector<int64_t>& sizes) {
    std::vector<std::vector<int64_t>> shapes;
    for (const TensorInfo& tensor : tensors) shapes.push_back(tensor.shape);
    if (sizes.empty()) return shapes;
    for (const FreeAxis& each : axes) shapes[each.tensor][each.axis] = 1;
    for (const FreeAxis& each : axes) {
      int64_t &side = shapes[each.tensor][each.axis], extent = each.extent.of(sizes[each.place]);
      if (side < 0 || extent < 0 || __builtin_mul_overflow(side, extent, &side) || side > INT32_MAX) side = -1;
    }
    return shapes;
  }
};

/// An output's axis that follows from an input's axis.
struct Cut {
  size_t output, axis, input, input_axis;
  Extent extent;
};

/// One of a decoder's models: for one token, or for a chunk of a prompt.
struct Step {
  Shape shape;
  std::vector<std::pair<size_t, size_t>> state;  ///< an output, and the input that it becomes in the next run
  size_t logits, token;                          ///< the other outputs
};

/// A decoder of a language model. Its models share their state, which are caches of keys and values.
struct Decoder {
  std::vector<Step> steps;  ///< for one token, and for a chunk if that is more. Empty: the model is none
  std::string row;          ///< the input that selects the row whose logits are wanted
  std::string token;        ///< the output that has the place of the largest one
  int64_t words = 0;        ///< 0: unknown
  size_t length = 0, chunk = 0;
  bool is_left_padded = false;  ///< tokens are the last entries of the caches, and of the first chunk. Else they are the first
  size_t mask(size_t rows) const { return is_left_padded ? length + rows : length; }
};

struct ShapeSet {
  std::vector<Shape> shapes;
  std::map<std::string, std::string> padding;                   ///< input -> bytes of an element behind its own
  std::vector<std::vector<std::pair<size_t, size_t>>> groups;  ///< inputs and axes that have one size
  std::vector<Cut> cuts;

  /// Return the shape of these inputs, the least bounds of their sizes, or the next larger shape. Raises ROMOU_INVALID if there is none.
  const Shape& choose(const std::vector<TensorInfo>& given) const {
    const Shape* found = nullptr;
    size_t least = 0;
    for (const Shape& shape : shapes) {
      size_t elements = 0;
      bool is_equal = true, holds = true;
      for (size_t i = 0; i < given.size(); ++i) {
        const std::vector<int64_t>&mine = given[i].shape, &whole = shape.inputs[i].shape;
        elements += shape.inputs[i].bytes / shape.inputs[i].element_bytes();
        if (mine == whole) continue;
        is_equal = false;
        holds = holds && mine.size() == whole.size() && padding.count(given[i].name) != 0;
        for (size_t axis = 0; holds && axis < mine.size(); ++axis) holds = mine[axis] > 0 && mine[axis] <= whole[axis];
      }
      if (is_equal) return shape;
      holds = holds || !shape.sizes_in(given).empty();
      if (holds && (found == nullptr || elements < least)) found = &shape, least = elements;
    }
    for (const auto& group : groups) {
      for (const auto& [input, axis] : group) {
        if (found != nullptr && given[input].shape[axis] != given[group[0].first].shape[group[0].second]) found = nullptr;
      }
    }
    if (found == nullptr) {
      std::string known;
      for (const Shape& shape : shapes) known += (known.empty() ? "" : "; ") + text(shape.inputs);
      throw Failure(ROMOU_INVALID, "no shape of the model takes " + text(given) + "; it was compiled for " + known);
    }
    return *found;
  }

  /// Return the shapes of the outputs of a run of `shape` for these inputs.
  std::vector<std::vector<int64_t>> output_shapes(const Shape& shape, const std::vector<TensorInfo>& given) const {
    std::vector<std::vector<int64_t>> shapes = Shape::shapes_at(shape.outputs, shape.free_outputs, shape.sizes_in(given));
    for (const Cut& cut : cuts) shapes[cut.output][cut.axis] = cut.extent.of(given[cut.input].shape[cut.input_axis]);
    return shapes;
  }

  static std::string text(const std::vector<TensorInfo>& inputs) {
    std::string text;
    for (const TensorInfo& input : inputs) {
      std::string sides;
      for (const int64_t side : input.shape) sides += (sides.empty() ? "" : "x") + std::to_string(side);
      text += (text.empty() ? "" : ", ") + input.name + " " + sides;
    }
    return text;
  }
};

/// Copy the elements that two tensors of the same rank have in common, by rows of the last axis.
inline void copy_common(const char* from, const std::vector<int64_t>& from_shape, char* to, const std::vector<int64_t>& to_shape, size_t element, size_t axis = 0) {
  if (from_shape.empty()) {
    std::memcpy(to, from, element);
    return;
  }
  const int64_t count = std::min(from_shape[axis], to_shape[axis]);
  if (axis + 1 == from_shape.size()) {
    std::memcpy(to, from, static_cast<size_t>(count) * element);
    return;
  }
  size_t from_step = element, to_step = element;
  for (size_t i = axis + 1; i < from_shape.size(); ++i) from_step *= static_cast<size_t>(from_shape[i]), to_step *= static_cast<size_t>(to_shape[i]);
  for (int64_t i = 0; i < count; ++i) copy_common(from + static_cast<size_t>(i) * from_step, from_shape, to + static_cast<size_t>(i) * to_step, to_shape, element, axis + 1);
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_SHAPES_H_
