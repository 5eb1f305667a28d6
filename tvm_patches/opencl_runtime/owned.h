// SPDX-License-Identifier: Apache-2.0
//
// Driver handles, released with their owner.
#ifndef ROMOU_OPENCL_OWNED_H_
#define ROMOU_OPENCL_OWNED_H_

#include <utility>

#include "cl_api.h"
#include "error.h"
#include "loader.h"
#include "statistics.h"

namespace romou::opencl {

/// A handle, included in the count of live handles. Its release never raises: on a lost device a release fails as well.
template <typename T, auto Release, auto Count>
class Owned {
 public:
  Owned() = default;
  explicit Owned(T* handle) : handle_(handle) {
    if (handle_ != nullptr) statistics().*Count += 1;
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ == nullptr) return;
    statistics().*Count -= 1;
    if (!is_exiting()) complain((api().*Release)(handle_), "releasing a handle");
  }

  T* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  T* handle_ = nullptr;
};

using Event = Owned<EventHandle, &Api::clReleaseEvent, &Statistics::live_events>;
using Program = Owned<ProgramHandle, &Api::clReleaseProgram, &Statistics::live_programs>;
using KernelObject = Owned<KernelHandle, &Api::clReleaseKernel, &Statistics::live_kernels>;

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_OWNED_H_
