// SPDX-License-Identifier: Apache-2.0
//
// The cache of compiled programs for compilers in Python: CUDA C++ by NVRTC, GLSL by glslang.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include "program_cache.h"
#include "sha256.h"

namespace romou::opencl {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::String;

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      // The entry of a key of 64 hexadecimal digits, or None, then a note for each problem with it.
      .def("romou.programs.find",
           [](const String& compiler, const String& key, const String& what) {
             ProgramCache cache(default_program_folder(), sha256_hex(std::string(compiler)));
             Array<Any> found;
             const auto entry = cache.is_usable() ? cache.find(std::string(key), std::string(what)) : std::nullopt;
             found.push_back(entry && entry->kind == ProgramCache::Kind::kBinary ? Any(Bytes(entry->content)) : Any(nullptr));
             for (const std::string& note : cache.take_notes()) found.push_back(String(note));
             return found;
           })
      .def("romou.programs.keep", [](const String& compiler, const String& key, const Bytes& program) {
        ProgramCache cache(default_program_folder(), sha256_hex(std::string(compiler)));
        if (!cache.is_usable() || !cache.store(std::string(key), ProgramCache::Kind::kBinary, std::string(program.data(), program.size()))) return;
        cache.trim(program_cache_limit());
      });
}

}  // namespace romou::opencl
