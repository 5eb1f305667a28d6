// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: memory for one RPC packet at a time.
#ifndef TVM_SUPPORT_ARENA_H_
#define TVM_SUPPORT_ARENA_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace tvm::support {

/// Hands out memory that lives until RecycleAll.
class Arena {
 public:
  /// Room for `count` values of a trivial type, aligned for any of them.
  template <typename T>
  T* allocate_(int count) {
    static_assert(alignof(T) <= alignof(std::max_align_t));
    const size_t bytes = sizeof(T) * static_cast<size_t>(count);
    blocks_.emplace_back(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    return reinterpret_cast<T*>(blocks_.back().get());
  }

  void RecycleAll() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_ARENA_H_
