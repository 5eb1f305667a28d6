// SPDX-License-Identifier: Apache-2.0
//
// The rule by which a tensor becomes an image.
//
// A tensor whose memory scope names a texture is stored as a 2D-array image (image2d_array_t, texture2DArray) of RGBA texels. Its last axis must
// be 4 and becomes the lanes of a texel. float32 gives 128-bit texels, float16 64-bit ones. A separator s splits the other axes:
//
//     layers = product of shape[0 .. s-2]     height = shape[s-1]     width = product of shape[s .. ndim-2]
//
//     scope                     s           example
//     "global.texture"          ndim - 2    (n, c, h, w, 4)  ->  layers n*c, height h, width w
//     "global.texture-weight"   1           (o, i, h, w, 4)  ->  layers 1, height o, width i*h*w
//     "global.texture-nhwc"     2           (n, h, w, c, 4)  ->  layers n, height h, width w*c
//     "global.texture-2d"       1           as "global.texture-weight", but a plain 2D image (image2d_t) if the API has them (OpenCL),
//                                           whose texels may also be of int32 and uint32
//
// The last axis of a matrix is cut into texels:
//
//     "global.texture-rows"                 (b, m, 4 * k)    ->  layers 1, height b*m, width k, an image as for "global.texture-2d"
//     "global.texture-rows-joined"          (b, m, h, 4 * k) ->  layers 1, height b*m, width h*k
//
// Two more scopes are for handwritten OpenCL kernels, which declare image1d_t and image2d_t. Their texels may also be of int32
// and uint32:
//
//     "global.image1d"          (w, 4)           "global.image2d"          (h, w, 4)
//
// TVM's texture lowering expects this layout, so its kernels and ours agree. A tensor of two axes (x, 4) has s = 0 under
// "global.texture": one layer, one row of x texels. Row-major order of the tensor is row-major order of layers, rows and texels
// under every scope, so copies between images of different shape go through a buffer without reordering.
#ifndef ROMOU_DEVICE_RUNTIME_IMAGE_SHAPE_H_
#define ROMOU_DEVICE_RUNTIME_IMAGE_SHAPE_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace romou {

enum class ImageKind : size_t { kArray2D, kPlain1D, kPlain2D };

/// Numbers of a texel. Floats have as many bits as the texel's bytes allow.
enum class TexelType : size_t { kFloat, kSigned, kUnsigned };

/// Extent of an image in texels, the bytes of one texel (8 or 16), and its kind.
struct ImageShape {
  size_t width = 0, height = 0, layers = 0, texel_bytes = 0;
  ImageKind kind = ImageKind::kArray2D;
  TexelType type = TexelType::kFloat;
  size_t bytes() const { return width * height * layers * texel_bytes; }
  /// "64x32x2 texels of 16 bytes (width, height, layers)"
  std::string text() const {
    std::ostringstream out;
    out << width << "x" << height << "x" << layers << " texels of " << texel_bytes << " bytes (width, height, layers)";
    return out.str();
  }
  auto operator<=>(const ImageShape&) const = default;
  /// Return the first layers, up to `part` bytes.
  ImageShape first(size_t part) const {
    ImageShape found = *this;
    found.layers = part / (bytes() / layers);
    return found;
  }
  /// Return whether the first layers of this image have the shape of `other`.
  bool holds(const ImageShape& other) const { return other.layers <= layers && first(other.bytes()) == other; }
};

/// Return how many last axes of a matrix form a row of its image. 0 for scopes without matrices.
inline int axes_of_rows(const std::string& scope) { return scope == "global.texture-rows" ? 1 : scope == "global.texture-rows-joined" ? 2 : 0; }

/// Return whether a scope is of images. "" and "global" are buffers.
inline bool is_buffer_scope(const std::string& scope) { return scope.empty() || scope == "global"; }

