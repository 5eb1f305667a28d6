extern "C" __global__ void __launch_bounds__(16) main_kernel(float4* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float4* __restrict__ relu_ptr, float4* __restrict__ weight_ptr);
// oc = group_y * 4 + local_y
// y = group_x / 2
// x = (group_x % 2 * 4 + local_x) * 4 + (0 to 3)
// sum over ic 8, ky 3, kx 3, ilane 4
// data[n 1][ic 8][y 28][x 28][lane 4]
// weight[ic 8][ky 3][kx 3][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 28][x 28][lane 4]
extern "C" __global__ void __launch_bounds__(16) main_kernel(float4* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float4* __restrict__ relu_ptr, float4* __restrict__ weight_ptr) {
  wait_for_kernels_before();
  int group_y = ((int)blockIdx.y);
  alignas(64) float4 acc_local_ptr[4];
  alignas(64) float4 patch_local_ptr[4];
  int group_x = ((int)blockIdx.x);
  int local_x = ((int)threadIdx.x);
  int local_y = ((int)threadIdx.y);
  int at = (group_x & 1);
  int at_1 = (group_x >> 1);
  int at_2 = ((local_x * 4) + (at * 16));
  int at_3 = ((at_2 + (at_1 * 28)) - 29);
  int at_4 = ((group_y * 4) + local_y);
  int at_5 = (((at_3 + (group_y * 3136)) + (local_y * 784)) + 29);
  if ((local_x + (at * 4)) < 7) {
    acc_local_ptr[0] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    acc_local_ptr[1] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    acc_local_ptr[2] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    acc_local_ptr[3] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    for (int ic = 0; ic < 8; ++ic) {
      int at_ic = (at_3 + (ic * 784));
      int at_ic_1 = (at_4 + (ic * 576));
      for (int ky = 0; ky < 3; ++ky) {
        int at_ky = (at_1 + ky);
        bool inside_ky = ((at_ky >= 1) && (at_ky < 29));
        int at_ic_ky = (at_ic + (ky * 28));
        int at_ic_ky_1 = (at_ic_1 + (ky * 192));
        for (int kx = 0; kx < 3; ++kx) {
          int at_kx = (at_2 + kx);
          int at_ic_ky_kx = (at_ic_ky + kx);
          float4 condval;
          if (inside_ky && (at_kx >= 1)) {
            condval = data_ptr[at_ic_ky_kx];
          } else {
            condval = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
          }
          patch_local_ptr[0] = condval;
          float4 condval_1;
          if (inside_ky) {
            condval_1 = data_ptr[(at_ic_ky_kx + 1)];
          } else {
            condval_1 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
          }
          patch_local_ptr[1] = condval_1;
          float4 condval_2;
          if (inside_ky) {
            condval_2 = data_ptr[(at_ic_ky_kx + 2)];
          } else {
            condval_2 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
          }
          patch_local_ptr[2] = condval_2;
          float4 condval_3;
          if (inside_ky && (at_kx < 26)) {
            condval_3 = data_ptr[(at_ic_ky_kx + 3)];
          } else {
            condval_3 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
          }
          patch_local_ptr[3] = condval_3;
          int at_ic_ky_kx_1 = (at_ic_ky_1 + (kx * 64));
          float4 value = weight_ptr[at_ic_ky_kx_1];
          float4 read = patch_local_ptr[0];
          float4 read_1 = acc_local_ptr[0];
          float4 __1;
          float4 v_ = make_float4((read).x, (read).x, (read).x, (read).x);
          __1.x = fma(v_.x, value.x, read_1.x);
          __1.y = fma(v_.y, value.y, read_1.y);
          __1.z = fma(v_.z, value.z, read_1.z);
          __1.w = fma(v_.w, value.w, read_1.w);
          acc_local_ptr[0] = __1;
          float4 read_2 = patch_local_ptr[1];
          float4 read_3 = acc_local_ptr[1];
          float4 __2;
          float4 v__1 = make_float4((read_2).x, (read_2).x, (read_2).x, (read_2).x);
          __2.x = fma(v__1.x, value.x, read_3.x);
          __2.y = fma(v__1.y, value.y, read_3.y);
          __2.z = fma(v__1.z, value.z, read_3.z);
          __2.w = fma(v__1.w, value.w, read_3.w);
          acc_local_ptr[1] = __2;
          float4 read_4 = patch_local_ptr[2];
          float4 read_5 = acc_local_ptr[2];
          float4 __3;
          float4 v__2 = make_float4((read_4).x, (read_4).x, (read_4).x, (read_4).x);
          __3.x = fma(v__2.x, value.x, read_5.x);
          __3.y = fma(v__2.y, value.y, read_5.y);
          __3.z = fma(v__2.z, value.z, read_5.z);
          __3.w = fma(v__2.w, value.w, read_5.w);
          acc_local_ptr[2] = __3;
          float4 read_6 = patch_local_ptr[3];
          float4 read_7 = acc_local_ptr[3];
          float4 __4;
          float4 v__3 = make_float4((read_6).x, (read_6).x, (read_6).x, (read_6).x);
          __4.x = fma(v__3.x, value.x, read_7.x);
          __4.y = fma(v__3.y, value.y, read_7.y);
          __4.z = fma(v__3.z, value.z, read_7.z);
          __4.w = fma(v__3.w, value.w, read_7.w);
          acc_local_ptr[3] = __4;
          float4 value_1 = weight_ptr[(at_ic_ky_kx_1 + 16)];
          float4 read_8 = patch_local_ptr[0];
          float4 read_9 = acc_local_ptr[0];
          float4 __5;
          float4 v__4 = make_float4((read_8).y, (read_8).y, (read_8).y, (read_8).y);
          __5.x = fma(v__4.x, value_1.x, read_9.x);
          __5.y = fma(v__4.y, value_1.y, read_9.y);
          __5.z = fma(v__4.z, value_1.z, read_9.z);
          __5.w = fma(v__4.w, value_1.w, read_9.w);
          acc_local_ptr[0] = __5;
          float4 read_10 = patch_local_ptr[1];
          float4 read_11 = acc_local_ptr[1];
          float4 __6;
          float4 v__5 = make_float4((read_10).y, (read_10).y, (read_10).y, (read_10).y);
          __6.x = fma(v__5.x, value_1.x, read_11.x);
          __6.y = fma(v__5.y, value_1.y, read_11.y);
          __6.z = fma(v__5.z, value_1.z, read_11.z);
          __6.w = fma(v__5.w, value_1.w, read_11.w);
          acc_local_ptr[1] = __6;
          float4 read_12 = patch_local_ptr[2];
          float4 read_13 = acc_local_ptr[2];
          float4 __7;
          float4 v__6 = make_float4((read_12).y, (read_12).y, (read_12).y, (read_12).y);
          __7.x = fma(v__6.x, value_1.x, read_13.x);
          __7.y = fma(v__6.y, value_1.y, read_13.y);
          __7.z = fma(v__6.z, value_1.z, read_13.z);
          __7.w = fma(v__6.w, value_1.w, read_13.w);
          acc_local_ptr[2] = __7;
          float4 read_14 = patch_local_ptr[3];
          float4 read_15 = acc_local_ptr[3];
          float4 __8;
          float4 v__7 = make_float4((read_14).y, (read_14).y, (read_14).y, (read_14).y);
          __8.x = fma(v__7.x, value_1.x, read_15.x);
          __8.y = fma(v__7.y, value_1.y, read_15.y);
          __8.z = fma(v__7.z, value_1.z, read_15.z);
          __8.w = fma(v__7.w, value_1.w, read_15.w);
          acc_local_ptr[3] = __8;
          float4 value_2 = weight_ptr[(at_ic_ky_kx_1 + 32)];
          float4 read_16 = patch_local_ptr[0];
          float4 read_17 = acc_local_ptr[0];
          float4 __9;
          float4 v__8 = make_float4((read_16).z, (read_16).z, (read_16).z, (read_16).z);
          __9.x = fma(v__8.x, value_2.x, read_17.x);
          __9.y = fma(v__8.y, value_2.y, read_17.y);
          __9.z = fma(v__8.z, value_2.z, read_17.z);
          __9.w = fma(v__8.w, value_2.w, read_17.w);
          acc_local_ptr[0] = __9;
          float4 read_18 = patch_local_ptr[1];
          float4 read_19 = acc_local_ptr[1];
          float4 __10;
          float4 v__9 = make_float4((read_18).z, (read_18).z, (read_18).z, (read_18).z);
          __10.x = fma(v__9.x, value_2.x, read_19.x);
          __10.y = fma(v__9.y, value_2.y, read_19.y);
          __10.z = fma(v__9.z, value_2.z, read_19.z);
          __10.w = fma(v__9.w, value_2.w, read_19.w);
          acc_local_ptr[1] = __10;
          float4 read_20 = patch_local_ptr[2];
          float4 read_21 = acc_local_ptr[2];
          float4 __11;
          float4 v__10 = make_float4((read_20).z, (read_20).z, (read_20).z, (read_20).z);
          __11.x = fma(v__10.x, value_2.x, read_21.x);
          __11.y = fma(v__10.y, value_2.y, read_21.y);
          __11.z = fma(v__10.z, value_2.z, read_21.z);
          __11.w = fma(v__10.w, value_2.w, read_21.w);
          acc_local_ptr[2] = __11;
          float4 read_22 = patch_local_ptr[3];
          float4 read_23 = acc_local_ptr[3];
          float4 __12;
          float4 v__11 = make_float4((read_22).z, (read_22).z, (read_22).z, (read_22).z);
          __12.x = fma(v__11.x, value_2.x, read_23.x);
          __12.y = fma(v__11.y, value_2.y, read_23.y);
          __12.z = fma(v__11.z, value_2.z, read_23.z);
          __12.w = fma(v__11.w, value_2.w, read_23.w);
          acc_local_ptr[3] = __12;
          float4 value_3 = weight_ptr[(at_ic_ky_kx_1 + 48)];
          float4 read_24 = patch_local_ptr[0];
          float4 read_25 = acc_local_ptr[0];
          float4 __13;
          float4 v__12 = make_float4((read_24).w, (read_24).w, (read_24).w, (read_24).w);
          __13.x = fma(v__12.x, value_3.x, read_25.x);
          __13.y = fma(v__12.y, value_3.y, read_25.y);
          __13.z = fma(v__12.z, value_3.z, read_25.z);
          __13.w = fma(v__12.w, value_3.w, read_25.w);
          acc_local_ptr[0] = __13;
          float4 read_26 = patch_local_ptr[1];
          float4 read_27 = acc_local_ptr[1];
          float4 __14;
          float4 v__13 = make_float4((read_26).w, (read_26).w, (read_26).w, (read_26).w);
          __14.x = fma(v__13.x, value_3.x, read_27.x);
          __14.y = fma(v__13.y, value_3.y, read_27.y);
          __14.z = fma(v__13.z, value_3.z, read_27.z);
          __14.w = fma(v__13.w, value_3.w, read_27.w);
          acc_local_ptr[1] = __14;
          float4 read_28 = patch_local_ptr[2];
          float4 read_29 = acc_local_ptr[2];
          float4 __15;
          float4 v__14 = make_float4((read_28).w, (read_28).w, (read_28).w, (read_28).w);
          __15.x = fma(v__14.x, value_3.x, read_29.x);
          __15.y = fma(v__14.y, value_3.y, read_29.y);
          __15.z = fma(v__14.z, value_3.z, read_29.z);
          __15.w = fma(v__14.w, value_3.w, read_29.w);
          acc_local_ptr[2] = __15;
          float4 read_30 = patch_local_ptr[3];
          float4 read_31 = acc_local_ptr[3];
          float4 __16;
          float4 v__15 = make_float4((read_30).w, (read_30).w, (read_30).w, (read_30).w);
          __16.x = fma(v__15.x, value_3.x, read_31.x);
          __16.y = fma(v__15.y, value_3.y, read_31.y);
          __16.z = fma(v__15.z, value_3.z, read_31.z);
          __16.w = fma(v__15.w, value_3.w, read_31.w);
          acc_local_ptr[3] = __16;
        }
      }
    }
    float4 value_4 = bias_ptr[at_4];
    float4 read_32 = acc_local_ptr[0];
    float4 __17;
      __17.x = (read_32.x+value_4.x);
      __17.y = (read_32.y+value_4.y);
      __17.z = (read_32.z+value_4.z);
      __17.w = (read_32.w+value_4.w);
    float4 operand = __17;
    float4 __18;
    ushort4 __19;
      float4 v__16 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __19.x = (operand.x<v__16.x);
      __19.y = (operand.y<v__16.y);
      __19.z = (operand.z<v__16.z);
      __19.w = (operand.w<v__16.w);
    float4 v__17 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __18.x = (bool(__19.x)?v__17.x:operand.x);
    __18.y = (bool(__19.y)?v__17.y:operand.y);
    __18.z = (bool(__19.z)?v__17.z:operand.z);
    __18.w = (bool(__19.w)?v__17.w:operand.w);
    relu_ptr[at_5] = __18;
    float4 read_33 = acc_local_ptr[1];
    float4 __20;
      __20.x = (read_33.x+value_4.x);
      __20.y = (read_33.y+value_4.y);
      __20.z = (read_33.z+value_4.z);
      __20.w = (read_33.w+value_4.w);
    float4 operand_1 = __20;
    float4 __21;
    ushort4 __22;
      float4 v__18 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __22.x = (operand_1.x<v__18.x);
      __22.y = (operand_1.y<v__18.y);
      __22.z = (operand_1.z<v__18.z);
      __22.w = (operand_1.w<v__18.w);
    float4 v__19 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __21.x = (bool(__22.x)?v__19.x:operand_1.x);
    __21.y = (bool(__22.y)?v__19.y:operand_1.y);
    __21.z = (bool(__22.z)?v__19.z:operand_1.z);
    __21.w = (bool(__22.w)?v__19.w:operand_1.w);
    relu_ptr[(at_5 + 1)] = __21;
    float4 read_34 = acc_local_ptr[2];
    float4 __23;
      __23.x = (read_34.x+value_4.x);
      __23.y = (read_34.y+value_4.y);
      __23.z = (read_34.z+value_4.z);
      __23.w = (read_34.w+value_4.w);
    float4 operand_2 = __23;
    float4 __24;
    ushort4 __25;
      float4 v__20 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __25.x = (operand_2.x<v__20.x);
      __25.y = (operand_2.y<v__20.y);
      __25.z = (operand_2.z<v__20.z);
      __25.w = (operand_2.w<v__20.w);
    float4 v__21 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __24.x = (bool(__25.x)?v__21.x:operand_2.x);
    __24.y = (bool(__25.y)?v__21.y:operand_2.y);
    __24.z = (bool(__25.z)?v__21.z:operand_2.z);
    __24.w = (bool(__25.w)?v__21.w:operand_2.w);
    relu_ptr[(at_5 + 2)] = __24;
    float4 read_35 = acc_local_ptr[3];
    float4 __26;
      __26.x = (read_35.x+value_4.x);
      __26.y = (read_35.y+value_4.y);
      __26.z = (read_35.z+value_4.z);
      __26.w = (read_35.w+value_4.w);
    float4 operand_3 = __26;
    float4 __27;
    ushort4 __28;
      float4 v__22 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __28.x = (operand_3.x<v__22.x);
      __28.y = (operand_3.y<v__22.y);
      __28.z = (operand_3.z<v__22.z);
      __28.w = (operand_3.w<v__22.w);
    float4 v__23 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __27.x = (bool(__28.x)?v__23.x:operand_3.x);
    __27.y = (bool(__28.y)?v__23.y:operand_3.y);
    __27.z = (bool(__28.z)?v__23.z:operand_3.z);
    __27.w = (bool(__28.w)?v__23.w:operand_3.w);
    relu_ptr[(at_5 + 3)] = __27;
  }
}

