// Function: main_kernel
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)

#define READ_PLAIN_IMAGEH(image, sampler, coord) read_imageh(image, (coord).xy)
#define READ_PLAIN_IMAGEF(image, sampler, coord) read_imagef(image, (coord).xy)
#ifdef UNROLL_HINT
#define KEPT_LOOP __attribute__((opencl_unroll_hint(1)))
#define LOOP_START 0
#else
#define KEPT_LOOP
#define LOOP_START get_group_id(2)
#endif
__kernel __attribute__((reqd_work_group_size(1, 4, 4))) void main_kernel(__global float* restrict bias_ptr, __global float4* restrict data_ptr, __global float* restrict relu_ptr, __read_only image2d_t weight_ptr);
// n = group_y * 4 + local_y
// m = group_x
// sum over k 64, kstep 4
// local_z: one of 4 pieces of k
// data[m 1][k 256]
// weight[k 256][n 25][lane 4]
// relu[m 1][n 100]
__kernel __attribute__((reqd_work_group_size(1, 4, 4))) void main_kernel(__global float* restrict bias_ptr, __global float4* restrict data_ptr, __global float* restrict relu_ptr, __read_only image2d_t weight_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  int group_y = (convert_int(get_group_id(1)));
  float4 part_shared_local_0;
  float4 patch_local_0;
  __local float part_shared_ptr[64] __attribute__((aligned(64)));
  float acc_local_0;
  int local_y = (convert_int(get_local_id(1)));
  int local_z = (convert_int(get_local_id(2)));
  part_shared_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (local_z * 16);
  int at_1 = ((group_y * 4) + local_y);
  int at_2 = min((int)at_1, (int)24);
  int at_3 = (local_z * 64);
  const __global float4* data_at = data_ptr + at;
  KEPT_LOOP
  for (int k = LOOP_START; k < 16; ++k) {
    patch_local_0 = data_at[0];
    int at_k = (at_3 + (k * 4));
    float4 v_ = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_2, at_k, 0, 0))));
    part_shared_local_0 = mad((float4)((patch_local_0).s0), v_, part_shared_local_0);
    float4 v__1 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_2, (at_k + 1), 0, 0))));
    part_shared_local_0 = mad((float4)((patch_local_0).s1), v__1, part_shared_local_0);
    float4 v__2 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_2, (at_k + 2), 0, 0))));
    part_shared_local_0 = mad((float4)((patch_local_0).s2), v__2, part_shared_local_0);
    float4 v__3 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_2, (at_k + 3), 0, 0))));
    part_shared_local_0 = mad((float4)((patch_local_0).s3), v__3, part_shared_local_0);
    data_at += 1;
  }
  ((__local float4*)part_shared_ptr)[(local_y + (local_z * 4))] = part_shared_local_0;
  acc_local_0 = 0.000000e+00f;
  barrier(CLK_LOCAL_MEM_FENCE);
  int at_4 = ((local_y * 4) + local_z);
  acc_local_0 = (acc_local_0 + part_shared_ptr[at_4]);
  acc_local_0 = (acc_local_0 + part_shared_ptr[(at_4 + 16)]);
  acc_local_0 = (acc_local_0 + part_shared_ptr[(at_4 + 32)]);
  acc_local_0 = (acc_local_0 + part_shared_ptr[(at_4 + 48)]);
  int at_5 = (at_4 + (group_y * 16));
  if (at_1 < 25) {
    float operand = (acc_local_0 + bias_ptr[at_5]);
    relu_ptr[at_5] = select(operand, 0.000000e+00f, (convert_int((operand < 0.000000e+00f))));
  }
}

