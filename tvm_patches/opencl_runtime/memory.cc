// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <sstream>
#include <vector>

#include "loader.h"
#include "statistics.h"

namespace romou::opencl {
namespace {

struct Region {
  size_t origin[3] = {0, 0, 0};
  size_t extent[3];
  explicit Region(const ImageShape& shape) : extent{shape.width, shape.height, shape.layers} {}
};

std::atomic<int64_t>& live_count(const Memory& memory) { return memory.is_image ? statistics().live_images : statistics().live_buffers; }

/// Take over a handle that was just created. The bytes of a view are those of the whole buffer.
Memory* adopt(Device& device, cl_mem handle, size_t bytes, const ImageShape* image, Memory* whole = nullptr) {
  auto* memory = new Memory(device);
  memory->handle = handle;
  memory->whole = whole;
  memory->bytes = bytes;
  memory->is_image = image != nullptr;
  if (image != nullptr) memory->image = *image;
  live_count(*memory) += 1;
  statistics().created += 1;
  if (whole == nullptr) statistics().live_bytes += bytes;
  return memory;
}

void destroy(Memory* memory) noexcept {
  for (const auto& [slice, view] : memory->views) if (view != nullptr) destroy(view);
  live_count(*memory) -= 1;
  if (memory->whole == nullptr) statistics().live_bytes -= memory->bytes;
  complain(api().clReleaseMemObject(memory->handle), "clReleaseMemObject");
  memory->magic = 0;
  delete memory;
}

cl_image_format format_of(const ImageShape& shape) {
  const cl_uint floats = shape.texel_bytes == 16 ? CL_FLOAT : CL_HALF_FLOAT;
  return {CL_RGBA, shape.type == TexelType::kSigned ? CL_SIGNED_INT32 : shape.type == TexelType::kUnsigned ? CL_UNSIGNED_INT32 : floats};
}

cl_image_desc description_of(const ImageShape& shape) {
  cl_image_desc description{};
  description.image_type = shape.kind == ImageKind::kArray2D   ? CL_MEM_OBJECT_IMAGE2D_ARRAY
                           : shape.kind == ImageKind::kPlain2D ? CL_MEM_OBJECT_IMAGE2D
                                                               : CL_MEM_OBJECT_IMAGE1D;
  description.image_width = shape.width;
  description.image_height = shape.height;
  description.image_array_size = shape.layers;
  return description;
}

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

/// Return an image over a buffer that begins at `offset` of another one. Null if the driver cannot do that, or needs more bytes.
cl_mem image_over(Device& device, cl_mem buffer, size_t offset, size_t bytes, const ImageShape& shape) {
  using Requirements = cl_int (*)(cl_context, const cl_ulong*, cl_bitfield, const cl_image_format*, const cl_image_desc*, cl_uint, size_t, void*, size_t*);
  if (device.facts().extensions.find("cl_ext_image_from_buffer") == std::string::npos) return nullptr;
  const auto query = reinterpret_cast<Requirements>(device.extension_function("clGetImageRequirementsInfoEXT"));
  if (query == nullptr) return nullptr;
  const cl_image_format format = format_of(shape);
  cl_image_desc description = description_of(shape);
  // 0: the driver has not answered.
  const auto required = [&](cl_uint what) {
    size_t answer = 0;
    return query(device.context(), nullptr, CL_MEM_READ_WRITE, &format, &description, what, sizeof(answer), &answer, nullptr) == CL_SUCCESS ? answer : 0;
  };
  const bool is_array = shape.kind == ImageKind::kArray2D;
  const size_t base = required(CL_IMAGE_REQUIREMENTS_BASE_ADDRESS_ALIGNMENT_EXT), row = required(CL_IMAGE_REQUIREMENTS_ROW_PITCH_ALIGNMENT_EXT);
  const size_t layer = is_array ? required(CL_IMAGE_REQUIREMENTS_SLICE_PITCH_ALIGNMENT_EXT) : 1;
  if (base == 0 || row == 0 || layer == 0 || offset % base != 0) return nullptr;
  description.image_row_pitch = round_up(shape.width * shape.texel_bytes, row);
  const size_t layer_bytes = round_up(description.image_row_pitch * shape.height, layer);
  if (is_array) description.image_slice_pitch = layer_bytes;
  description.buffer = buffer;
  const size_t needed = required(CL_IMAGE_REQUIREMENTS_SIZE_EXT);
  if (needed == 0 || needed > bytes || layer_bytes * shape.layers > bytes) return nullptr;
  cl_int code = CL_SUCCESS;
  cl_mem image = api().clCreateImage(device.context(), CL_MEM_READ_WRITE, &format, &description, nullptr, &code);
  return code == CL_SUCCESS ? image : nullptr;
}

/// Copy between host memory and a device. The copy is enqueued without blocking, then waited for, so that other threads launch meanwhile.
template <typename Host, typename OfImage, typename OfBuffer>
void copy_with_host(const Place& place, Host* host, size_t bytes, const char* image_call, OfImage of_image, const char* buffer_call, OfBuffer of_buffer) {
  Memory& memory = *place.memory;
  statistics().copies += 1;
  const char* call = memory.is_image ? image_call : buffer_call;
  cl_event done = nullptr;
  cl_int code = CL_SUCCESS;
  {
    const Device::Queue queue = memory.device->hold_queue();
    if (memory.is_image) {
      const Region region(memory.image.first(bytes));
      code = of_image(queue.handle(), memory.handle, CL_FALSE, region.origin, region.extent, 0, 0, host, 0, nullptr, &done);
    } else {
      code = of_buffer(queue.handle(), memory.handle, CL_FALSE, place.offset, bytes, host, 0, nullptr, &done);
    }
  }
  memory.device->check(code, call);
  memory.device->wait(Event(done), call);
}

}  // namespace

Memory* create_buffer(Device& device, size_t bytes, cl_bitfield flags, void* host) {
  cl_int code = CL_SUCCESS;
  // A tensor may be empty, but a buffer may not.
  const size_t size = bytes == 0 ? 1 : bytes;
  device.note_buffer(size);
  cl_mem handle = api().clCreateBuffer(device.context(), flags, size, host, &code);
  if (code != CL_SUCCESS) {
    const DeviceFacts& facts = device.facts();
    device.check(code, "clCreateBuffer", {}, std::to_string(size) + " bytes asked; the device has " + std::to_string(facts.global_mem_bytes) +
                                                 " bytes and allows " + std::to_string(facts.max_alloc_bytes) + " a buffer");
  }
  Memory* memory = adopt(device, handle, size, nullptr);
  memory->host = host;
  return memory;
}

Memory* create_image(Device& device, const ImageShape& shape) {
  const DeviceFacts& facts = device.facts();
  const auto detail = [&] {
    return "image of " + shape.text() + "; the device allows " + std::to_string(facts.image_max_width) + "x" + std::to_string(facts.image_max_height) + "x" +
           std::to_string(facts.image_max_layers);
  };
  if (!facts.has_images) TVM_FFI_THROW(RuntimeError) << "device " << device.label() << " has no images; keep the tensor in a buffer";
  if (shape.width > facts.image_max_width || shape.height > facts.image_max_height || shape.layers > facts.image_max_layers) {
    TVM_FFI_THROW(RuntimeError) << "image too large for device " << device.label() << ": " << detail();
  }
  const cl_image_format format = format_of(shape);
  const cl_image_desc description = description_of(shape);
  cl_int code = CL_SUCCESS;
  cl_mem handle = api().clCreateImage(device.context(), CL_MEM_READ_WRITE, &format, &description, nullptr, &code);
  if (code != CL_SUCCESS) device.check(code, "clCreateImage", {}, detail());
  return adopt(device, handle, shape.bytes(), &shape);
}

Memory* create_window(Memory& whole, size_t offset, size_t bytes) {
  Device& device = *whole.device;
  if (whole.is_image || bytes == 0 || offset + bytes > whole.bytes) {
    TVM_FFI_THROW(ValueError) << "no window of " << bytes << " bytes at " << offset << " in " << (whole.is_image ? "an image" : "a buffer") << " of " << whole.bytes;
  }
  if (api().clCreateSubBuffer == nullptr) TVM_FFI_THROW(RuntimeError) << "the driver of " << device.label() << " has no clCreateSubBuffer (OpenCL 1.1)";
  const size_t region[] = {offset, bytes};
  cl_int code = CL_SUCCESS;
  cl_mem handle = api().clCreateSubBuffer(whole.handle, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, region, &code);
  device.check(code, "clCreateSubBuffer");
  return adopt(device, handle, bytes, nullptr);
}

Memory* view_of(Memory& whole, size_t offset, size_t bytes, const ImageShape& image) {
  const auto [entry, is_new] = whole.views.try_emplace({offset, bytes, image}, nullptr);
  if (!is_new || api().clCreateSubBuffer == nullptr) return entry->second;
  Device& device = *whole.device;
  const size_t region[] = {offset, bytes};
  cl_int code = CL_SUCCESS;
  cl_mem handle = api().clCreateSubBuffer(whole.handle, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, region, &code);
  if (code != CL_SUCCESS) return nullptr;
  const bool is_image = image.width > 0;
  if (is_image) {
    cl_mem buffer = handle;
    handle = image_over(device, buffer, offset, bytes, image);
    complain(api().clReleaseMemObject(buffer), "clReleaseMemObject");  // the image keeps it
    if (handle == nullptr) return nullptr;
  }
  return entry->second = adopt(device, handle, bytes, is_image ? &image : nullptr, &whole);
}

void release(Memory* memory) noexcept {
  if (memory == nullptr || is_exiting()) return;
  if (Memory& owner = memory->owner(); --owner.references == 0) destroy(&owner);
}

void copy_to_host(const Place& from, char* host, size_t bytes) {
  copy_with_host(from, host, bytes, "clEnqueueReadImage", api().clEnqueueReadImage, "clEnqueueReadBuffer", api().clEnqueueReadBuffer);
}

void copy_from_host(const char* host, const Place& to, size_t bytes) {
  copy_with_host(to, host, bytes, "clEnqueueWriteImage", api().clEnqueueWriteImage, "clEnqueueWriteBuffer", api().clEnqueueWriteBuffer);
}

void copy_on_device(const Place& from, const Place& to, size_t bytes) {
  Memory &source = *from.memory, &target = *to.memory;
  statistics().copies += 1;
  const Device& device = *target.device;
  if (source.is_image && target.is_image && source.image.first(bytes) != target.image.first(bytes)) {
    // Images of another shape have the same row-major order, so copy through a buffer. The driver keeps the buffer until the commands are done.
    const SharedMemory flat(create_buffer(*target.device, bytes));
    copy_on_device(from, Place{flat.get(), nullptr, 0}, bytes);
    copy_on_device(Place{flat.get(), nullptr, 0}, to, bytes);
    return;
  }
  const Device::Queue held = target.device->hold_queue();
  const cl_command_queue queue = held.handle();
  if (!source.is_image && !target.is_image) {
    device.check(api().clEnqueueCopyBuffer(queue, source.handle, target.handle, from.offset, to.offset, bytes, 0, nullptr, nullptr), "clEnqueueCopyBuffer");
    return;
  }
  const Region region((source.is_image ? source : target).image.first(bytes));
  if (!source.is_image) {
    device.check(api().clEnqueueCopyBufferToImage(queue, source.handle, target.handle, from.offset, region.origin, region.extent, 0, nullptr, nullptr),
                 "clEnqueueCopyBufferToImage");
  } else if (!target.is_image) {
    device.check(api().clEnqueueCopyImageToBuffer(queue, source.handle, target.handle, region.origin, region.extent, to.offset, 0, nullptr, nullptr),
                 "clEnqueueCopyImageToBuffer");
  } else {
    device.check(api().clEnqueueCopyImage(queue, source.handle, target.handle, region.origin, region.origin, region.extent, 0, nullptr, nullptr),
                 "clEnqueueCopyImage");
  }
}

namespace {

/// The memory of a tensor that is a window.
struct Window {
  Memory* whole;
  size_t offset;
  void AllocData(DLTensor* tensor) { tensor->data = create_window(*whole, offset, tvm::ffi::GetDataSize(*tensor)); }
  void FreeData(DLTensor* tensor) { release(memory_of(tensor->data)); }
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  // Turn a view of a tensor (it begins at byte_offset) into a tensor that kernels take. Its address has to meet the device's alignment of buffers.
  tvm::ffi::reflection::GlobalDef().def("romou.opencl.window", [](DLTensor* view) {
    const tvm::ffi::ShapeView shape(view->shape, view->ndim);
    return tvm::ffi::Tensor::FromNDAlloc(Window{memory_of(view->data), view->byte_offset}, shape, view->dtype, view->device);
  });
}

}  // namespace romou::opencl
