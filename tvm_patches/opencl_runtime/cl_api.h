// SPDX-License-Identifier: Apache-2.0
//
// The part of the OpenCL 1.2 API that the runtime calls, declared by hand so that building needs no system headers.
// Values and signatures follow the Khronos specification. Nothing here is linked: loader.cc looks every function up in the ICD
// loader at run time, so the list is an X-macro of names, results and parameters.
#ifndef ROMOU_OPENCL_CL_API_H_
#define ROMOU_OPENCL_CL_API_H_

#include <cstddef>
#include <cstdint>

namespace romou::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;

using cl_platform_id = struct PlatformHandle*;
using cl_device_id = struct DeviceHandle*;
using cl_context = struct ContextHandle*;
using cl_command_queue = struct QueueHandle*;
using cl_mem = struct MemHandle*;
using cl_program = struct ProgramHandle*;
using cl_kernel = struct KernelHandle*;
using cl_event = struct EventHandle*;
using cl_command_buffer_khr = struct CommandBufferHandle*;
using cl_recording_qcom = struct RecordingHandle*;

struct cl_image_format {
  cl_uint image_channel_order;
  cl_uint image_channel_data_type;
};

struct cl_image_desc {
  cl_uint image_type;
  size_t image_width;
  size_t image_height;
  size_t image_depth;
  size_t image_array_size;
  size_t image_row_pitch;
  size_t image_slice_pitch;
  cl_uint num_mip_levels;
  cl_uint num_samples;
  cl_mem buffer;
};

// Results
constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_FOUND = -1;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_BUILD_PROGRAM_FAILURE = -11;
constexpr cl_int CL_PLATFORM_NOT_FOUND_KHR = -1001;

constexpr cl_bool CL_FALSE = 0;
constexpr cl_bool CL_TRUE = 1;

// Platforms and devices
constexpr cl_uint CL_PLATFORM_VERSION = 0x0901;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;
constexpr cl_uint CL_PLATFORM_VENDOR = 0x0903;
constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;
constexpr cl_bitfield CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7;
constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012;
constexpr cl_uint CL_DEVICE_IMAGE_SUPPORT = 0x1016;
constexpr cl_uint CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019;
constexpr cl_uint CL_DEVICE_SINGLE_FP_CONFIG = 0x101B;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE = 0x101D;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE = 0x1020;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_PROFILING_TIMER_RESOLUTION = 0x1025;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_IMAGE_MAX_ARRAY_SIZE = 0x1041;
constexpr cl_uint CL_DEVICE_IMAGE_PITCH_ALIGNMENT = 0x104A;
constexpr cl_uint CL_DEVICE_UUID_KHR = 0x106A;
constexpr cl_uint CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
constexpr cl_uint CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV = 0x4000;
constexpr cl_uint CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV = 0x4001;
constexpr cl_uint CL_DEVICE_WARP_SIZE_NV = 0x4003;
constexpr cl_uint CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108;
constexpr cl_uint CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;

// Queues, memory, images
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_bitfield CL_QUEUE_RECORDABLE_QCOM = 1 << 30;
constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
constexpr cl_bitfield CL_MEM_ALLOC_HOST_PTR = 1 << 4;
constexpr cl_bitfield CL_MAP_READ = 1 << 0;
constexpr cl_bitfield CL_MAP_WRITE = 1 << 1;
constexpr cl_bitfield CL_MAP_WRITE_INVALIDATE_REGION = 1 << 2;
constexpr cl_uint CL_RGBA = 0x10B5;
constexpr cl_uint CL_SIGNED_INT32 = 0x10D9;
constexpr cl_uint CL_UNSIGNED_INT32 = 0x10DC;
constexpr cl_uint CL_HALF_FLOAT = 0x10DD;
constexpr cl_uint CL_FLOAT = 0x10DE;
constexpr cl_uint CL_MEM_OBJECT_IMAGE2D = 0x10F1;
constexpr cl_uint CL_MEM_OBJECT_IMAGE2D_ARRAY = 0x10F3;
constexpr cl_uint CL_MEM_OBJECT_IMAGE1D = 0x10F4;
// cl_ext_image_requirements_info and cl_ext_image_from_buffer
constexpr cl_uint CL_IMAGE_REQUIREMENTS_ROW_PITCH_ALIGNMENT_EXT = 0x1290;
constexpr cl_uint CL_IMAGE_REQUIREMENTS_SLICE_PITCH_ALIGNMENT_EXT = 0x1291;
constexpr cl_uint CL_IMAGE_REQUIREMENTS_BASE_ADDRESS_ALIGNMENT_EXT = 0x1292;
constexpr cl_uint CL_IMAGE_REQUIREMENTS_SIZE_EXT = 0x12B2;

