// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace romou::app {
namespace {

constexpr const char* kCpu = "cpu";
constexpr int kPooled = 2;  // TVM's pooled allocator

template <typename... Args>
ffi::Any call(const std::string& name, Args&&... args) {
  return ffi::Function::GetGlobalRequired(name)(std::forward<Args>(args)...);
}

/// Load the runtimes of all device kinds, and return for each why it cannot be loaded, or "". They register functions in a table of TVM that has no
/// lock, so this comes before any other call of TVM.
const std::map<std::string, std::string>& load_runtimes() {
  static const std::map<std::string, std::string> loaded = [] {
    // A wheel's device runtime names no libraries that it needs. If this one was loaded privately, as a JVM does, it would not find them.
    for (const char* needed : {"libtvm_ffi.so", "libtvm_runtime.so"}) dlopen(needed, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    std::map<std::string, std::string> reasons;
    for (const auto& [kind, type] : kDeviceTypes) {
      const std::string library = "libtvm_runtime_" + kind + ".so";
      // In a process of Python, Romou's package may have loaded its own, and a second one would end the process.
      const bool is_here = type == kDLCPU || ffi::Function::GetGlobal("romou." + kind + ".devices").has_value();
      reasons[kind] = is_here || dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr ? "" : dlerror();
    }
    return reasons;
  }();
  return loaded;
}

/// Return the devices of a kind. Raises if its runtime or its driver is missing.
std::vector<Device> devices_of(const std::string& kind) {
  const auto runtime = load_runtimes().find(kind);
  if (runtime == load_runtimes().end()) throw Failure(ROMOU_MISSING, "this library has no devices of that kind");
  if (!runtime->second.empty()) throw Failure(ROMOU_MISSING, runtime->second);
  if (kind == kCpu) return {{kind, kCpu, kCpu, 0}};
  std::vector<Device> devices;
  for (const ffi::Any& each : json::Parse(call("romou." + kind + ".devices").cast<ffi::String>()).cast<json::Array>()) {
    const json::Object facts = each.cast<json::Object>();
    devices.push_back({kind, text(facts, "name"), text(facts, "type"), static_cast<int>(devices.size()), text(facts, "driver"), text(facts, "platform")});
  }
  return devices;
}

ffi::Tensor new_tensor(const TensorInfo& info, DLDevice device) {
  return call("runtime.TVMTensorAllocWithScope", ffi::Shape(info.shape), info.type, device, ffi::Optional<ffi::String>()).cast<ffi::Tensor>();
}

double ms_since(std::chrono::steady_clock::time_point start) { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(); }

}  // namespace

Model::Model(Files& files, const romou_options& options) : description_((load_runtimes(), read_description(files))) {
  const std::vector<Candidate> all = candidates(options);
  Failure last(ROMOU_NO_DEVICE, "no device here runs the model");
  for (const Candidate& candidate : all) {
    const std::string what = candidate.variant->name + " on " + candidate.device.name;
    try {
      open(candidate, files, options);
      json::Object about;
      const Variant& variant = *candidate.variant;
      const Device& device = candidate.device;
      const auto set = [&](const char* name, const std::string& value) { about.Set(ffi::String(name), ffi::String(value)); };
      set("variant", variant.name);
      set("target", variant.target);
      set("kind", device.kind);
      set("device", device.name);
      set("driver", device.driver);
      set("platform", device.platform);
      about.Set(ffi::String("programs"), programs_);
      about.Set(ffi::String("ms"), steps_ms_);
      about.Set(ffi::String("left"), left_);
      about_ = std::string(json::Stringify(about));
      return;
    } catch (const Failure& failure) {
      if (failure.status == ROMOU_MISSING || failure.status == ROMOU_DAMAGED) throw;
      last = Failure(failure.status, what + ": " + failure.what());
      left_.push_back(ffi::String(last.what()));
    }
  }
  if (all.empty()) {
    std::string reasons;
    for (const ffi::Any& reason : left_) reasons += "; " + std::string(reason.cast<ffi::String>());
    throw Failure(ROMOU_NO_DEVICE, last.what() + reasons);
  }
  throw last;
}

std::vector<Model::Candidate> Model::candidates(const romou_options& options) {
  std::vector<Candidate> found;
  std::map<std::string, std::vector<Device>> devices;
  bool is_known = options.variant == nullptr;
  for (const Variant& variant : description_.variants) {
    if (options.variant != nullptr && variant.name != options.variant) continue;
    is_known = true;
    if (devices.count(variant.kind) == 0) {
      try {
        devices[variant.kind] = devices_of(variant.kind);
      } catch (const std::exception& error) {
        devices[variant.kind] = {};
        left_.push_back(ffi::String(variant.kind + ": " + text_of(error)));
      }
    }
    for (const Device& device : devices[variant.kind]) found.push_back({&variant, device, misfit(variant, device)});
  }
  if (!is_known) {
    std::string names;
    for (const Variant& variant : description_.variants) names += (names.empty() ? "" : ", ") + variant.name;
    throw Failure(ROMOU_INVALID, std::string("the model has no variant ") + options.variant + "; it has " + names);
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.misfit < b.misfit; });
  return found;
}

