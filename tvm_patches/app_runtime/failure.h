// SPDX-License-Identifier: Apache-2.0
//
// An error with its code in romou.h.
#ifndef ROMOU_APP_RUNTIME_FAILURE_H_
#define ROMOU_APP_RUNTIME_FAILURE_H_

#include <tvm/ffi/error.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "romou.h"

namespace romou::app {

struct Failure : std::runtime_error {
  Failure(romou_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  romou_status status;
};

/// Return an error's text. TVM's errors would add a backtrace.
inline std::string text_of(const std::exception& error) {
  const auto* of_tvm = dynamic_cast<const tvm::ffi::Error*>(&error);
  return of_tvm == nullptr ? error.what() : of_tvm->message();
}

/// Do `step`. Any error but a `Failure` gets this status, with `what` in front.
template <typename Step>
auto failing_as(romou_status status, const std::string& what, Step step) {
  try {
    return step();
  } catch (const Failure&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Failure(status, what + ": " + text_of(error));
  }
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_FAILURE_H_
