// Runs an exported model on this device and says what each step costs: run_model [FOLDER [INPUT.bin ...]]
//
// FOLDER (default: that of this program) holds model.so, weights.bin and model.json. An input is a file of raw numbers in C order, as model.json
// gives shape and type; without files, inputs are zeros. Outputs are written to FOLDER/output0.bin and so on. The runtime's libraries
// are found beside this program, where `romou phone push` puts them, or through LD_LIBRARY_PATH. The first start keeps the compiled programs in
// FOLDER/programs; later ones load them. They are this device's: copied along with FOLDER, they serve devices of the same kind and driver.
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

constexpr int kRepeats = 5;

struct Input {
  std::string name;
  ffi::Shape shape;
  DLDataType type;
  std::vector<char> bytes;
};

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t byte_count(const DLTensor* tensor) {
  size_t bytes = tensor->dtype.bits * tensor->dtype.lanes / 8;
  for (int i = 0; i < tensor->ndim; ++i) bytes *= static_cast<size_t>(tensor->shape[i]);
  return bytes;
}

template <typename... Args>
ffi::Any call(const std::string& name, Args&&... args) {
  return ffi::Function::GetGlobalRequired(name)(std::forward<Args>(args)...);
}

int run(const std::string& folder, const std::vector<std::string>& files) {
  const std::vector<char> text = read_file(folder + "/model.json");
  const json::Object about = json::Parse(ffi::String(text.data(), text.size())).cast<json::Object>();
  const std::string kind = about.at(ffi::String("kind")).cast<ffi::String>(), functions = "romou." + kind + ".";
  const DLDevice device{static_cast<DLDeviceType>(about.at(ffi::String("device_type")).cast<int64_t>()), 0};
  // Milliseconds until `step` is done and the device is idle again.
  const auto timed_ms = [&](auto step) {
    const auto start = std::chrono::steady_clock::now();
    step();
    call("runtime.Device_StreamSync", device, static_cast<int64_t>(0));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  if (dlopen(("libtvm_runtime_" + kind + ".so").c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw std::runtime_error(std::string(dlerror()) + "; set LD_LIBRARY_PATH to the folder of the runtime");
  }
  std::vector<Input> inputs;
  for (const ffi::Any& each : about.at(ffi::String("inputs")).cast<json::Array>()) {
    const json::Object entry = each.cast<json::Object>();
    std::vector<int64_t> shape;
    for (const ffi::Any& side : entry.at(ffi::String("shape")).cast<json::Array>()) shape.push_back(side.cast<int64_t>());
    inputs.push_back({entry.at(ffi::String("name")).cast<ffi::String>(), ffi::Shape(shape), ffi::StringToDLDataType(entry.at(ffi::String("dtype")).cast<ffi::String>()), {}});
  }
  if (!files.empty() && files.size() != inputs.size()) throw std::runtime_error("the model has " + std::to_string(inputs.size()) + " inputs");

  // The graph and its weights, over the library with the kernels. Starting the machine copies the weights to the device.
  std::optional<ffi::Module> library, started;
  const double read_ms = timed_ms([&] {
    library = call("relax.ExecutableLoadFromFile", ffi::String(folder + "/weights.bin")).cast<ffi::Module>();
    (*library)->ImportModule(ffi::Module::LoadFromFile(folder + "/model.so"));
  });
  const ffi::String programs(folder + "/programs");
  json::Object report;
  const auto tell = [&](const ffi::Any& text) {
    report = json::Parse(text.cast<ffi::String>()).cast<json::Object>();
    for (const ffi::Any& note : report.at(ffi::String("notes")).cast<json::Array>()) std::fprintf(stderr, "run_model: %s\n", std::string(note.cast<ffi::String>()).c_str());
  };
  // On one thread: some phones' compilers make slower code of the same source in another order.
  const double programs_ms = timed_ms([&] { tell(call(functions + "prepare", *library, 0, programs, 1)); });
  const int64_t cached = report.at(ffi::String("cached")).cast<int64_t>(), compiled = report.at(ffi::String("compiled")).cast<int64_t>();
  const double load_ms = timed_ms([&] {
    started = (*library)->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    // A device for every memory scope, all the same one, and the CPU; each with a pooled allocator (2).
    std::vector<ffi::AnyView> places;
    for (int64_t i = 0, n = about.at(ffi::String("devices")).cast<int64_t>(); i < n; ++i) places.insert(places.end(), {int(device.device_type), 0, 2});
    places.insert(places.end(), {int(kDLCPU), 0, 2});
    ffi::Any nothing;
    (*started)->GetFunction("vm_initialization").value().CallPacked(places.data(), static_cast<int32_t>(places.size()), &nothing);
    // The device has the weights now.
    call(functions + "drop_constants", *library);
  });

  std::vector<ffi::Any> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    tensors.push_back(call("runtime.TVMTensorAllocWithScope", inputs[i].shape, inputs[i].type, device, ffi::Optional<ffi::String>()));
    const size_t wanted = byte_count(tensors[i].cast<DLTensor*>());
    inputs[i].bytes = files.empty() ? std::vector<char>(wanted) : read_file(files[i]);
    if (inputs[i].bytes.size() != wanted) {
      throw std::runtime_error("input " + inputs[i].name + " takes " + std::to_string(wanted) + " bytes, " + files[i] + " has " + std::to_string(inputs[i].bytes.size()));
    }
  }
  const auto copy_in = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) {
      call("runtime.TVMTensorCopyFromBytes", tensors[i].cast<DLTensor*>(), static_cast<void*>(inputs[i].bytes.data()), static_cast<int64_t>(inputs[i].bytes.size()));
    }
  };
  const ffi::Function entry = (*started)->GetFunction("main").value();
  std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
  ffi::Any result;
  const auto run_once = [&] { entry.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result); };
  std::vector<std::vector<char>> outputs;
  const auto copy_out = [&] {
    std::vector<ffi::Tensor> found;
    if (auto one = result.as<ffi::Tensor>()) {
      found.push_back(*one);
    } else {
      for (const ffi::Any& each : result.cast<ffi::Array<ffi::Any>>()) found.push_back(each.cast<ffi::Tensor>());
    }
    outputs.clear();
    for (const ffi::Tensor& each : found) {
      const DLTensor* tensor = each.GetDLTensorPtr();
      outputs.emplace_back(byte_count(tensor));
      call("runtime.TVMTensorCopyToBytes", const_cast<DLTensor*>(tensor), static_cast<void*>(outputs.back().data()), static_cast<int64_t>(outputs.back().size()));
    }
  };

  copy_in();
  std::printf("read the model                  %10.3f ms\n", read_ms);
  std::printf("programs                        %10.3f ms  %lld loaded, %lld compiled\n", programs_ms, static_cast<long long>(cached), static_cast<long long>(compiled));
  std::printf("weights to the device           %10.3f ms\n", load_ms);
  std::printf("first run                       %10.3f ms\n", timed_ms(run_once));
  // Some drivers compile in a kernel's first launch, so programs are taken from them behind it.
  if (compiled != 0) std::printf("keep the programs               %10.3f ms\n", timed_ms([&] { tell(call(functions + "keep", *library, 0, programs)); }));
  copy_out();
  double in_ms = 0, run_ms = 0, out_ms = 0;
  for (int i = 0; i < kRepeats; ++i) {
    in_ms += timed_ms(copy_in) / kRepeats;
    run_ms += timed_ms(run_once) / kRepeats;
    out_ms += timed_ms(copy_out) / kRepeats;
  }
  std::printf("inputs to the device            %10.3f ms\n", in_ms);
  std::printf("run                             %10.3f ms\n", run_ms);
  std::printf("outputs from the device         %10.3f ms\n", out_ms);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string path = folder + "/output" + std::to_string(i) + ".bin";
    std::ofstream file(path, std::ios::binary);
    if (!file.write(outputs[i].data(), static_cast<std::streamsize>(outputs[i].size()))) throw std::runtime_error("cannot write " + path);
    std::printf("wrote %s, %zu bytes\n", path.c_str(), outputs[i].size());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string program = argv[0];
    const size_t slash = program.rfind('/');
    const std::string here = slash == std::string::npos ? "." : program.substr(0, slash);
    return run(argc > 1 ? argv[1] : here, {argv + (argc > 1 ? 2 : 1), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run_model: %s\n", error.what());
    return 1;
  }
}