void Model::note_time(const char* step, double ms) { steps_ms_.Set(ffi::String(step), ms); }

void Model::open(const Candidate& candidate, Files& files, const romou_options& options) {
  const std::string folder = candidate.variant->name + "/";
  device_ = {static_cast<DLDeviceType>(candidate.variant->device_type), candidate.device.index};
  auto start = std::chrono::steady_clock::now();
  const std::string kernels_name = folder + "model.so";
  const OpenFile kernels = open_library(kernels_name, description_.read(files, kernels_name));
  std::string weights = description_.read(files, folder + "weights.bin").bytes;
  library_ = failing_as(ROMOU_DAMAGED, folder + "weights.bin", [&] { return call("ffi.Module.load_from_bytes.relax.VMExecutable", ffi::Bytes(std::move(weights))).cast<ffi::Module>(); });
  failing_as(ROMOU_DAMAGED, kernels_name, [&] {
    (*library_)->ImportModule(call("ffi.Module.load_from_file.so", ffi::String(kernels.path()), ffi::String("so")).cast<ffi::Module>());
  });
  note_time("read", ms_since(start));
  failing_as(ROMOU_FAILED, "the device failed", [&] {
    start = std::chrono::steady_clock::now();
    if (candidate.device.kind != kCpu) prepare_programs(candidate, options.programs != nullptr ? options.programs : files.programs(candidate.variant->name));
    note_time("programs", ms_since(start));
    start = std::chrono::steady_clock::now();
    start_machine(candidate);
    make_inputs();
    wait();
    note_time("weights", ms_since(start));
  });
}

void Model::prepare_programs(const Candidate& candidate, const std::string& folder) {
  functions_ = "romou." + candidate.device.kind + ".";
  // On one thread: some phones' compilers make slower code of the same source in another order.
  programs_ = json::Parse(call(functions_ + "prepare", *library_, candidate.device.index, ffi::String(folder), 1).cast<ffi::String>()).cast<json::Object>();
  const bool has_new = field(programs_, "compiled").cast<int64_t>() != 0;
  program_folder_ = has_new ? folder : std::string();
}

void Model::start_machine(const Candidate& candidate) {
  machine_ = (*library_)->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  // A device for every memory scope, all the same one, and the processor.
  std::vector<ffi::AnyView> places;
  for (int64_t i = 0; i < candidate.variant->scopes; ++i) places.insert(places.end(), {int(device_.device_type), int(device_.device_id), kPooled});
  places.insert(places.end(), {int(kDLCPU), 0, kPooled});
  ffi::Any nothing;
  (*machine_)->GetFunction("vm_initialization").value().CallPacked(places.data(), static_cast<int32_t>(places.size()), &nothing);
  if (!has_shapes() && !is_decoder()) entry_ = (*machine_)->GetFunction("main").value();
  if (candidate.device.kind != kCpu) call(functions_ + "drop_constants", *library_);  // the device has the weights now
}

void Model::make_inputs() {
  input_tensors_.clear();
  is_set_.assign(inputs().size(), false);
  is_mappable_.assign(inputs().size(), device_.device_type == kDLCPU);
  given_.assign(inputs().size(), {});
  for (const TensorInfo& input : inputs()) {
    if (!has_shapes()) input_tensors_.push_back(new_tensor(input, device_));
    if (!input.value.empty()) set(input.name, input.value.data(), input.value.size());
  }
  if (is_decoder()) make_caches();
}

