// SPDX-License-Identifier: Apache-2.0
//
// A model on a device: TVM's virtual machine over an exported model's graph and kernels.
#ifndef ROMOU_APP_RUNTIME_MODEL_H_
#define ROMOU_APP_RUNTIME_MODEL_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "choice.h"
#include "description.h"
#include "files.h"

namespace romou::app {

class Model {
 public:
  /// Open the variant that suits a device best. If it does not start, the next one is tried.
  Model(Files& files, const romou_options& options);

  size_t input_count() const { return inputs().size(); }
  size_t output_count() const { return outputs().size(); }
  /// Describe an input or an output as it is now. What the description points to lives as long as the model.
  romou_tensor input(size_t index) const { return described(inputs(), index); }
  romou_tensor output(size_t index) const { return described(outputs(), index); }
  /// Give an input of a model of several shapes a shape. Its outputs have theirs when a run is started.
  void reshape(const std::string& input, std::vector<int64_t> shape);
  const std::string& about() const { return about_; }

  void set(const std::string& input, const void* data, size_t bytes);
  /// Enqueue a run. It may not be done when this returns.
  void start();
  void wait();
  /// Read tokens of a decoder, and return the one that follows. See romou.h.
  int64_t decode(const int64_t* tokens, size_t count);
  /// Forget all tokens behind the first `count`.
  void rewind(size_t count);
  void get(const std::string& output, void* data, size_t bytes);
  /// Return the place of an input or output in this process's memory. See romou.h.
  void* map(const std::string& name);
  void unmap(const std::string& name);

 private:
  /// A mapped input or output.
  struct Mapping {
    bool is_input;
    size_t place;
    void* data;
    std::vector<char> copy;  ///< where the device has no place in this process's memory
  };

  struct Candidate {
    const Variant* variant;
    Device device;
    Misfit misfit;
  };

  std::vector<Candidate> candidates(const romou_options& options);
  void open(const Candidate& candidate, Files& files, const romou_options& options);
  void prepare_programs(const Candidate& candidate, const std::string& folder);
  void start_machine(const Candidate& candidate);
  void make_inputs();
  void make_caches();
  void take(size_t step, size_t begin, size_t count);
  void call_entry();
  std::vector<ffi::Tensor> padded_inputs(const Shape& shape);
  const std::vector<TensorInfo>& inputs() const { return description_.inputs; }
  const std::vector<TensorInfo>& outputs() const { return description_.outputs; }
  romou_tensor described(const std::vector<TensorInfo>& tensors, size_t index) const;
  bool has_shapes() const { return !description_.set.shapes.empty(); }
  bool is_decoder() const { return !description_.decoder.steps.empty(); }
  void note_time(const char* step, double ms);
  void check_unmapped(const std::string& name) const;
  const DLTensor* tensor_of(const Mapping& mapping) const { return (mapping.is_input ? input_tensors_ : output_tensors_)[mapping.place].GetDLTensorPtr(); }
  size_t place_of(const std::vector<TensorInfo>& tensors, const char* what, const std::string& name, size_t bytes) const;

  Description description_;
  std::string about_;
  json::Object steps_ms_, programs_;
  json::Array left_;
  // Programs of the device are written behind the first run, because some drivers compile in a kernel's first launch.
  std::string program_folder_, functions_;
  DLDevice device_{kDLCPU, 0};
  std::optional<ffi::Module> library_, machine_;
  std::optional<ffi::Function> entry_;
  std::vector<ffi::Tensor> input_tensors_, output_tensors_;
  // Of a model of several shapes: the inputs as they were set, and tensors on the device for each function.
  std::vector<std::string> given_;
  std::map<std::string, std::vector<ffi::Tensor>> tensors_of_;
  std::vector<int64_t> sizes_;  ///< the sizes at run time of the last run, or none
  // Of a decoder: the inputs of each of its models, and the tokens that the caches hold.
  std::vector<std::vector<ffi::Tensor>> step_inputs_;
  std::vector<int64_t> tokens_;
  size_t held_ = 0;  ///< tokens that left-padded caches hold
  std::vector<bool> is_set_, is_mappable_;
  std::map<std::string, Mapping> mappings_;
  // Held by whatever reads or changes shapes and tensors. Texts of the description never change.
  mutable std::mutex mutex_;
  mutable std::set<std::vector<int64_t>> described_shapes_;
};

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_MODEL_H_
