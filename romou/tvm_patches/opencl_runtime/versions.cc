// SPDX-License-Identifier: Apache-2.0
//
// The versions that a host compares first over RPC: the protocol itself does not, and an unequal pair crashes.
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

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

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { tvm::ffi::reflection::GlobalDef().def("romou.rpc.versions", versions); }

}  // namespace romou::opencl