size_t Model::place_of(const std::vector<TensorInfo>& tensors, const char* what, const std::string& name, size_t bytes) const {
  std::string names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) {
      if (bytes != tensors[i].bytes) {
        throw Failure(ROMOU_INVALID, std::string(what) + " " + name + " takes " + std::to_string(tensors[i].bytes) + " bytes, " + std::to_string(bytes) + " were given");
      }
      return i;
    }
    names += (names.empty() ? "" : ", ") + tensors[i].name;
  }
  throw Failure(ROMOU_INVALID, "the model has no " + std::string(what) + " " + name + "; it has " + names);
}

romou_tensor Model::described(const std::vector<TensorInfo>& tensors, size_t index) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (index >= tensors.size()) throw Failure(ROMOU_INVALID, "there is no number " + std::to_string(index) + " of " + std::to_string(tensors.size()));
  const TensorInfo& info = tensors[index];
  const std::vector<int64_t>& shape = *described_shapes_.insert(info.shape).first;
  return {info.name.c_str(), info.dtype.c_str(), info.stored.c_str(), shape.data(), shape.size(), info.bytes};
}

void Model::set(const std::string& input, const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t place = place_of(inputs(), "input", input, bytes);
  check_unmapped(input);
  if (has_shapes()) {
    given_[place].assign(static_cast<const char*>(data), bytes);
    is_set_[place] = true;
    return;
  }
  failing_as(ROMOU_FAILED, "input " + input, [&] {
    if (bytes != 0) call("runtime.TVMTensorCopyFromBytes", const_cast<DLTensor*>(input_tensors_[place].GetDLTensorPtr()), const_cast<void*>(data), static_cast<int64_t>(bytes));
  });
  is_set_[place] = true;
}

void Model::reshape(const std::string& input, std::vector<int64_t> shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TensorInfo>& known = description_.inputs;
  const auto found = std::find_if(known.begin(), known.end(), [&](const TensorInfo& tensor) { return tensor.name == input; });
  if (found == known.end()) throw Failure(ROMOU_INVALID, "the model has no input " + input);
  if (shape == found->shape) return;
  if (!has_shapes()) throw Failure(ROMOU_INVALID, "the model has one shape: " + ShapeSet::text(known));
  failing_as(ROMOU_INVALID, "input " + input, [&] { found->reshape(std::move(shape)); });
  is_set_[static_cast<size_t>(found - known.begin())] = false;
}

std::vector<ffi::Tensor> Model::padded_inputs(const Shape& shape) {
  std::vector<ffi::Tensor>& tensors = tensors_of_[shape.entry];
  for (size_t i = tensors.size(); i < shape.inputs.size(); ++i) tensors.push_back(new_tensor(shape.inputs[i], device_));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo &given = inputs()[i], &whole = shape.inputs[i];
    std::string padded;
    if (!shape.bounds.empty() && given.bytes < whole.bytes) {
      // The elements of the size are the first ones.
      padded = given_[i];
      padded.resize(whole.bytes);
    } else if (given.shape != whole.shape) {
      const std::string& value = description_.set.padding.at(given.name);
      for (size_t at = 0; at < whole.bytes; at += value.size()) padded += value;
      copy_common(given_[i].data(), given.shape, padded.data(), whole.shape, whole.element_bytes());
    }
    std::string value = whole.value;
    std::string& bytes = !value.empty() ? value : padded.empty() ? given_[i] : padded;
    if (!bytes.empty()) call("runtime.TVMTensorCopyFromBytes", const_cast<DLTensor*>(tensors[i].GetDLTensorPtr()), static_cast<void*>(bytes.data()), static_cast<int64_t>(bytes.size()));
  }
  return tensors;
}

