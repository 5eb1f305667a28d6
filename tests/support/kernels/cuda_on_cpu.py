"""Runs Romou's CUDA kernels unchanged on the CPU, to check the numbers of kernels that machines without a GPU can only
compile. So it does with kernels in OpenCL C that have PTX.

The kernel's text is compiled by g++ behind a few definitions. A work-item is a fiber: it runs until it waits for its
work group (__syncthreads) or, in an instruction of the whole warp, for its warp. Instructions in PTX are replaced by
their definition in the PTX ISA. For `mma.sync.m16n8k16` that is the table "Matrix Fragments for mma.m16n8k16", which
gives the rows and columns that the registers of each lane hold. `wgmma` computes at once, so a missing wait for its
sums is not seen.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.base.space import Config
from romou.compiler.task import TunableTask
from romou.devices.backends.cuda.dialect import complete
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.suite.compiled import compiled

# Numbers before and behind each array: poison that no kernel may read or write.
MARGIN = 4096
INSIDE = slice(MARGIN, -MARGIN)
# Kernels run one after another here, so that none has to wait for the one before it.
_FOR_GPUS = re.compile(r"#if __CUDA_ARCH__ .*?#endif\n", re.DOTALL)
_ASM = re.compile(r"asm(?: volatile)?\(\"([^\"]*)\"(.*?)\);", re.DOTALL)
_OPERAND = re.compile(r"[:,\s]*\"[+=]?[rfhl]\"")
# Instruction -> function of the prelude with the same operands in the same order.
_INSTRUCTIONS = {
    "cvt.f32.f16 %0, %1;": "cvt_f32_f16",
    "cvt.rn.f16.f32 %0, %1;": "cvt_f16_f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};": (  # noqa: E501
        "mma_m16n8k16"
    ),
    "cvt.rna.tf32.f32 %0, %1;": "cvt_rna_tf32_f32",
    "cp.async.ca.shared.global [%0], [%1], 8, %2;": "cp_async<8>",
    "cp.async.ca.shared.global [%0], [%1], 16, %2;": "cp_async<16>",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};": (  # noqa: E501
        "mma_m16n8k8_tf32"
    ),
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "cp_async<16>",
    "cp.async.commit_group;": "tvm_builtin_ptx_cp_async_commit_group_async_commit_group",
    **{f"cp.async.wait_group {n};": f"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_{n}" for n in range(5)},
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": "ldmatrix_x4<false>",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];": "ldmatrix_x4<true>",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "cvt_f16x2_f32",
    "ex2.approx.ftz.f32 %0, %1;": "ex2_f32",
    "shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;": "shfl_bfly",
    "prmt.b32 %0, %1, %2, %3;": "prmt",
    "sub.f16x2 %0, %0, %1;": "sub_f16x2",
    "mul.f16x2 %0, %0, %1;": "mul_f16x2",
    **dict.fromkeys(
        (
            "",
            "fence.proxy.async.shared::cta;",
            "wgmma.fence.sync.aligned;",
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
        ),
        "nothing",
    ),
}
_INSTRUCTIONS |= {
    "st.relaxed.gpu.global.u64 [%0], %1;": "st_relaxed",
    "ld.relaxed.gpu.global.u64 %0, [%1];": "ld_relaxed",
}
_WARP_GROUP = "wgmma.mma_async.sync.aligned."
_PRELUDE = r"""
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <atomic>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define CUDART_INF_F INFINITY
// In the preamble of CUDA kernels it is this one of two types of 64 bits.
#define uint64_t unsigned long long
typedef unsigned short ushort;
typedef unsigned char uchar;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) ushort4 { ushort x, y, z, w; };
struct alignas(4) ushort2 { ushort x, y; };
struct alignas(4) char4 { signed char x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct dim3 { unsigned x, y, z; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline ushort4 make_ushort4(ushort x, ushort y, ushort z, ushort w) { return {x, y, z, w}; }
// What immintrin.h would bring, which is read for as long as a kernel is compiled.
typedef float floats_of_4 __attribute__((vector_size(16)));
typedef short shorts_of_8 __attribute__((vector_size(16)));
static inline float _cvtsh_ss(ushort bits) { shorts_of_8 all = {(short)bits}; return __builtin_ia32_vcvtph2ps(all)[0]; }
static inline ushort _cvtss_sh(float value, int) { floats_of_4 all = {value}; return (ushort)((shorts_of_8)__builtin_ia32_vcvtps2ph(all, 0))[0]; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline void cvt_f32_f16(float& value, ushort bits) { value = _cvtsh_ss(bits); }
static inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
// To the nearest of 10 bits behind the point; halves go away from zero, which is up where the sign is a bit of its own.
static inline void cvt_rna_tf32_f32(unsigned& bits, float value) { bits = (__float_as_uint(value) + 0x1000) & ~0x1fffu; }
static inline void cvt_f16_f32(ushort& bits, float value) { bits = _cvtss_sh(value, 0); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t bytes = ((uint64_t)b << 32) | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= (unsigned)((bytes >> (8 * ((selector >> (4 * i)) & 7))) & 255) << (8 * i);
  return out;
}
static void prmt(unsigned& out, unsigned a, unsigned b, unsigned selector) { out = __byte_perm(a, b, selector); }

static thread_local dim3 threadIdx, blockIdx, blockDim;
static thread_local ucontext_t scheduler;
static thread_local std::vector<ucontext_t> fibers;
static thread_local int current;
static void yield() { swapcontext(&fibers[current], &scheduler); }

struct Barrier { int waiting = 0, turn = 0; };
static void wait(Barrier& barrier, int members) {
  int turn = barrier.turn;
  if (++barrier.waiting == members) { barrier.waiting = 0; ++barrier.turn; return; }
  while (barrier.turn == turn) yield();
}
static thread_local Barrier group_barrier, warp_barriers[32];
static thread_local float shuffled[32][32];
static float __shfl_xor_sync(unsigned, float value, int lanes) {
  int warp = current / 32, me = current % 32;
  shuffled[warp][me] = value;
  wait(warp_barriers[warp], 32);
  float other = shuffled[warp][me ^ lanes];
  wait(warp_barriers[warp], 32);
  return other;
}
static void shfl_bfly(float& other, float value, int lanes) { other = __shfl_xor_sync(0xffffffffu, value, lanes); }
static void ex2_f32(float& power, float x) { power = exp2f(x); }
static void __syncthreads() { wait(group_barrier, blockDim.x * blockDim.y * blockDim.z); }

// Work-items of other groups are in other threads.
static void st_relaxed(unsigned long long* into, unsigned long long value) { __atomic_store_n(into, value, __ATOMIC_RELAXED); }
static void ld_relaxed(unsigned long long& value, unsigned long long* from) {
  yield();
  value = __atomic_load_n(from, __ATOMIC_RELAXED);
}

// Copies past the registers are not there before they are waited for: so late that what is not waited for is not seen.
struct Copy { char* into; const char* from; int bytes, of; };
static thread_local std::vector<std::vector<std::vector<Copy>>> copies;
// So far aligned that an address has as few bits as a matrix descriptor.
alignas(1 << 18) static thread_local char shared_memory[1 << 18];
static void* __cvta_generic_to_shared(void* pointer) { return pointer; }
static const void* __cvta_generic_to_shared(const void* pointer) { return pointer; }
template <typename... Operands> static void nothing(Operands&&...) {}
template <int size> static void cp_async(void* into, const char* from, int bytes) { copies[current].back().push_back({(char*)into, from, bytes, size}); }
static void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() { copies[current].emplace_back(); }
static void wait_for_copies(size_t under_way) {
  auto& groups = copies[current];
  while (groups.size() > under_way + 1) {
    for (Copy c : groups.front()) {
      memset(c.into, 0, c.of);
      memcpy(c.into, c.from, c.bytes);
    }
    groups.erase(groups.begin());
  }
}
static void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0() { wait_for_copies(0); }
static void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1() { wait_for_copies(1); }
static void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_2() { wait_for_copies(2); }
static void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_3() { wait_for_copies(3); }
static void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_4() { wait_for_copies(4); }

struct Fragments { unsigned a[4], b[2]; };
static thread_local Fragments warps[32][32];
static float half_at(const unsigned* registers, int element) { return _cvtsh_ss((ushort)(registers[element / 2] >> (16 * (element % 2)))); }
// A (16 x 16): element i of a lane lies in row lane / 4 (+ 8 for i = 2, 3, 6, 7) and column lane % 4 * 2 + i % 2 (+ 8 for i >= 4).
// B (16 x 8): element i lies in row lane % 4 * 2 + i % 2 (+ 8 for i >= 2) and column lane / 4.
// C (16 x 8): element i lies in row lane / 4 (+ 8 for i >= 2) and column lane % 4 * 2 + i % 2.
static void mma_m16n8k16(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  int warp = current / 32, me = current % 32;
  warps[warp][me] = {{a0, a1, a2, a3}, {b0, b1}};
  wait(warp_barriers[warp], 32);
  float A[16][16], B[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) A[lane / 4 + (i % 4 >= 2 ? 8 : 0)][lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0)] = half_at(warps[warp][lane].a, i);
    for (int i = 0; i < 4; ++i) B[lane % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0)][lane / 4] = half_at(warps[warp][lane].b, i);
  }
  float* c[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) *c[i] += A[me / 4 + (i >= 2 ? 8 : 0)][k] * B[k][me % 4 * 2 + i % 2];
  wait(warp_barriers[warp], 32);
}
static unsigned halves(float low, float high) { return _cvtss_sh(low, 0) | (unsigned)_cvtss_sh(high, 0) << 16; }
static void sub_f16x2(unsigned& a, unsigned b) { a = halves(half_at(&a, 0) - half_at(&b, 0), half_at(&a, 1) - half_at(&b, 1)); }
static void mul_f16x2(unsigned& a, unsigned b) { a = halves(half_at(&a, 0) * half_at(&b, 0), half_at(&a, 1) * half_at(&b, 1)); }
static void cvt_f16x2_f32(unsigned& pair, float upper, float lower) { pair = halves(lower, upper); }
// Lane l brings the address of row l % 8 of matrix l / 8, and gets elements l % 4 * 2 and the next of row l / 4 of each,
// or of the transposed matrices.
static thread_local const char* rows[32][32];
template <bool is_transposed> static void ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
  int warp = current / 32, me = current % 32;
  rows[warp][me] = (const char*)row;
  wait(warp_barriers[warp], 32);
  unsigned* registers[4] = {&r0, &r1, &r2, &r3};
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int i = 0; i < 2; ++i) {
      int row = is_transposed ? me % 4 * 2 + i : me / 4, column = is_transposed ? me / 4 : me % 4 * 2 + i;
      memcpy((ushort*)registers[matrix] + i, rows[warp][8 * matrix + row] + 2 * column, 2);
    }
  wait(warp_barriers[warp], 32);
}
// A warp's 16 rows of A (64 x 16), in registers as above. B (16 x columns) is in local memory, column by column, in lines
// of 128 bytes. Bits 4 to 6 of an address are swizzled by bits 7 to 9. A warp's C is as above, eight columns after eight.
static void wgmma(float** c, int columns, const unsigned* a, unsigned long long descriptor) {
  int warp = current / 32, me = current % 32;
  memcpy(warps[warp][me].a, a, 16);
  wait(warp_barriers[warp], 32);
  float A[16][16];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 8; ++i) A[lane / 4 + (i % 4 >= 2 ? 8 : 0)][lane % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0)] = half_at(warps[warp][lane].a, i);
  unsigned start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  for (int i = 0; i < columns / 2; ++i)
    for (int k = 0; k < 16; ++k) {
      int column = i / 4 * 8 + me % 4 * 2 + i % 2;
      unsigned at = start + column / 8 * stride + column % 8 * 128 + 2 * k;
      at ^= (at >> 7 & 7) << 4;
      ushort bits;
      memcpy(&bits, shared_memory + at, 2);
      *c[i] += A[me / 4 + (i % 4 >= 2 ? 8 : 0)][k] * _cvtsh_ss(bits);
    }
  wait(warp_barriers[warp], 32);
}
// A (16 x 8): element i of a lane lies in row lane / 4 (+ 8 for i = 1, 3) and column lane % 4 (+ 4 for i = 2, 3).
// B (8 x 8): element i lies in row lane % 4 (+ 4 for i = 1) and column lane / 4.
// C (16 x 8): as above. Of the factors, which are floats, the last 13 bits do not count.
static void mma_m16n8k8_tf32(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  int warp = current / 32, me = current % 32;
  warps[warp][me] = {{a0, a1, a2, a3}, {b0, b1}};
  wait(warp_barriers[warp], 32);
  float A[16][8], B[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) A[lane / 4 + (i % 2 ? 8 : 0)][lane % 4 + (i >= 2 ? 4 : 0)] = __uint_as_float(warps[warp][lane].a[i] & ~0x1fffu);
    for (int i = 0; i < 2; ++i) B[lane % 4 + (i ? 4 : 0)][lane / 4] = __uint_as_float(warps[warp][lane].b[i] & ~0x1fffu);
  }
  float* c[4] = {&c0, &c1, &c2, &c3};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 8; ++k) *c[i] += A[me / 4 + (i >= 2 ? 8 : 0)][k] * B[k][me % 4 * 2 + i % 2];
  wait(warp_barriers[warp], 32);
}
"""  # noqa: E501
_LAUNCH = r"""
static void** arguments;
static thread_local int living;
static void body() { KERNEL(ARGUMENTS); --living; while (true) yield(); }
static void run_group(dim3 group, dim3 block) {
  int items = block.x * block.y * block.z;
  std::vector<std::vector<char>> stacks(items, std::vector<char>(1 << 16));
  fibers.resize(items);
  blockDim = block;
  blockIdx = group;
  living = items;
  copies.assign(items, {{}});
  for (int i = 0; i < items; ++i) {
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks[i].data();
    fibers[i].uc_stack.ss_size = stacks[i].size();
    fibers[i].uc_link = nullptr;
    makecontext(&fibers[i], body, 0);
  }
  while (living) {
    for (int i = 0; i < items; ++i) {
      current = i;
      threadIdx = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
      swapcontext(&scheduler, &fibers[i]);
    }
    if (IS_WAITING) std::this_thread::yield();
  }
}
extern "C" void launch(void** given, const unsigned* grid, const unsigned* block) {
  arguments = given;
  // Groups that wait for each other run at once, the last one first.
  std::vector<std::thread> groups;
  for (unsigned z = grid[2]; z-- > 0;) for (unsigned y = grid[1]; y-- > 0;) for (unsigned x = grid[0]; x-- > 0;) {
    groups.emplace_back(run_group, dim3{x, y, z}, dim3{block[0], block[1], block[2]});
    if (!IS_WAITING) groups.back().join();
  }
  if (IS_WAITING) for (std::thread& group : groups) group.join();
}
"""

# What OpenCL C has and C++ lacks, and words of OpenCL C in CUDA's.
_OPENCL = """
typedef unsigned uint;
struct int4 { int x, y, z, w; };
static inline float4 floats(float v) { return {v, v, v, v}; }
static inline float4 floats(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
static inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
static inline int4 operator<(float4 a, float4 b) { return {-(a.x < b.x), -(a.y < b.y), -(a.z < b.z), -(a.w < b.w)}; }
static inline int4 convert_int4(int4 v) { return v; }
static inline float4 select(float4 a, float4 b, int4 c) { return {c.x ? b.x : a.x, c.y ? b.y : a.y, c.z ? b.z : a.z, c.w ? b.w : a.w}; }
static inline ushort4 make_ushort4(ushort v) { return {v, v, v, v}; }
static inline void vstore4(ushort4 v, size_t at, ushort* p) { p += 4 * at; p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w; }
static inline ushort4 vload4(size_t at, const ushort* p) { p += 4 * at; return {p[0], p[1], p[2], p[3]}; }
static inline float4 vload4(size_t at, const float* p) { p += 4 * at; return {p[0], p[1], p[2], p[3]}; }
static inline void vstore4(float4 v, size_t at, float* p) { p += 4 * at; p[0] = v.x, p[1] = v.y, p[2] = v.z, p[3] = v.w; }
static inline float4 vload_half4(size_t at, const ushort* p) { p += 4 * at; return {_cvtsh_ss(p[0]), _cvtsh_ss(p[1]), _cvtsh_ss(p[2]), _cvtsh_ss(p[3])}; }
static inline void vstore_half4(float4 v, size_t at, ushort* p) { p += 4 * at; p[0] = _cvtss_sh(v.x, 0), p[1] = _cvtss_sh(v.y, 0), p[2] = _cvtss_sh(v.z, 0), p[3] = _cvtss_sh(v.w, 0); }
static inline float2 vload2(size_t at, const float* p) { return {p[2 * at], p[2 * at + 1]}; }
static inline float2 vload_half2(size_t at, const ushort* p) { return {_cvtsh_ss(p[2 * at]), _cvtsh_ss(p[2 * at + 1])}; }
static inline void vstore_half2(float2 v, size_t at, ushort* p) { p[2 * at] = _cvtss_sh(v.x, 0), p[2 * at + 1] = _cvtss_sh(v.y, 0); }
#define vloada_half2 vload_half2
#define vstorea_half2 vstore_half2
#define vloada_half4 vload_half4
#define vstorea_half4 vstore_half4
static inline float as_float(uint bits) { return __uint_as_float(bits); }
static inline uint as_uint(float value) { return __float_as_uint(value); }
static inline float vload_half(size_t at, const ushort* p) { return _cvtsh_ss(p[at]); }
static inline int convert_int(int value) { return value; }
static inline int select(int a, int b, int c) { return c ? b : a; }
static inline float select(float a, float b, int c) { return c ? b : a; }
static inline unsigned of_axis(dim3 v, int axis) { return axis == 0 ? v.x : axis == 1 ? v.y : v.z; }
static inline unsigned get_group_id(int axis) { return of_axis(blockIdx, axis); }
static inline unsigned get_local_id(int axis) { return of_axis(threadIdx, axis); }
static inline void vstore_half(float value, size_t at, ushort* p) { p[at] = _cvtss_sh(value, 0); }
"""  # noqa: E501
_OF_OPENCL = (
    (r"^(\s*)__local (\w+ \w+\[\d+\])", r"\1alignas(64) static thread_local \2"),
    (r"__attribute__\(\(.*?\)\)(?= |;)", ""),
    (r"\b__(kernel|local|global) ", ""),
    (r"\brestrict\b", "__restrict__"),
    (r"barrier\(CLK_LOCAL_MEM_FENCE\)", "__syncthreads()"),
    (r"\(uint\)\(size_t\)(?=\(\()", ""),
    (r"\(half\*\)", "(ushort*)"),
    (r"\(float4\)(?=\()", "floats"),
    (r"\(ushort4\)(?=\()", "make_ushort4"),
)

_COMPILE = ["g++", "-O1", "-mf16c", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]


def run_on_cpu(task: TunableTask, config: Config, arrays: list[np.ndarray], target: Target) -> np.ndarray:
    """Return the output of a config's CUDA kernels, run one after another, in double precision."""
    contents = {str(p.name): array for p, array in zip(task.func.params, task.arguments(arrays, config), strict=True)}
    found = run_function(task.schedule(config, target)["main"], contents, target)
    return found.reshape(arrays[-1].shape).astype(np.float64)


def run_function(func: tirx.PrimFunc, contents: dict[str, np.ndarray], target: Target) -> np.ndarray:
    """Return the last parameter after a scheduled function's kernels. contents: of the parameters, by name."""
    workspaces = [b for b in func.body.block.alloc_buffers if str(b.scope()) == "global"]
    contents |= {str(b.name): np.full([int(d) for d in b.shape], np.nan, str(b.dtype)) for b in workspaces}
    memory = {name: np.full(array.size + 2 * MARGIN, _poison(array), array.dtype) for name, array in contents.items()}
    for whole, array in zip(memory.values(), contents.values(), strict=True):
        whole[INSIDE] = array.ravel()
    for kernel in inspect_function(func, target):
        extents: dict[str, int] = {}

        def extent(stmt: tirx.AttrStmt, extents: dict[str, int] = extents) -> None:
            if stmt.attr_key == "thread_extent":
                extents[str(stmt.node.thread_tag)] = int(stmt.value)

        structural_walk(kernel.lowered.body, (tirx.AttrStmt, extent))
        text = _as_cuda(kernel.source) if target.kind == "opencl" else complete(_body_of(kernel.source))
        text = _PRELUDE + _ASM.sub(_as_call, _FOR_GPUS.sub("", text))
        # Local memory has no addresses of 32 bits here.
        text = text.replace("(unsigned int)__cvta_generic_to_shared", "__cvta_generic_to_shared")
        text = text.replace("__shared__ alignas(64)", "alignas(64) static thread_local")
        text = re.sub(r"extern __shared__ \S+ (\w+) (\w+)\[\];", r"\1* \2 = (\1*)shared_memory;", text)
        parameters = re.findall(
            r"((?:signed )?\w+)\* __restrict__ (\w+)", text[text.rindex(f"{kernel.name}(") :].split("{")[0]
        )
        launch = _LAUNCH.replace(
            "ARGUMENTS", ", ".join(f"({kind}*)arguments[{i}]" for i, (kind, _) in enumerate(parameters))
        )
        is_waiting = str("wait_for_state(" in kernel.source).lower()
        text += launch.replace("KERNEL", kernel.name).replace("IS_WAITING", is_waiting)
        _launch(text, [memory[name.removesuffix("_ptr")] for _, name in parameters], extents)
    for whole in memory.values():
        untouched = np.full(MARGIN, _poison(whole), whole.dtype)
        assert np.array_equal(whole[:MARGIN], untouched, equal_nan=whole.dtype.kind == "f"), "written before an array"
        assert np.array_equal(whole[-MARGIN:], untouched, equal_nan=whole.dtype.kind == "f"), "written behind an array"
    return memory[str(func.params[-1].name)][INSIDE]


def _body_of(source: str) -> str:
    return source[source.index('extern "C" __global__') :]


def _as_cuda(source: str) -> str:
    """Return OpenCL C with CUDA's words."""
    for word, other in _OF_OPENCL:
        source = re.sub(word, other, source, flags=re.MULTILINE)
    return _OPENCL + source


def _poison(array: np.ndarray) -> float | int:
    kind = array.dtype.kind
    return float("nan") if kind == "f" else 1 if kind == "b" else int(np.iinfo(array.dtype).max)


def _as_call(found: re.Match[str]) -> str:
    """Rewrite asm("mma..." : "+f"(x), ... : "r"(a), ...); -> mma_m16n8k16((x), ..., (a), ...);"""
    operands = _OPERAND.sub(",", found[2].replace('"memory"', "")).strip(" ,:\n")
    if _WARP_GROUP not in found[1]:
        return f"{_INSTRUCTIONS[found[1]]}({operands});"
    *sums, a0, a1, a2, a3, descriptor = operands.split(",")
    pointers = ", ".join(f"&{value}" for value in sums)
    return (
        f"{{ float* c[] = {{{pointers}}}; unsigned a[] = {{{a0}, {a1}, {a2}, {a3}}};"
        f" wgmma(c, {2 * len(sums)}, a, {descriptor}); }}"
    )


def _launch(text: str, arrays: list[np.ndarray], extents: Mapping[str, int]) -> None:
    def compile_text(path: Path) -> None:
        source = path.with_suffix(".cc")
        source.write_text(text)
        done = subprocess.run([*_COMPILE, str(source), "-o", str(path)], capture_output=True, text=True, check=False)
        source.unlink()
        assert done.returncode == 0, done.stderr[:3000]

    library = ctypes.CDLL(str(compiled(".so", text, *_COMPILE, by=compile_text)))
    pointers = (ctypes.c_void_p * len(arrays))(*(whole[INSIDE].ctypes.data for whole in arrays))
    grid, block = (
        (ctypes.c_uint * 3)(*(extents.get(f"{kind}Idx.{axis}", 1) for axis in "xyz")) for kind in ("block", "thread")
    )
    library.launch(pointers, grid, block)
