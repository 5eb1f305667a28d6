// SPDX-License-Identifier: Apache-2.0
//
// Finds the module of a library that holds a function. Over RPC a library's imports are not accessible, and `time_evaluator` does not search them.
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

namespace romou::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Module;
using tvm::ffi::Optional;
using tvm::ffi::String;

/// Return `module` or one of its imports, whichever has the compiled function `name`. None if none has it. The executable of a virtual machine runs
/// functions but holds none.
Optional<Module> module_of(const Module& module, const String& name) {
  if (module->kind() != String("relax.VMExecutable") && module->ImplementsFunction(name)) return module;
  for (const Any& import : module->imports()) {
    if (Optional<Module> found = module_of(import.cast<Module>(), name)) return found;
  }
  return std::nullopt;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { tvm::ffi::reflection::GlobalDef().def("romou.rpc.module_of", module_of); }

}  // namespace romou::opencl