void Model::start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_decoder()) throw Failure(ROMOU_INVALID, "the model is a decoder; romou_decode runs it");
  for (size_t i = 0; i < inputs().size(); ++i) {
    if (!is_set_[i]) throw Failure(ROMOU_INVALID, "input " + inputs()[i].name + " was never set");
  }
  for (const auto& [name, mapping] : mappings_) check_unmapped(name);
  if (has_shapes()) {
    const Shape& shape = description_.set.choose(inputs());
    failing_as(ROMOU_FAILED, "the inputs", [&] { input_tensors_ = padded_inputs(shape); });
    sizes_ = shape.sizes_in(inputs());
    failing_as(ROMOU_DAMAGED, "the outputs", [&] {
      std::vector<std::vector<int64_t>> shapes = description_.set.output_shapes(shape, inputs());
      for (size_t i = 0; i < shapes.size(); ++i) description_.outputs[i].reshape(std::move(shapes[i]));
    });
    entry_ = (*machine_)->GetFunction(shape.entry).value();
  }
  failing_as(ROMOU_FAILED, "the run failed", [&] { call_entry(); });
}

void Model::call_entry() {
  std::vector<ffi::AnyView> arguments(input_tensors_.begin(), input_tensors_.end());
  arguments.insert(arguments.end(), sizes_.begin(), sizes_.end());
  ffi::Any result;
  output_tensors_.clear();  // their memory serves this run
  entry_->CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  if (auto one = result.as<ffi::Tensor>()) {
    output_tensors_.push_back(*one);
  } else {
    for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>()) output_tensors_.push_back(each.cast<ffi::Tensor>());
  }
  if (const auto flush = ffi::Function::GetGlobal(functions_ + "flush"); flush.has_value()) (*flush)(device_.device_id);
  if (!program_folder_.empty()) {
    call("runtime.Device_StreamSync", device_, static_cast<int64_t>(0));
    call(functions_ + "keep", *library_, static_cast<int>(device_.device_id), ffi::String(std::exchange(program_folder_, {})));
  }
}

void Model::wait() {
  const std::lock_guard<std::mutex> lock(mutex_);
  failing_as(ROMOU_FAILED, "the run failed", [&] { call("runtime.Device_StreamSync", device_, static_cast<int64_t>(0)); });
}

void Model::get(const std::string& output, void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t place = place_of(outputs(), "output", output, bytes);
  if (output_tensors_.empty()) throw Failure(ROMOU_INVALID, "the model has not run yet");
  failing_as(ROMOU_FAILED, "output " + output, [&] {
    const DLTensor* tensor = output_tensors_.at(place).GetDLTensorPtr();
    if (has_shapes() && ffi::GetDataSize(*tensor) > bytes) {
      std::string whole(ffi::GetDataSize(*tensor), 0);
      call("runtime.TVMTensorCopyToBytes", const_cast<DLTensor*>(tensor), static_cast<void*>(whole.data()), static_cast<int64_t>(whole.size()));
      if (!sizes_.empty()) {
        std::memcpy(data, whole.data(), bytes);
        return;
      }
      copy_common(whole.data(), std::vector<int64_t>(tensor->shape, tensor->shape + tensor->ndim), static_cast<char*>(data), outputs()[place].shape, outputs()[place].element_bytes());
      return;
    }
    if (ffi::GetDataSize(*tensor) != bytes) throw Failure(ROMOU_DAMAGED, "output " + output + " has " + std::to_string(ffi::GetDataSize(*tensor)) + " bytes, not those that were exported");
    if (bytes != 0) call("runtime.TVMTensorCopyToBytes", const_cast<DLTensor*>(tensor), data, static_cast<int64_t>(bytes));
  });
}

void Model::make_caches() {
  std::map<std::string, ffi::Tensor> caches;
  for (const Step& step : description_.decoder.steps) {
    std::vector<ffi::Tensor>& tensors = step_inputs_.emplace_back();
    for (const TensorInfo& input : step.shape.inputs) tensors.push_back(new_tensor(input, device_));
    for (const auto& [_, place] : step.state) {
      const TensorInfo& info = step.shape.inputs[place];
      const auto [known, is_new] = caches.emplace(info.name, tensors[place]);
      tensors[place] = known->second;
      // What was never written has the weight zero, which makes no number of NaN.
      std::string zeros(is_new ? info.bytes : 0, '\0');
      if (!zeros.empty()) call("runtime.TVMTensorCopyFromBytes", const_cast<DLTensor*>(tensors[place].GetDLTensorPtr()), static_cast<void*>(zeros.data()), static_cast<int64_t>(zeros.size()));
    }
  }
}

