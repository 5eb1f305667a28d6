// SPDX-License-Identifier: Apache-2.0
//
// The Python object for a recorded run. Its functions:
//
//     what() -> text                      what launches are recorded in, for a person
//     finish() -> number of launches      end the recording
//     launch()                            enqueue it without waiting
//     time_ns() -> ns                     enqueue it, wait, time by the device's clock
#ifndef ROMOU_DEVICE_RUNTIME_RECORDED_RUN_H_
#define ROMOU_DEVICE_RUNTIME_RECORDED_RUN_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <memory>
#include <utility>

namespace romou {

/// The run that each thread records. `Run` has `is_recording()`.
template <typename Run>
class RecordedHere {
 public:
  static void set(const std::shared_ptr<Run>& run) { slot() = run; }
  /// Return the run that this thread records, or null.
  static std::shared_ptr<Run> current() {
    auto found = slot().lock();
    return found != nullptr && found->is_recording() ? found : nullptr;
  }

 private:
  // Weak: a recording may end on another thread.
  static std::weak_ptr<Run>& slot() {
    thread_local std::weak_ptr<Run> run;
    return run;
  }
};

/// `Run` has `what()`, `finish()`, `enqueue()` and `time_ns()`.
template <typename Run>
class RecordedRun final : public tvm::ffi::ModuleObj {
 public:
  RecordedRun(const char* kind, std::shared_ptr<Run> run) : kind_(kind), run_(std::move(run)) {}

  const char* kind() const final { return kind_; }

  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final {
    using tvm::ffi::Function;
    auto self = tvm::ffi::GetRef<tvm::ffi::Module>(this);
    if (name == "what") return Function::FromTyped([self, this] { return tvm::ffi::String(run_->what()); });
    if (name == "finish") return Function::FromTyped([self, this] { return run_->finish(); });
    if (name == "launch") return Function::FromTyped([self, this] { run_->enqueue(); });
    if (name == "time_ns") return Function::FromTyped([self, this] { return run_->time_ns(); });
    return std::nullopt;
  }

 private:
  const char* kind_;
  std::shared_ptr<Run> run_;
};

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_RECORDED_RUN_H_
