extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ bias_ptr, float* __restrict__ data_ptr, float* __restrict__ relu_ptr, float* __restrict__ weight_ptr);
// n = group_y * 8 + (0 to 7)
// m = group_x * 8 + (0 to 7)
// sum over k 16, kstep 4
// data[m 16][k 64]
// weight[k 64][n 13][lane 4]
// relu[m 16][n 50]
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ bias_ptr, float* __restrict__ data_ptr, float* __restrict__ relu_ptr, float* __restrict__ weight_ptr) {
  wait_for_kernels_before();
  int group_y = ((int)blockIdx.y);
  alignas(64) float acc_local_ptr[8];
  int group_x = ((int)blockIdx.x);
  int local_x = ((int)threadIdx.x);
  int local_y = ((int)threadIdx.y);
  *(float4*)(acc_local_ptr + 0) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 4) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = ((group_y * 8) + local_y);
  int at_1 = ((local_x * 52) + min(at, 12));
  int at_2 = (((group_x * 128) + local_x) + ((local_y & 7) * 16));
  for (int k = 0; k < 4; ++k) {
    int at_k = (at_1 + (k * 208));
    float4 __1;
    float4 v_ = *(float4*)(weight_ptr + (at_k * 4));
    __1.x = tf32_of_float(v_.x);
    __1.y = tf32_of_float(v_.y);
    __1.z = tf32_of_float(v_.z);
    __1.w = tf32_of_float(v_.w);
    float4 weight = __1;
    float4 __2;
    float4 v__1 = *(float4*)(weight_ptr + ((at_k + 13) * 4));
    __2.x = tf32_of_float(v__1.x);
    __2.y = tf32_of_float(v__1.y);
    __2.z = tf32_of_float(v__1.z);
    __2.w = tf32_of_float(v__1.w);
    float4 weight_1 = __2;
    float4 __3;
    float4 v__2 = *(float4*)(weight_ptr + ((at_k + 26) * 4));
    __3.x = tf32_of_float(v__2.x);
    __3.y = tf32_of_float(v__2.y);
    __3.z = tf32_of_float(v__2.z);
    __3.w = tf32_of_float(v__2.w);
    float4 weight_2 = __3;
    float4 __4;
    float4 v__3 = *(float4*)(weight_ptr + ((at_k + 39) * 4));
    __4.x = tf32_of_float(v__3.x);
    __4.y = tf32_of_float(v__3.y);
    __4.z = tf32_of_float(v__3.z);
    __4.w = tf32_of_float(v__3.w);
    float4 weight_3 = __4;
    float4 __5;
    float4 v__4 = *(float4*)(data_ptr + ((at_2 + (k * 4)) * 4));
    __5.x = tf32_of_float(v__4.x);
    __5.y = tf32_of_float(v__4.y);
    __5.z = tf32_of_float(v__4.z);
    __5.w = tf32_of_float(v__4.w);
    float4 data = __5;
    tensor_core_fma_tf32(0, acc_local_ptr, weight, weight_1, weight_2, weight_3, data);
  }
  bool inside = ((((group_y * 16) + (local_y * 2)) < 25) && (at < 13));
  int at_3 = ((group_y * 32) + (local_y * 4));
  int at_4 = ((at_3 + (group_x * 400)) + (local_x * 100));
  if (inside) {
    float operand = (acc_local_ptr[0] + bias_ptr[at_3]);
    relu_ptr[at_4] = ((operand < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand);
  }
  if (inside) {
    float operand_1 = (acc_local_ptr[1] + bias_ptr[(at_3 + 1)]);
    relu_ptr[(at_4 + 1)] = ((operand_1 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_1);
  }
  bool inside_1 = ((at < 12) && (at < 13));
  if (inside_1) {
    float operand_2 = (acc_local_ptr[2] + bias_ptr[(at_3 + 2)]);
    relu_ptr[(at_4 + 2)] = ((operand_2 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_2);
  }
  if (inside_1) {
    float operand_3 = (acc_local_ptr[3] + bias_ptr[(at_3 + 3)]);
    relu_ptr[(at_4 + 3)] = ((operand_3 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_3);
  }
  if (inside) {
    float operand_4 = (acc_local_ptr[4] + bias_ptr[at_3]);
    relu_ptr[(at_4 + 50)] = ((operand_4 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_4);
  }
  if (inside) {
    float operand_5 = (acc_local_ptr[5] + bias_ptr[(at_3 + 1)]);
    relu_ptr[(at_4 + 51)] = ((operand_5 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_5);
  }
  if (inside_1) {
    float operand_6 = (acc_local_ptr[6] + bias_ptr[(at_3 + 2)]);
    relu_ptr[(at_4 + 52)] = ((operand_6 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_6);
  }
  if (inside_1) {
    float operand_7 = (acc_local_ptr[7] + bias_ptr[(at_3 + 3)]);
    relu_ptr[(at_4 + 53)] = ((operand_7 < 0x0p+0f/*0.000000e+00*/) ? 0x0p+0f/*0.000000e+00*/ : operand_7);
  }
}

