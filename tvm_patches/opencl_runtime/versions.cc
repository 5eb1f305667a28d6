// SPDX-License-Identifier: Apache-2.0
//
// A host's queries to a server's machine: versions, free memory, clocks and temperatures. The host compares versions first, because the protocol
// does not and an unequal pair crashes.
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#if !defined(ROMOU_TVM_VERSION) || !defined(ROMOU_TVM_FFI_VERSION) || !defined(ROMOU_VERSION)
#error "set ROMOU_TVM_VERSION, ROMOU_TVM_FFI_VERSION and ROMOU_VERSION to the versions of apache-tvm, apache-tvm-ffi and romou, as texts"
#endif

namespace romou::opencl {
namespace {

namespace json = tvm::ffi::json;
using tvm::ffi::String;

#if defined(__aarch64__)
#define ROMOU_MACHINE "aarch64"
#elif defined(__x86_64__)
#define ROMOU_MACHINE "x86_64"
#else
#define ROMOU_MACHINE "unknown"
#endif

#if defined(__ANDROID__)
#define ROMOU_SYSTEM "linux-android"
#else
#define ROMOU_SYSTEM "linux-gnu"
#endif

/// Return a JSON object: versions, and the LLVM triple of host code for this process.
String versions() {
  json::Object object;
  object.Set("tvm", String(ROMOU_TVM_VERSION));
  object.Set("tvm_ffi", String(ROMOU_TVM_FFI_VERSION));
  object.Set("romou", String(ROMOU_VERSION));
  object.Set("host", String(ROMOU_MACHINE "-" ROMOU_SYSTEM));
  return json::Stringify(object);
}

/// Return a JSON object with the bytes of the machine's memory and the free ones among them. 0 if the system does not report them.
String memory() {
  json::Object object{{"total_bytes", int64_t{0}}, {"available_bytes", int64_t{0}}};
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    for (const auto& [start, name] : {std::pair{"MemTotal:", "total_bytes"}, std::pair{"MemAvailable:", "available_bytes"}}) {
      if (line.starts_with(start)) object.Set(name, int64_t{1024} * std::atoll(line.c_str() + std::strlen(start)));
    }
  }
  return json::Stringify(object);
}

/// Return a JSON object with every clock of a GPU and every temperature that this process can read below `root` ("/sys"), as the files have
/// them: {"clocks": {folder: number}, "temperatures": {type of the zone: number}}. Phones differ in what the shell's user may read.
String sensors(const String& root) {
  namespace fs = std::filesystem;
  json::Object clocks, temperatures;
  const auto folders = [](const fs::path& parent) {
    std::error_code none;
    return fs::directory_iterator(parent, none);
  };
  const auto read = [](json::Object& into, const std::string& name, const fs::path& file) {
    if (long long number = 0; std::ifstream(file) >> number) into.Set(String(name), static_cast<int64_t>(number));
  };
  const fs::path classes = fs::path(std::string(root)) / "class";
  for (const auto& entry : folders(classes / "devfreq")) {
    const std::string name = entry.path().filename().string();
    if (name.find("kgsl") != name.npos || name.find("mali") != name.npos || name.find("gpu") != name.npos) read(clocks, name, entry.path() / "cur_freq");
  }
  // Adreno's driver has the clock here as well, where more phones let it be read.
  read(clocks, "kgsl-3d0", classes / "kgsl/kgsl-3d0/gpuclk");
  for (const auto& entry : folders(classes / "thermal")) {
    std::string type;
    if (std::ifstream(entry.path() / "type") >> type) read(temperatures, type, entry.path() / "temp");
  }
  return json::Stringify(json::Object{{"clocks", clocks}, {"temperatures", temperatures}});
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.rpc.versions", versions).def("romou.rpc.memory", memory).def("romou.rpc.sensors", sensors);
}

}  // namespace romou::opencl
