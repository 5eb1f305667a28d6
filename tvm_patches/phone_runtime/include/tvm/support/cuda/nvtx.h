// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a header that apache-tvm 0.27.0.post1 includes in src/runtime but does not ship: marks for NVIDIA's profiler, which no phone has.
#ifndef TVM_SUPPORT_CUDA_NVTX_H_
#define TVM_SUPPORT_CUDA_NVTX_H_

#include <string>

namespace tvm::support {

struct NVTXScopedRange {
  explicit NVTXScopedRange(const std::string&) {}
};

}  // namespace tvm::support

#endif  // TVM_SUPPORT_CUDA_NVTX_H_
