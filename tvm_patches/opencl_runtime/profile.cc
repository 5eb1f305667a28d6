// SPDX-License-Identifier: Apache-2.0
//
// Times each call of a run where the model is. Over RPC, a virtual machine cannot call the client back.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstring>
#include <string>
#include <vector>

namespace romou::opencl {
namespace {

namespace json = tvm::ffi::json;
using namespace tvm::ffi;

/// Return a JSON array with [function, [seconds of each repeat]] for each call of compiled functions in a run of `entry`, whose inputs are set.
String profile(const Module& machine, const Module& library, const String& entry, int device_type, int device_id, int repeat) {
  const Function module_of = Function::GetGlobalRequired("romou.rpc.module_of");
  const Function evaluator_of = Function::GetGlobalRequired("runtime.RPCTimeEvaluator");
  const Function set_instrument = machine->GetFunction("set_instrument").value();
  json::Array calls;
  set_instrument(Function::FromPacked([&](const AnyView* args, int32_t count, Any* result) {
    *result = 0;  // go on with the call
    const String name = args[1].cast<String>();
    if (!args[2].cast<bool>()) return;
    const auto module = module_of(library, name).cast<Optional<Module>>();
    if (!module.has_value()) return;
    const auto timer = evaluator_of(*module, name, device_type, device_id, 1, repeat, 0, 0, 0, 1, 0, String("")).cast<Function>();
    Any blob;
    timer.CallPacked(args + 4, count - 4, &blob);
    const Bytes bytes = blob.cast<Bytes>();
    std::vector<double> seconds(bytes.size() / sizeof(double));
    std::memcpy(seconds.data(), bytes.data(), bytes.size());
    json::Array times(seconds.begin(), seconds.end());
    calls.push_back(json::Array{name, times});
  }));
  const auto end = [&] { set_instrument(Function::FromPacked([](const AnyView*, int32_t, Any* result) { *result = 0; })); };
  try {
    machine->GetFunction("invoke_stateful").value()(entry);
  } catch (...) {
    end();
    throw;
  }
  end();
  return json::Stringify(calls);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { tvm::ffi::reflection::GlobalDef().def("romou.rpc.profile", profile); }

}  // namespace romou::opencl