/// Run one of the decoder's models on `count` of the tokens, and padding.
void Model::take(size_t number, size_t begin, size_t count) {
  const Decoder& decoder = description_.decoder;
  const Step& step = decoder.steps[number];
  const size_t rows = number == 0 ? 1 : decoder.chunk, padding = rows - count;
  const auto value = [&](const std::string& name, size_t i) -> int64_t {
    if (decoder.is_left_padded) {
      if (name == "attention_mask") return i + begin + count >= decoder.mask(rows);
      if (i < padding) return 0;
      return name == "input_ids" ? tokens_[begin + i - padding] : static_cast<int64_t>(begin + i - padding);
    }
    if (name == "input_ids") return i < count ? tokens_[begin + i] : 0;
    if (name == "attention_mask") return i < begin + count;
    if (name == "position_ids") return static_cast<int64_t>(std::min(begin + i, decoder.length - 1));
    return static_cast<int64_t>(count) - 1;  // the row
  };
  input_tensors_ = step_inputs_[number];
  for (size_t place = 0; place < input_tensors_.size(); ++place) {
    if (std::any_of(step.state.begin(), step.state.end(), [&](const auto& pair) { return pair.second == place; })) continue;
    const TensorInfo& info = step.shape.inputs[place];
    const size_t bytes = info.element_bytes();
    std::string numbers;
    for (size_t i = 0; i < info.bytes / bytes; ++i) {
      const int64_t number = value(info.name, i);
      numbers.append(reinterpret_cast<const char*>(&number), bytes);  // of little-endian integers, the low bytes are the first ones
    }
    call("runtime.TVMTensorCopyFromBytes", const_cast<DLTensor*>(input_tensors_[place].GetDLTensorPtr()), static_cast<void*>(numbers.data()), static_cast<int64_t>(numbers.size()));
  }
  entry_ = (*machine_)->GetFunction(step.shape.entry).value();
  call_entry();
  for (const auto& [output, input] : step.state) {
    DLTensor *from = const_cast<DLTensor*>(output_tensors_.at(output).GetDLTensorPtr()), *to = const_cast<DLTensor*>(input_tensors_[input].GetDLTensorPtr());
    // A kernel that updates its input in place leaves nothing to copy.
    if (from->data != to->data || from->byte_offset != to->byte_offset) call("runtime.TVMTensorCopyFromTo", from, to);
  }
  output_tensors_ = {output_tensors_.at(step.logits), output_tensors_.at(step.token)};
}

int64_t Model::decode(const int64_t* tokens, size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Decoder& decoder = description_.decoder;
  if (!is_decoder()) throw Failure(ROMOU_INVALID, "the model is no decoder; romou_run runs it");
  if (count == 0) throw Failure(ROMOU_INVALID, "there is no token; give at least one");
  const size_t before = tokens_.size();
  if (count > decoder.length - before) {
    throw Failure(ROMOU_INVALID, std::to_string(before) + " tokens and " + std::to_string(count) + " more do not fit into caches of " + std::to_string(decoder.length) + "; call romou_rewind, or export a decoder with a larger `length`");
  }
  const int64_t words = decoder.words == 0 ? INT32_MAX : decoder.words;
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || tokens[i] >= words) throw Failure(ROMOU_INVALID, "there is no token " + std::to_string(tokens[i]) + "; the model's vocabulary has 0 to " + std::to_string(words - 1));
  }
  for (const auto& [name, mapping] : mappings_) check_unmapped(name);
  tokens_.insert(tokens_.end(), tokens, tokens + count);
  try {
    return failing_as(ROMOU_FAILED, "the run failed", [&] {
      size_t begin = before;
      if (decoder.is_left_padded) {
        // What a call forgot is among the entries that are read, and only a text's first chunk is padded.
        begin = held_ == before ? before : 0;
        held_ = 0;
        for (size_t taken = 0; begin < tokens_.size(); begin += taken) {
          taken = (tokens_.size() - begin - 1) % decoder.chunk + 1;
          if (begin != 0 && taken < decoder.chunk) taken = 1;
          take(taken > 1 ? decoder.steps.size() - 1 : 0, begin, taken);
        }
        held_ = tokens_.size();
      } else {
        for (; count > 1 && tokens_.size() - begin > decoder.chunk; begin += decoder.chunk) take(decoder.steps.size() - 1, begin, decoder.chunk);
        // The last chunk ends with the last token, and may read tokens once more.
        if (count > 1) begin = tokens_.size() - std::min(tokens_.size(), decoder.chunk);
        take(count > 1 ? decoder.steps.size() - 1 : 0, begin, tokens_.size() - begin);
      }
      int64_t token = 0;
      call("runtime.TVMTensorCopyToBytes", const_cast<DLTensor*>(output_tensors_[1].GetDLTensorPtr()), static_cast<void*>(&token), static_cast<int64_t>(sizeof token));
      output_tensors_.pop_back();
      return token;
    });
  } catch (...) {
    tokens_.resize(before);
    output_tensors_.clear();
    throw;
  }
}

