extern "C" __global__ void __launch_bounds__(32) main_kernel(ushort4* __restrict__ bias_ptr, ushort* __restrict__ data_ptr, ushort4* __restrict__ relu_ptr, ushort* __restrict__ weight_ptr);
// oc = group_y * 8 + (0 to 7)
// y * 6 + x = group_x * 8 + (0 to 7)
// sum over ic 4, ky 3, kx 3, ilane 4
// data[n 1][ic 4][y 6][x 6][lane 4]
// weight[ic 4][ky 3][kx 3][ilane 4][oc 8][lane 4]
// relu[n 1][oc 8][y 6][x 6][lane 4]
extern "C" __global__ void __launch_bounds__(32) main_kernel(ushort4* __restrict__ bias_ptr, ushort* __restrict__ data_ptr, ushort4* __restrict__ relu_ptr, ushort* __restrict__ weight_ptr) {
  wait_for_kernels_before();
  alignas(64) float acc_local_ptr[8];
  __shared__ alignas(64) ushort patch_shared_ptr[960];
  __shared__ alignas(64) ushort kernel_shared_ptr[1728];
  int group_x = ((int)blockIdx.x);
  int local_x = ((int)threadIdx.x);
  int local_y = ((int)threadIdx.y);
  *(float4*)(acc_local_ptr + 0) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 4) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = (local_y >> 1);
  int at_1 = (local_y & 1);
  int at_2 = (group_x * 8);
  int at_3 = (at_1 * 4);
  int at_4 = min(((at_2 + local_x) + at_3), 35);
  int at_5 = (((at * 36) + at_4) - 7);
  int at_6 = ((local_x + (at * 20)) + at_3);
  int at_7 = (local_x >> 1);
  int at_8 = (((group_x * 4) + (at_1 * 2)) + at_7);
  int at_9 = ((at_4 * 43) >> 8);
  int at_10 = (at_4 - (at_9 * 6));
  copy_texel_async(at_5, data_ptr, at_6, patch_shared_ptr, ((at_8 >= 3) && (at_10 >= 1)));
  int at_11 = (local_y >> 2);
  int at_12 = ((local_y & 3) * 4);
  int at_13 = ((local_x + (at_11 * 144)) + at_12);
  int at_14 = ((local_x + (at_11 * 18)) + at_12);
  copy_texel_pair_async(at_13, weight_ptr, at_14, kernel_shared_ptr, (bool)1);
  copy_texel_pair_async((at_13 + 288), weight_ptr, (at_14 + 36), kernel_shared_ptr, (bool)1);
  end_group_of_copies();
  copy_texel_async((at_5 + 1), data_ptr, (at_6 + 80), patch_shared_ptr, (at_8 >= 3));
  copy_texel_pair_async((at_13 + 16), weight_ptr, (at_14 + 72), kernel_shared_ptr, (bool)1);
  copy_texel_pair_async((at_13 + 304), weight_ptr, (at_14 + 108), kernel_shared_ptr, (bool)1);
  end_group_of_copies();
  int at_15 = ((local_x * 36) + local_y);
  int at_16 = ((local_x * 20) + (local_y & 7));
  for (int ky_kx = 0; ky_kx < 7; ++ky_kx) {
    wait_for_copies(1);
    __syncthreads();
    int at_ky_kx = ((ky_kx * 3) >> 3);
    int at_ky_kx_1 = ((at_15 + (ky_kx * 144)) - (at_ky_kx * 432));
    uint64_t weight = load_staged_texel(at_ky_kx_1, kernel_shared_ptr);
    uint64_t weight_1 = load_staged_texel((at_ky_kx_1 + 8), kernel_shared_ptr);
    uint64_t weight_2 = load_staged_texel((at_ky_kx_1 + 16), kernel_shared_ptr);
    uint64_t weight_3 = load_staged_texel((at_ky_kx_1 + 24), kernel_shared_ptr);
    int at_ky_kx_2 = (ky_kx * 80);
    uint64_t data = load_staged_texel(((at_16 + at_ky_kx_2) - (at_ky_kx * 240)), patch_shared_ptr);
    tensor_core_fma(0, acc_local_ptr, weight, weight_1, weight_2, weight_3, data);
    int at_ky_kx_3 = (((ky_kx + 2) * 11) >> 5);
    int at_ky_kx_4 = (at_ky_kx_3 * 3);
    int at_ky_kx_5 = (at_9 + at_ky_kx_3);
    int at_ky_kx_6 = ((at_10 + ky_kx) - at_ky_kx_4);
    copy_texel_async((((at_5 + ky_kx) + at_ky_kx_4) + 2), data_ptr, (((at_6 + at_ky_kx_2) - (at_ky_kx_3 * 240)) + 160), patch_shared_ptr, ((((at_ky_kx_5 >= 1) && (at_ky_kx_5 < 7)) && (at_ky_kx_6 >= -1)) && (at_ky_kx_6 < 5)));
    int at_ky_kx_7 = (at_13 + (ky_kx * 16));
    int at_ky_kx_8 = ((at_14 + (ky_kx * 72)) - (at_ky_kx_3 * 216));
    copy_texel_pair_async((at_ky_kx_7 + 32), weight_ptr, (at_ky_kx_8 + 144), kernel_shared_ptr, (bool)1);
    copy_texel_pair_async((at_ky_kx_7 + 320), weight_ptr, (at_ky_kx_8 + 180), kernel_shared_ptr, (bool)1);
    end_group_of_copies();
  }
  wait_for_copies(1);
  __syncthreads();
  uint64_t weight_4 = load_staged_texel((at_15 + 144), kernel_shared_ptr);
  uint64_t weight_5 = load_staged_texel((at_15 + 152), kernel_shared_ptr);
  uint64_t weight_6 = load_staged_texel((at_15 + 160), kernel_shared_ptr);
  uint64_t weight_7 = load_staged_texel((at_15 + 168), kernel_shared_ptr);
  uint64_t data_1 = load_staged_texel((at_16 + 80), patch_shared_ptr);
  tensor_core_fma(0, acc_local_ptr, weight_4, weight_5, weight_6, weight_7, data_1);
  wait_for_copies(0);
  __syncthreads();
  uint64_t weight_8 = load_staged_texel((at_15 + 288), kernel_shared_ptr);
  uint64_t weight_9 = load_staged_texel((at_15 + 296), kernel_shared_ptr);
  uint64_t weight_10 = load_staged_texel((at_15 + 304), kernel_shared_ptr);
  uint64_t weight_11 = load_staged_texel((at_15 + 312), kernel_shared_ptr);
  uint64_t data_2 = load_staged_texel((at_16 + 160), patch_shared_ptr);
  tensor_core_fma(0, acc_local_ptr, weight_8, weight_9, weight_10, weight_11, data_2);
  bool inside = (((group_x * 2) + at_7) < 9);
  int at_17 = ((at_2 + (local_x * 2)) + (local_y * 36));
  if (inside) {
    float4 read = *(float4*)(acc_local_ptr + 0);
    ushort4 __1;
    float4 __2;
      float4 __3;
      ushort4 v_ = bias_ptr[local_y];
      __3.x = float_of_half(v_.x);
      __3.y = float_of_half(v_.y);
      __3.z = float_of_half(v_.z);
      __3.w = float_of_half(v_.w);
      __2.x = (read.x+__3.x);
      __2.y = (read.y+__3.y);
      __2.z = (read.z+__3.z);
      __2.w = (read.w+__3.w);
    float4 operand = __2;
    float4 __4;
    ushort4 __5;
      float4 v__1 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __5.x = (operand.x<v__1.x);
      __5.y = (operand.y<v__1.y);
      __5.z = (operand.z<v__1.z);
      __5.w = (operand.w<v__1.w);
    float4 v__2 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __4.x = (bool(__5.x)?v__2.x:operand.x);
    __4.y = (bool(__5.y)?v__2.y:operand.y);
    __4.z = (bool(__5.z)?v__2.z:operand.z);
    __4.w = (bool(__5.w)?v__2.w:operand.w);
    __1.x = half_of_float(__4.x);
    __1.y = half_of_float(__4.y);
    __1.z = half_of_float(__4.z);
    __1.w = half_of_float(__4.w);
    relu_ptr[at_17] = __1;
  }
  if (inside) {
    float4 read_1 = *(float4*)(acc_local_ptr + 4);
    ushort4 __6;
    float4 __7;
      float4 __8;
      ushort4 v__3 = bias_ptr[local_y];
      __8.x = float_of_half(v__3.x);
      __8.y = float_of_half(v__3.y);
      __8.z = float_of_half(v__3.z);
      __8.w = float_of_half(v__3.w);
      __7.x = (read_1.x+__8.x);
      __7.y = (read_1.y+__8.y);
      __7.z = (read_1.z+__8.z);
      __7.w = (read_1.w+__8.w);
    float4 operand_1 = __7;
    float4 __9;
    ushort4 __10;
      float4 v__4 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __10.x = (operand_1.x<v__4.x);
      __10.y = (operand_1.y<v__4.y);
      __10.z = (operand_1.z<v__4.z);
      __10.w = (operand_1.w<v__4.w);
    float4 v__5 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __9.x = (bool(__10.x)?v__5.x:operand_1.x);
    __9.y = (bool(__10.y)?v__5.y:operand_1.y);
    __9.z = (bool(__10.z)?v__5.z:operand_1.z);
    __9.w = (bool(__10.w)?v__5.w:operand_1.w);
    __6.x = half_of_float(__9.x);
    __6.y = half_of_float(__9.y);
    __6.z = half_of_float(__9.z);
    __6.w = half_of_float(__9.w);
    relu_ptr[(at_17 + 1)] = __6;
  }
}

