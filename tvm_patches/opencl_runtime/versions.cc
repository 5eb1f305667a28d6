// SPDX-License-Identifier: Apache-2.0
//
// A host's queries to a server's machine: versions and free memory. The host compares versions first, because the protocol does not and an unequal
// pair crashes.
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
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

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("romou.rpc.versions", versions).def("romou.rpc.memory", memory);
}

}  // namespace romou::opencl
