extern "C" __global__ void __launch_bounds__(16) main_kernel(float* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float* __restrict__ relu_ptr, float4* __restrict__ weight_ptr);
extern "C" __global__ void __launch_bounds__(16) main_kernel(float* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float* __restrict__ relu_ptr, float4* __restrict__ weight_ptr) {
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
  for (int ax5 = 0; ax5 < 16; ++ax5) {
    patch_local_ptr[0] = data_ptr[(at + ax5)];
    int at_3 = (at_2 + (ax5 * 100));
    float4 __1;
    float4 v_ = make_float4((patch_local_ptr[0]).x, (patch_local_ptr[0]).x, (patch_local_ptr[0]).x, (patch_local_ptr[0]).x);
    float4 v__1 = weight_ptr[at_3];
    float4 v__2 = part_shared_local_ptr[0];
    __1.x = fma(v_.x, v__1.x, v__2.x);
    __1.y = fma(v_.y, v__1.y, v__2.y);
    __1.z = fma(v_.z, v__1.z, v__2.z);
    __1.w = fma(v_.w, v__1.w, v__2.w);
    part_shared_local_ptr[0] = __1;
    float4 __2;
    float4 v__3 = make_float4((patch_local_ptr[0]).y, (patch_local_ptr[0]).y, (patch_local_ptr[0]).y, (patch_local_ptr[0]).y);
    float4 v__4 = weight_ptr[(at_3 + 25)];
    __2.x = fma(v__3.x, v__4.x, v__2.x);
    __2.y = fma(v__3.y, v__4.y, v__2.y);
    __2.z = fma(v__3.z, v__4.z, v__2.z);
    __2.w = fma(v__3.w, v__4.w, v__2.w);
    part_shared_local_ptr[0] = __2;
    float4 __3;
    float4 v__5 = make_float4((patch_local_ptr[0]).z, (patch_local_ptr[0]).z, (patch_local_ptr[0]).z, (patch_local_ptr[0]).z);
    float4 v__6 = weight_ptr[(at_3 + 50)];
    __3.x = fma(v__5.x, v__6.x, v__2.x);
    __3.y = fma(v__5.y, v__6.y, v__2.y);
    __3.z = fma(v__5.z, v__6.z, v__2.z);
    __3.w = fma(v__5.w, v__6.w, v__2.w);
    part_shared_local_ptr[0] = __3;
    float4 __4;
    float4 v__7 = make_float4((patch_local_ptr[0]).w, (patch_local_ptr[0]).w, (patch_local_ptr[0]).w, (patch_local_ptr[0]).w);
    float4 v__8 = weight_ptr[(at_3 + 75)];
    __4.x = fma(v__7.x, v__8.x, v__2.x);
    __4.y = fma(v__7.y, v__8.y, v__2.y);
    __4.z = fma(v__7.z, v__8.z, v__2.z);
    __4.w = fma(v__7.w, v__8.w, v__2.w);
    part_shared_local_ptr[0] = __4;
  }
  *(float4*)(part_shared_ptr + ((local_y + (local_z * 4)) * 4)) = part_shared_local_ptr[0];
  acc_local_ptr[0] = 0x0p+0f/*0.000000e+00*/;
  __syncthreads();
  int at_4 = ((local_y * 4) + local_z);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[at_4]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_4 + 16)]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_4 + 32)]);
  acc_local_ptr[0] = (acc_local_ptr[0] + part_shared_ptr[(at_4 + 48)]);
  int at_5 = (at_4 + (group_y * 16));
  if (at_1 < 25) {
    relu_ptr[at_5] = max((acc_local_ptr[0] + bias_ptr[at_5]), 0x0p+0f/*0.000000e+00*/);
  }
}