/// Return the image of a tensor, by the rule above. Raises ValueError for an unknown scope, a last axis other than 4, a type that the scope does not
/// support, an extent of zero, or a number of bytes that overflows. `api` is named in errors. `has_plain_images`: whether the two scopes for OpenCL
/// are allowed.
inline ImageShape image_shape_of(int ndim, const int64_t* shape, DLDataType dtype, const std::string& scope, const char* api, bool has_plain_images) {
  int separator = 0;
  ImageKind kind = ImageKind::kArray2D;
  if (has_plain_images && (scope == "global.image1d" || scope == "global.image2d")) {
    separator = scope == "global.image1d" ? 0 : 1;
    kind = separator == 0 ? ImageKind::kPlain1D : ImageKind::kPlain2D;
    if (ndim != separator + 2) TVM_FFI_THROW(ValueError) << "a tensor in scope '" << scope << "' has " << separator + 2 << " axes, not " << ndim;
  } else if (scope == "global.texture") {
    separator = ndim - 2;
  } else if (scope == "global.texture-weight" || scope == "global.texture-2d") {
    separator = 1;
    if (has_plain_images && scope == "global.texture-2d") kind = ImageKind::kPlain2D;
  } else if (scope == "global.texture-nhwc") {
    separator = 2;
  } else if (axes_of_rows(scope) > 0) {
    separator = axes_of_rows(scope);
    if (has_plain_images) kind = ImageKind::kPlain2D;
  } else {
    TVM_FFI_THROW(ValueError) << "unknown memory scope '" << scope << "' for " << api
                              << "; known are global, global.texture, global.texture-weight, global.texture-nhwc, global.texture-2d, "
                              << "global.texture-rows, global.texture-rows-joined"
                              << (has_plain_images ? ", global.image1d, global.image2d" : "");
  }
  std::ostringstream axes;
  for (int i = 0; i < ndim; ++i) axes << (i ? ", " : "") << shape[i];
  const std::string what = "a tensor of shape (" + axes.str() + ") in scope '" + scope + "'";
  if (ndim < 2 || separator >= ndim) {
    TVM_FFI_THROW(ValueError) << what << " has too few axes for an image (" << std::max(2, separator + 1) << " are needed)";
  }
  const bool is_matrix = axes_of_rows(scope) > 0;
  if ((is_matrix ? shape[ndim - 1] % 4 != 0 : shape[ndim - 1] != 4) || dtype.lanes != 1) {
    TVM_FFI_THROW(ValueError) << what << " cannot be an image: its last axis must be " << (is_matrix ? "a multiple of 4" : "4") << ", the lanes of a texel";
  }
  const bool is_integer = kind != ImageKind::kArray2D && (dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.bits == 32;
  if (!is_integer && (dtype.code != kDLFloat || (dtype.bits != 32 && dtype.bits != 16))) {
    TVM_FFI_THROW(ValueError) << what << " cannot be an image: only float32 and float16 can";
  }
  const TexelType type = dtype.code == kDLInt ? TexelType::kSigned : dtype.code == kDLUInt ? TexelType::kUnsigned : TexelType::kFloat;
  ImageShape image{1, 1, 1, static_cast<size_t>(dtype.bits) / 2, kind, type};
  size_t bytes = image.texel_bytes;
  for (int i = 0; i < ndim; ++i) {
    const bool is_last = i + 1 == ndim;
    const int64_t texels = is_last ? shape[i] / 4 : shape[i];
    if (texels <= 0) TVM_FFI_THROW(ValueError) << what << " cannot be an image: it is empty";
    const bool is_height = is_matrix ? i + axes_of_rows(scope) < ndim : i + 1 == separator;
    size_t& extent = is_height ? image.height : i + 1 < separator ? image.layers : image.width;
    extent *= static_cast<size_t>(texels);
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(texels), &bytes)) TVM_FFI_THROW(ValueError) << what << " cannot be an image: it is too large";
  }
  return image;
}

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_IMAGE_SHAPE_H_
