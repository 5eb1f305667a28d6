// SPDX-License-Identifier: Apache-2.0
//
// romou.h for C++17: a model is closed with its object, and errors are exceptions.
//
//   romou::Model model("model");
//   model.set("input", pixels);
//   model.run();
//   std::vector<float> scores = model.get<float>("logits");
#ifndef ROMOU_HPP_
#define ROMOU_HPP_

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "romou.h"

namespace romou {

struct Error : std::runtime_error {
  explicit Error(romou_status status) : std::runtime_error(romou_error()), status(status) {}
  romou_status status;
};

inline void check(romou_status status) {
  if (status != ROMOU_OK) throw Error(status);
}

class Model {
 public:
  explicit Model(const std::string& folder, const romou_options& options = {}) {
    romou_model* model = nullptr;
    check(romou_open(folder.c_str(), &options, &model));
    model_.reset(model);
  }

  explicit Model(const std::vector<romou_file>& files, const romou_options& options = {}) {
    romou_model* model = nullptr;
    check(romou_open_memory(files.data(), files.size(), &options, &model));
    model_.reset(model);
  }

  std::vector<romou_tensor> inputs() const { return all(romou_input_count(get()), romou_input); }
  std::vector<romou_tensor> outputs() const { return all(romou_output_count(get()), romou_output); }

  void reshape(const std::string& input, const std::vector<int64_t>& shape) { check(romou_reshape(get(), input.c_str(), shape.data(), shape.size())); }
  void set(const std::string& input, const void* data, size_t bytes) { check(romou_set(get(), input.c_str(), data, bytes)); }
  template <typename Number>
  void set(const std::string& input, const std::vector<Number>& numbers) {
    set(input, numbers.data(), numbers.size() * sizeof(Number));
  }
  void run() { check(romou_run(get())); }
  void start() { check(romou_start(get())); }
  void wait() { check(romou_wait(get())); }
  void get(const std::string& output, void* data, size_t bytes) { check(romou_get(get(), output.c_str(), data, bytes)); }
  template <typename Number>
  std::vector<Number> get(const std::string& output) {
    for (const romou_tensor& tensor : outputs()) {
      if (output != tensor.name) continue;
      std::vector<Number> numbers(tensor.bytes / sizeof(Number));
      get(output, numbers.data(), tensor.bytes);
      return numbers;
    }
    get(output, &model_, 0);  // raises
    return {};
  }
  /// Read tokens of a decoder, and return the most likely one that follows.
  int64_t decode(const std::vector<int64_t>& tokens) {
    int64_t next = 0;
    check(romou_decode(get(), tokens.data(), tokens.size(), &next));
    return next;
  }
  void rewind(size_t count) { check(romou_rewind(get(), count)); }
  /// Return the place of an input or output, see romou_map.
  template <typename Number>
  Number* map(const std::string& name) {
    void* data = nullptr;
    check(romou_map(get(), name.c_str(), &data));
    return static_cast<Number*>(data);
  }
  void unmap(const std::string& name) { check(romou_unmap(get(), name.c_str())); }
  std::string about() const { return romou_about(get()); }

  romou_model* get() const { return model_.get(); }

 private:
  struct Close {
    void operator()(romou_model* model) const { romou_close(model); }
  };

  template <typename Function>
  std::vector<romou_tensor> all(size_t count, Function of) const {
    std::vector<romou_tensor> tensors(count);
    for (size_t i = 0; i < count; ++i) check(of(get(), i, &tensors[i]));
    return tensors;
  }

  std::unique_ptr<romou_model, Close> model_;
};

}  // namespace romou

#endif  // ROMOU_HPP_
