// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship.
#ifndef TVM_SUPPORT_UTILS_H_
#define TVM_SUPPORT_UTILS_H_

#include <tvm/ffi/string.h>

#include <algorithm>
#include <string_view>

namespace tvm::support {

inline bool StartsWith(const ffi::String& text, std::string_view prefix) { return std::string_view(text.data(), text.size()).starts_with(prefix); }

inline bool IsNumber(const ffi::String& text) {
  return text.size() != 0 && std::all_of(text.data(), text.data() + text.size(), [](char c) { return '0' <= c && c <= '9'; });
}

}  // namespace tvm::support

#endif  // TVM_SUPPORT_UTILS_H_
