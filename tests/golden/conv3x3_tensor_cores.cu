extern "C" __global__ void __launch_bounds__(64) main_kernel(ushort4* __restrict__ bias_ptr, ushort* __restrict__ data_ptr, ushort4* __restrict__ relu_ptr, ushort* __restrict__ weight_ptr);
// oc = group_y * 16 + (0 to 15)
// y * 28 + x = group_x * 32 + (0 to 31)
// sum over ic 8, ky 3, kx 3, ilane 4
// data[n 1][ic 8][y 28][x 28][lane 4]
// weight[ic 8][ky 3][kx 3][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 28][x 28][lane 4]
extern "C" __global__ void __launch_bounds__(64) main_kernel(ushort4* __restrict__ bias_ptr, ushort* __restrict__ data_ptr, ushort4* __restrict__ relu_ptr, ushort* __restrict__ weight_ptr) {
  wait_for_kernels_before();
  alignas(64) float acc_local_ptr[32];
  int group_x = ((int)blockIdx.x);
  int local_x = ((int)threadIdx.x);
  int local_y = ((int)threadIdx.y);
  *(float4*)(acc_local_ptr + 0) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 4) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 8) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 12) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 16) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 20) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 24) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  *(float4*)(acc_local_ptr + 28) = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = (local_y & 7);
  int at_1 = ((local_x * 288) + at);
  int at_2 = (local_y >> 3);
  int at_3 = (at & 1);
  int at_4 = (group_x * 32);
  int at_5 = (at_2 * 16);
  int at_6 = ((at >> 1) * 2);
  int at_7 = min(((((at_4 + at_5) + ((at_3 >> 1) * 8)) + at_6) + (at_3 & 1)), 783);
  int at_8 = ((at_7 * 1171) >> 15);
  int at_9 = (at_7 - (at_8 * 28));
  int at_10 = ((at_4 + at) + at_5);
  int at_11 = (local_x * 784);
  int at_12 = ((at_11 + min(at_10, 783)) - 29);
  int at_13 = (at_3 + 2);
  int at_14 = min(((((at_4 + at_5) + at_6) + ((at_13 >> 1) * 8)) + (at_13 & 1)), 783);
  int at_15 = ((at_14 * 1171) >> 15);
  int at_16 = (at_14 - (at_15 * 28));
  int at_17 = ((at_11 + min((at_10 + 8), 783)) - 29);
  for (int ic = 0; ic < 2; ++ic) {
    int at_ic = (at_1 + (ic * 1152));
    int at_ic_1 = (ic * 3136);
    int at_ic_2 = (at_12 + at_ic_1);
    int at_ic_3 = (at_17 + at_ic_1);
    for (int ky = 0; ky < 3; ++ky) {
      int at_ic_ky = (at_ic + (ky * 96));
      int at_ky = (at_8 + ky);
      bool inside_ky = ((at_ky >= 1) && (at_ky < 29));
      int at_ky_1 = (ky * 28);
      int at_ic_ky_1 = (at_ic_2 + at_ky_1);
      int at_ky_2 = (at_15 + ky);
      bool inside_ky_1 = ((at_ky_2 >= 1) && (at_ky_2 < 29));
      int at_ic_ky_2 = (at_ic_3 + at_ky_1);
      for (int kx = 0; kx < 3; ++kx) {
        alignas(64) uint64_t weights_ptr[2];
        int at_ic_ky_kx = (at_ic_ky + (kx * 32));
        load_texel_pair(at_ic_ky_kx, weight_ptr, weights_ptr);
        alignas(64) uint64_t weights_ptr_1[2];
        load_texel_pair((at_ic_ky_kx + 8), weight_ptr, weights_ptr_1);
        alignas(64) uint64_t weights_ptr_2[2];
        load_texel_pair((at_ic_ky_kx + 16), weight_ptr, weights_ptr_2);
        alignas(64) uint64_t weights_ptr_3[2];
        load_texel_pair((at_ic_ky_kx + 24), weight_ptr, weights_ptr_3);
        int at_kx = (at_9 + kx);
        uint64_t condval;
        if (inside_ky && ((at_kx >= 1) && (at_kx < 29))) {
          condval = load_texel((at_ic_ky_1 + kx), data_ptr);
        } else {
          condval = (uint64_t)0ULL;
        }
        uint64_t data = condval;
        int at_kx_1 = (at_16 + kx);
        uint64_t condval_1;
        if (inside_ky_1 && ((at_kx_1 >= 1) && (at_kx_1 < 29))) {
          condval_1 = load_texel((at_ic_ky_2 + kx), data_ptr);
        } else {
          condval_1 = (uint64_t)0ULL;
        }
        uint64_t data_1 = condval_1;
        tensor_core_fma(0, acc_local_ptr, weights_ptr[0], weights_ptr_1[0], weights_ptr_2[0], weights_ptr_3[0], data);
        tensor_core_fma(8, acc_local_ptr, weights_ptr[0], weights_ptr_1[0], weights_ptr_2[0], weights_ptr_3[0], data_1);
        tensor_core_fma(16, acc_local_ptr, weights_ptr[1], weights_ptr_1[1], weights_ptr_2[1], weights_ptr_3[1], data);
        tensor_core_fma(24, acc_local_ptr, weights_ptr[1], weights_ptr_1[1], weights_ptr_2[1], weights_ptr_3[1], data_1);
      }
    }
  }
  bool inside = (((group_x * 2) + at_2) < 49);
  int at_18 = (at * 2);
  int at_19 = (((at_4 + (local_x * 2)) + (at * 1568)) + at_5);
  if (inside) {
    float4 read = *(float4*)(acc_local_ptr + 0);
    ushort4 __1;
    float4 __2;
      float4 __3;
      ushort4 v_ = bias_ptr[at_18];
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
    relu_ptr[at_19] = __1;
  }
  if (inside) {
    float4 read_1 = *(float4*)(acc_local_ptr + 4);
    ushort4 __6;
    float4 __7;
      float4 __8;
      ushort4 v__3 = bias_ptr[at_18];
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
    relu_ptr[(at_19 + 1)] = __6;
  }
  if (inside) {
    float4 read_2 = *(float4*)(acc_local_ptr + 8);
    ushort4 __11;
    float4 __12;
      float4 __13;
      ushort4 v__6 = bias_ptr[at_18];
      __13.x = float_of_half(v__6.x);
      __13.y = float_of_half(v__6.y);
      __13.z = float_of_half(v__6.z);
      __13.w = float_of_half(v__6.w);
      __12.x = (read_2.x+__13.x);
      __12.y = (read_2.y+__13.y);
      __12.z = (read_2.z+__13.z);
      __12.w = (read_2.w+__13.w);
    float4 operand_2 = __12;
    float4 __14;
    ushort4 __15;
      float4 v__7 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __15.x = (operand_2.x<v__7.x);
      __15.y = (operand_2.y<v__7.y);
      __15.z = (operand_2.z<v__7.z);
      __15.w = (operand_2.w<v__7.w);
    float4 v__8 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __14.x = (bool(__15.x)?v__8.x:operand_2.x);
    __14.y = (bool(__15.y)?v__8.y:operand_2.y);
    __14.z = (bool(__15.z)?v__8.z:operand_2.z);
    __14.w = (bool(__15.w)?v__8.w:operand_2.w);
    __11.x = half_of_float(__14.x);
    __11.y = half_of_float(__14.y);
    __11.z = half_of_float(__14.z);
    __11.w = half_of_float(__14.w);
    relu_ptr[(at_19 + 8)] = __11;
  }
  if (inside) {
    float4 read_3 = *(float4*)(acc_local_ptr + 12);
    ushort4 __16;
    float4 __17;
      float4 __18;
      ushort4 v__9 = bias_ptr[at_18];
      __18.x = float_of_half(v__9.x);
      __18.y = float_of_half(v__9.y);
      __18.z = float_of_half(v__9.z);
      __18.w = float_of_half(v__9.w);
      __17.x = (read_3.x+__18.x);
      __17.y = (read_3.y+__18.y);
      __17.z = (read_3.z+__18.z);
      __17.w = (read_3.w+__18.w);
    float4 operand_3 = __17;
    float4 __19;
    ushort4 __20;
      float4 v__10 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __20.x = (operand_3.x<v__10.x);
      __20.y = (operand_3.y<v__10.y);
      __20.z = (operand_3.z<v__10.z);
      __20.w = (operand_3.w<v__10.w);
    float4 v__11 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __19.x = (bool(__20.x)?v__11.x:operand_3.x);
    __19.y = (bool(__20.y)?v__11.y:operand_3.y);
    __19.z = (bool(__20.z)?v__11.z:operand_3.z);
    __19.w = (bool(__20.w)?v__11.w:operand_3.w);
    __16.x = half_of_float(__19.x);
    __16.y = half_of_float(__19.y);
    __16.z = half_of_float(__19.z);
    __16.w = half_of_float(__19.w);
    relu_ptr[(at_19 + 9)] = __16;
  }
  if (inside) {
    float4 read_4 = *(float4*)(acc_local_ptr + 16);
    ushort4 __21;
    float4 __22;
      float4 __23;
      ushort4 v__12 = bias_ptr[(at_18 + 1)];
      __23.x = float_of_half(v__12.x);
      __23.y = float_of_half(v__12.y);
      __23.z = float_of_half(v__12.z);
      __23.w = float_of_half(v__12.w);
      __22.x = (read_4.x+__23.x);
      __22.y = (read_4.y+__23.y);
      __22.z = (read_4.z+__23.z);
      __22.w = (read_4.w+__23.w);
    float4 operand_4 = __22;
    float4 __24;
    ushort4 __25;
      float4 v__13 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __25.x = (operand_4.x<v__13.x);
      __25.y = (operand_4.y<v__13.y);
      __25.z = (operand_4.z<v__13.z);
      __25.w = (operand_4.w<v__13.w);
    float4 v__14 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __24.x = (bool(__25.x)?v__14.x:operand_4.x);
    __24.y = (bool(__25.y)?v__14.y:operand_4.y);
    __24.z = (bool(__25.z)?v__14.z:operand_4.z);
    __24.w = (bool(__25.w)?v__14.w:operand_4.w);
    __21.x = half_of_float(__24.x);
    __21.y = half_of_float(__24.y);
    __21.z = half_of_float(__24.z);
    __21.w = half_of_float(__24.w);
    relu_ptr[(at_19 + 784)] = __21;
  }
  if (inside) {
    float4 read_5 = *(float4*)(acc_local_ptr + 20);
    ushort4 __26;
    float4 __27;
      float4 __28;
      ushort4 v__15 = bias_ptr[(at_18 + 1)];
      __28.x = float_of_half(v__15.x);
      __28.y = float_of_half(v__15.y);
      __28.z = float_of_half(v__15.z);
      __28.w = float_of_half(v__15.w);
      __27.x = (read_5.x+__28.x);
      __27.y = (read_5.y+__28.y);
      __27.z = (read_5.z+__28.z);
      __27.w = (read_5.w+__28.w);
    float4 operand_5 = __27;
    float4 __29;
    ushort4 __30;
      float4 v__16 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __30.x = (operand_5.x<v__16.x);
      __30.y = (operand_5.y<v__16.y);
      __30.z = (operand_5.z<v__16.z);
      __30.w = (operand_5.w<v__16.w);
    float4 v__17 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __29.x = (bool(__30.x)?v__17.x:operand_5.x);
    __29.y = (bool(__30.y)?v__17.y:operand_5.y);
    __29.z = (bool(__30.z)?v__17.z:operand_5.z);
    __29.w = (bool(__30.w)?v__17.w:operand_5.w);
    __26.x = half_of_float(__29.x);
    __26.y = half_of_float(__29.y);
    __26.z = half_of_float(__29.z);
    __26.w = half_of_float(__29.w);
    relu_ptr[(at_19 + 785)] = __26;
  }
  if (inside) {
    float4 read_6 = *(float4*)(acc_local_ptr + 24);
    ushort4 __31;
    float4 __32;
      float4 __33;
      ushort4 v__18 = bias_ptr[(at_18 + 1)];
      __33.x = float_of_half(v__18.x);
      __33.y = float_of_half(v__18.y);
      __33.z = float_of_half(v__18.z);
      __33.w = float_of_half(v__18.w);
      __32.x = (read_6.x+__33.x);
      __32.y = (read_6.y+__33.y);
      __32.z = (read_6.z+__33.z);
      __32.w = (read_6.w+__33.w);
    float4 operand_6 = __32;
    float4 __34;
    ushort4 __35;
      float4 v__19 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __35.x = (operand_6.x<v__19.x);
      __35.y = (operand_6.y<v__19.y);
      __35.z = (operand_6.z<v__19.z);
      __35.w = (operand_6.w<v__19.w);
    float4 v__20 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __34.x = (bool(__35.x)?v__20.x:operand_6.x);
    __34.y = (bool(__35.y)?v__20.y:operand_6.y);
    __34.z = (bool(__35.z)?v__20.z:operand_6.z);
    __34.w = (bool(__35.w)?v__20.w:operand_6.w);
    __31.x = half_of_float(__34.x);
    __31.y = half_of_float(__34.y);
    __31.z = half_of_float(__34.z);
    __31.w = half_of_float(__34.w);
    relu_ptr[(at_19 + 792)] = __31;
  }
  if (inside) {
    float4 read_7 = *(float4*)(acc_local_ptr + 28);
    ushort4 __36;
    float4 __37;
      float4 __38;
      ushort4 v__21 = bias_ptr[(at_18 + 1)];
      __38.x = float_of_half(v__21.x);
      __38.y = float_of_half(v__21.y);
      __38.z = float_of_half(v__21.z);
      __38.w = float_of_half(v__21.w);
      __37.x = (read_7.x+__38.x);
      __37.y = (read_7.y+__38.y);
      __37.z = (read_7.z+__38.z);
      __37.w = (read_7.w+__38.w);
    float4 operand_7 = __37;
    float4 __39;
    ushort4 __40;
      float4 v__22 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __40.x = (operand_7.x<v__22.x);
      __40.y = (operand_7.y<v__22.y);
      __40.z = (operand_7.z<v__22.z);
      __40.w = (operand_7.w<v__22.w);
    float4 v__23 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __39.x = (bool(__40.x)?v__23.x:operand_7.x);
    __39.y = (bool(__40.y)?v__23.y:operand_7.y);
    __39.z = (bool(__40.z)?v__23.z:operand_7.z);
    __39.w = (bool(__40.w)?v__23.w:operand_7.w);
    __36.x = half_of_float(__39.x);
    __36.y = half_of_float(__39.y);
    __36.z = half_of_float(__39.z);
    __36.w = half_of_float(__39.w);
    relu_ptr[(at_19 + 793)] = __36;
  }
}