void Model::rewind(size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_decoder()) throw Failure(ROMOU_INVALID, "the model is no decoder; it has no tokens");
  if (count > tokens_.size()) throw Failure(ROMOU_INVALID, "the decoder has read " + std::to_string(tokens_.size()) + " tokens, not " + std::to_string(count));
  tokens_.resize(count);
}

void Model::check_unmapped(const std::string& name) const {
  if (mappings_.count(name) != 0) throw Failure(ROMOU_INVALID, name + " is mapped; unmap it first");
}

void* Model::map(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_unmapped(name);
  if (has_shapes()) throw Failure(ROMOU_INVALID, "a model of several shapes maps no tensors; set and get them");
  Mapping mapping{false, 0, nullptr, {}};
  const auto named = [&](const TensorInfo& tensor) { return tensor.name == name; };
  const auto input = std::find_if(inputs().begin(), inputs().end(), named);
  const auto output = std::find_if(outputs().begin(), outputs().end(), named);
  if (input == inputs().end() && output == outputs().end()) throw Failure(ROMOU_INVALID, "the model has no input or output " + name);
  mapping.is_input = input != inputs().end();
  mapping.place = static_cast<size_t>(mapping.is_input ? input - inputs().begin() : output - outputs().begin());
  if (!mapping.is_input && output_tensors_.empty()) throw Failure(ROMOU_INVALID, "the model has not run yet");
  return failing_as(ROMOU_FAILED, name + " cannot be mapped", [&] {
    const auto mappable = ffi::Function::GetGlobal(functions_ + "mappable");
    if (mapping.is_input && mappable.has_value() && !is_mappable_[mapping.place]) {
      input_tensors_[mapping.place] = (*mappable)(ffi::Shape(input->shape), input->type, device_).cast<ffi::Tensor>();
      is_mappable_[mapping.place] = true;
      is_set_[mapping.place] = false;
    }
    const DLTensor* tensor = tensor_of(mapping);
    if (device_.device_type == kDLCPU) {
      mapping.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
    } else if (mappable.has_value()) {
      mapping.data = call(functions_ + "map", const_cast<DLTensor*>(tensor), mapping.is_input).cast<void*>();
    } else {
      mapping.copy.resize(ffi::GetDataSize(*tensor));
      mapping.data = mapping.copy.data();
      if (!mapping.is_input) call("runtime.TVMTensorCopyToBytes", const_cast<DLTensor*>(tensor), mapping.data, static_cast<int64_t>(mapping.copy.size()));
    }
    return mappings_.emplace(name, std::move(mapping)).first->second.data;
  });
}

void Model::unmap(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = mappings_.find(name);
  if (found == mappings_.end()) throw Failure(ROMOU_INVALID, name + " is not mapped");
  const Mapping mapping = std::move(found->second);
  mappings_.erase(found);
  failing_as(ROMOU_FAILED, name + " cannot be unmapped", [&] {
    DLTensor* tensor = const_cast<DLTensor*>(tensor_of(mapping));
    if (mapping.copy.empty()) {
      if (device_.device_type != kDLCPU) call(functions_ + "unmap", tensor, mapping.data);
    } else if (mapping.is_input) {
      call("runtime.TVMTensorCopyFromBytes", tensor, mapping.data, static_cast<int64_t>(mapping.copy.size()));
    }
    if (mapping.is_input) is_set_[mapping.place] = true;
  });
}

}  // namespace romou::app
