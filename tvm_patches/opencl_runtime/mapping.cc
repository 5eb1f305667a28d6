// SPDX-License-Identifier: Apache-2.0
//
// Buffers that the host writes and reads in place, between `map` and `unmap`. A device that shares memory with the host copies nothing.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include "device.h"
#include "loader.h"
#include "memory.h"

namespace romou::opencl {
namespace {

/// The memory of a tensor that the driver places where the host reaches it.
struct Mappable {
  Device* device;
  void AllocData(DLTensor* tensor) { tensor->data = create_buffer(*device, tvm::ffi::GetDataSize(*tensor), CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR); }
  void FreeData(DLTensor* tensor) { release(memory_of(tensor->data)); }
};

/// The memory of a tensor in an array of the host, which outlives it.
struct Bound {
  Device* device;
  void* host;
  void AllocData(DLTensor* tensor) { tensor->data = create_buffer(*device, tvm::ffi::GetDataSize(*tensor), CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, host); }
  void FreeData(DLTensor* tensor) { release(memory_of(tensor->data)); }
};

Memory& buffer_of(const DLTensor* tensor) {
  Memory* memory = memory_of(tensor->data);
  if (memory->is_image) TVM_FFI_THROW(ValueError) << "an image has no place in the host's memory";
  if (api().clEnqueueMapBuffer == nullptr || api().clEnqueueUnmapMemObject == nullptr) TVM_FFI_THROW(RuntimeError) << "the driver of " << memory->device->label() << " maps no buffers";
  return *memory;
}

/// Return the tensor's place in the host's memory when all earlier commands are done. is_written: the content is lost, and all of it is to be written.
void* map(const DLTensor* tensor, bool is_written) {
  Memory& memory = buffer_of(tensor);
  Device& device = *memory.device;
  cl_event done = nullptr;
  cl_int code = CL_SUCCESS;
  void* host = nullptr;
  {
    const Device::Queue queue = device.hold_queue();
    host = api().clEnqueueMapBuffer(queue.handle(), memory.handle, CL_FALSE, is_written ? CL_MAP_WRITE_INVALIDATE_REGION : CL_MAP_READ, tensor->byte_offset,
                                    tvm::ffi::GetDataSize(*tensor), 0, nullptr, &done, &code);
  }
  device.check(code, "clEnqueueMapBuffer");
  device.wait(Event(done), "clEnqueueMapBuffer");
  return host;
}

/// Give the place back. Later commands see what was written.
void unmap(const DLTensor* tensor, void* host) {
  Memory& memory = buffer_of(tensor);
  const Device::Queue queue = memory.device->hold_queue();
  memory.device->check(api().clEnqueueUnmapMemObject(queue.handle(), memory.handle, host, 0, nullptr, nullptr), "clEnqueueUnmapMemObject");
}

/// Wait for all earlier commands, and let the host read and write bound tensors.
void hold(const tvm::ffi::Array<tvm::ffi::Tensor>& tensors) {
  for (const tvm::ffi::Tensor& tensor : tensors) {
    Memory& memory = buffer_of(tensor.GetDLTensorPtr());
    Device& device = *memory.device;
    cl_event done = nullptr;
    cl_int code = CL_SUCCESS;
    {
      const Device::Queue queue = device.hold_queue();
      api().clEnqueueMapBuffer(queue.handle(), memory.handle, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, memory.bytes, 0, nullptr, &done, &code);
    }
    device.check(code, "clEnqueueMapBuffer");
    device.wait(Event(done), "clEnqueueMapBuffer");
  }
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("romou.opencl.mappable",
           [](const tvm::ffi::Shape& shape, DLDataType dtype, DLDevice device) {
             return tvm::ffi::Tensor::FromNDAlloc(Mappable{&DeviceTable::global().at(device.device_id)}, shape, dtype, device);
           })
      .def("romou.opencl.map", [](DLTensor* tensor, bool is_written) { return map(tensor, is_written); })
      .def("romou.opencl.unmap", [](DLTensor* tensor, void* host) { unmap(tensor, host); })
      .def("romou.opencl.bind",
           [](int64_t address, const tvm::ffi::Shape& shape, DLDataType dtype, DLDevice device) {
             return tvm::ffi::Tensor::FromNDAlloc(Bound{&DeviceTable::global().at(device.device_id), reinterpret_cast<void*>(address)}, shape, dtype, device);
           })
      .def("romou.opencl.hold", hold)
      .def("romou.opencl.let_go",
           [](const tvm::ffi::Array<tvm::ffi::Tensor>& tensors) {
             for (const tvm::ffi::Tensor& tensor : tensors) unmap(tensor.GetDLTensorPtr(), memory_of(tensor.data_ptr())->host);
           })
      // Drivers may keep commands until somebody waits for them.
      .def("romou.opencl.flush", [](int index) {
        Device& device = DeviceTable::global().at(index);
        const Device::Queue queue = device.hold_queue();
        device.check(api().clFlush(queue.handle()), "clFlush");
      });
}

}  // namespace romou::opencl
