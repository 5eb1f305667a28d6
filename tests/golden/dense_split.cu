extern "C" __global__ void __launch_bounds__(16) main_kernel(float* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float* __restrict__ relu_ptr, float4* __restrict__ weight_ptr);
// n = group_y * 4 + local_y
// m = group_x
// sum over k 64, kstep 4
// local_z: one of 4 pieces of k
// data[m 1][k 256]
// weight[k 256][n 25][lane 4]
// relu[m 1][n 100]
extern "C" __global__ void __launch_bounds__(16) main_kernel(float* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float* __restrict__ relu_ptr, float4* __restrict__ weight_ptr) {
  wait_for_kernels_before();
  int group_y = ((int)blockIdx.y);
  alignas(64) float4 part_shared_local_ptr[1];
  alignas(64) float4 patch_local_ptr[1];
  __shared__ alignas(64) float part_shared_ptr[64];
  alignas(64) float acc_local_ptr[1];
  int local_y = ((int)threadIdx.y);
  int local_z = ((int)threadIdx.z);
  part_shared_local_ptr[0] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = (local_z * 16);
  int at_1 = ((group_y * 4) + local_y);
  int at_2 = ((local_z * 1600) + min(at_1, 24));
  for (int k = 0; k < 16; ++k) {
    patch_local_ptr[0] = data_ptr[(at + k)];
    int at_k = (at_2 + (k * 100));
    float4 read = patch_local_ptr[0];
    float4 read_1 = part_shared_local_ptr[0];
    float4 __1;
    float4 v_ = make_float4((read).x, (read).x, (read).x, (read).x);
    float4 v__1 = weight_ptr[at_k];
    __1.x = fma(v_.x, v__1.x, read_1.x);
    __1.y = fma(v_.y, v__1.y, read_1.y);
    __1.z = fma(v_.z, v__1.z, read_1.z);
    __1.w = fma(v_.w, v__1.w, read_1.w);
    part_shared_local_ptr[0] = __1;
    float4 read_2 = patch_local_ptr[0];
    float4 read_3 = part_shared_local_ptr[0];
    float4 __2;
    float4 v__2 = make_float4((read_2).y, (read_2).y, (read_2).y, (read_2).y);
    float4 v__3 = weight_ptr[(at_k + 25)];
    __2.x = fma(v__2.x, v__3.x, read_3.x);
    __2.y = fma(v__2.y, v__3.y, read_3.y);
    __2.z = fma(v__2.z, v__3.z, read_3.z);
    __2.w = fma(v__2.w, v__3.w, read_3.w);
    part_shared_local_ptr[0] = __2;
    float4 read_4 = patch_local_ptr[0];
    float4 read_5 = part_shared_local_ptr[0];
    float4 __3;
    float4 v__4 = make_float4((read_4).z, (read_4).z, (read_4).z, (read_4).z);
    float4 v__5 = weight_ptr[(at_k + 50)];
    __3.x = fma(v__4.x, v__5.x, read_5.x);
    __3.y = fma(v__4.y, v__5.y, read_5.y);
    __3.z = fma(v__4.z, v__5.z, read_5.z);
    __3.w = fma(v__4.w, v__5.w, read_5.w);
    part_shared_local_ptr[0] = __3;
    float4 read_6 = patch_local_ptr[0];
    float4 read_7 = part_shared_local_ptr[0];
    float4 __4;
    float4 v__6 = make_float4((read_6).w, (read_6).w, (read_6).w, (read_6).w);
    float4 v__7 = weight_ptr[(at_k + 75)];
    __4.x = fma(v__6.x, v__7.x, read_7.x);
    __4.y = fma(v__6.y, v__7.y, read_7.y);
    __4.z = fma(v__6.z, v__7.z, read_7.z);
    __4.w = fma(v__6.w, v__7.w, read_7.w);
    part_shared_local_ptr[0] = __4;
  }
  *(float4*)(part_shared_ptr + ((local_y + (local_z * 4)) * 4)) = part_shared_local_ptr[0];
  acc_local_ptr[0] = 0x0p+0f/*0.000000e+00*/;
  __syncthreads();
  int at_3 = ((local_y * 4) + local_z);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[at_3]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_3 + 16)]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_3 + 32)]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_3 + 48)]);
  int at_4 = (at_3 + (group_y * 16));
  if (at_1 < 25) {
    float operand = (acc_local_ptr[0] + bias_ptr[at_4]);
    relu_ptr[at_4] = ((operand < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand);
  }
}