// Programs, kernels, events
constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
constexpr cl_uint CL_KERNEL_NUM_ARGS = 0x1191;
constexpr cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_uint CL_KERNEL_PRIVATE_MEM_SIZE = 0x11B4;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;
constexpr cl_uint CL_BUFFER_CREATE_TYPE_REGION = 0x1220;

using BuildCallback = void (*)(cl_program, void*);
using ContextCallback = void (*)(const char*, const void*, size_t, void*);

// X(result, name, parameters)
#define ROMOU_CL_FUNCTIONS(X)                                                                                              \
  X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                                                        \
  X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))                                          \
  X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))                               \
  X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                                              \
  X(cl_context, clCreateContext, (const intptr_t*, cl_uint, const cl_device_id*, ContextCallback, void*, cl_int*))         \
  X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int*))                              \
  X(cl_int, clReleaseCommandQueue, (cl_command_queue))                                                                     \
  X(cl_int, clFlush, (cl_command_queue))                                                                                   \
  X(cl_int, clFinish, (cl_command_queue))                                                                                  \
  X(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void*, cl_int*))                                             \
  X(cl_mem, clCreateImage, (cl_context, cl_bitfield, const cl_image_format*, const cl_image_desc*, void*, cl_int*))        \
  X(cl_int, clReleaseMemObject, (cl_mem))                                                                                  \
  X(cl_int, clEnqueueReadBuffer,                                                                                           \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*, cl_event*))                       \
  X(cl_int, clEnqueueWriteBuffer,                                                                                          \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*, cl_event*))                 \
  X(cl_int, clEnqueueCopyBuffer,                                                                                           \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))                       \
  X(cl_int, clEnqueueReadImage,                                                                                            \
    (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t, void*, cl_uint, const cl_event*,     \
     cl_event*))                                                                                                           \
  X(cl_int, clEnqueueWriteImage,                                                                                           \
    (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t, const void*, cl_uint,                \
     const cl_event*, cl_event*))                                                                                          \
  X(cl_int, clEnqueueCopyImage,                                                                                            \
    (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*, cl_event*))  \
  X(cl_int, clEnqueueCopyImageToBuffer,                                                                                    \
    (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, size_t, cl_uint, const cl_event*, cl_event*))         \
  X(cl_int, clEnqueueCopyBufferToImage,                                                                                    \
    (cl_command_queue, cl_mem, cl_mem, size_t, const size_t*, const size_t*, cl_uint, const cl_event*, cl_event*))         \
  X(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char**, const size_t*, cl_int*))                    \
  X(cl_program, clCreateProgramWithBinary,                                                                                 \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))                    \
  X(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void*, size_t*))                                               \
  X(cl_int, clBuildProgram, (cl_program, cl_uint, const cl_device_id*, const char*, BuildCallback, void*))                 \
  X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                            \
  X(cl_int, clReleaseProgram, (cl_program))                                                                                \
  X(cl_kernel, clCreateKernel, (cl_program, const char*, cl_int*))                                                         \
  X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                                                     \
  X(cl_int, clGetKernelInfo, (cl_kernel, cl_uint, size_t, void*, size_t*))                                                 \
  X(cl_int, clGetKernelWorkGroupInfo, (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                          \
  X(cl_int, clReleaseKernel, (cl_kernel))                                                                                  \
  X(cl_int, clEnqueueNDRangeKernel,                                                                                        \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,          \
     cl_event*))                                                                                                           \
  X(cl_int, clEnqueueMarkerWithWaitList, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                            \
  X(cl_int, clWaitForEvents, (cl_uint, const cl_event*))                                                                   \
  X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))                                          \
  X(cl_int, clRetainEvent, (cl_event))                                                                                     \
  X(cl_int, clReleaseEvent, (cl_event))

}  // namespace romou::opencl

#endif  // ROMOU_OPENCL_CL_API_H_
