extern "C" __global__ void __launch_bounds__(16) main_kernel(float4* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float4* __restrict__ relu_ptr, float4* __restrict__ weight_ptr);
extern "C" __global__ void __launch_bounds__(16) main_kernel(float4* __restrict__ bias_ptr, float4* __restrict__ data_ptr, float4* __restrict__ relu_ptr, float4* __restrict__ weight_ptr) {
  int group_y = ((int)blockIdx.y);
  alignas(64) float4 acc_local_ptr[4];
  alignas(64) float4 patch_local_ptr[4];
  int group_x = ((int)blockIdx.x);
  int local_y = ((int)threadIdx.y);
  int local_x = ((int)threadIdx.x);
  acc_local_ptr[0] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[1] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[2] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[3] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = (group_x >> 1);
  int at_1 = (group_x & 1);
  int at_2 = ((local_x * 4) + (at_1 * 16));
  int at_3 = min(at_2, 27);
  int at_4 = (at * 28);
  int at_5 = ((at_4 + at_3) - 29);
  int at_6 = min((at_2 + 1), 27);
  int at_7 = ((at_4 + at_6) - 29);
  int at_8 = min((at_2 + 2), 27);
  int at_9 = ((at_4 + at_8) - 29);
  int at_10 = min((at_2 + 3), 27);
  int at_11 = ((at_4 + at_10) - 29);
  int at_12 = ((group_y * 4) + local_y);
  for (int ax4 = 0; ax4 < 8; ++ax4) {
    int at_13 = (ax4 * 784);
    int at_14 = (at_5 + at_13);
    int at_15 = (at_7 + at_13);
    int at_16 = (at_9 + at_13);
    int at_17 = (at_11 + at_13);
    int at_18 = (at_12 + (ax4 * 576));
    for (int ax5 = 0; ax5 < 3; ++ax5) {
      int at_19 = (at + ax5);
      bool inside = ((at_19 >= 1) && (at_19 < 29));
      int at_20 = (ax5 * 28);
      int at_21 = (at_14 + at_20);
      int at_22 = (at_15 + at_20);
      int at_23 = (at_16 + at_20);
      int at_24 = (at_17 + at_20);
      int at_25 = (at_18 + (ax5 * 192));
      for (int ax6 = 0; ax6 < 3; ++ax6) {
        int at_26 = (at_3 + ax6);
        float4 condval;
        if (inside && ((at_26 >= 1) && (at_26 < 29))) {
          condval = data_ptr[(at_21 + ax6)];
        } else {
          condval = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
        }
        patch_local_ptr[0] = condval;
        float4 condval_1;
        if (inside && ((at_6 + ax6) < 29)) {
          condval_1 = data_ptr[(at_22 + ax6)];
        } else {
          condval_1 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
        }
        patch_local_ptr[1] = condval_1;
        float4 condval_2;
        if (inside && ((at_8 + ax6) < 29)) {
          condval_2 = data_ptr[(at_23 + ax6)];
        } else {
          condval_2 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
        }
        patch_local_ptr[2] = condval_2;
        float4 condval_3;
        if (inside && ((at_10 + ax6) < 29)) {
          condval_3 = data_ptr[(at_24 + ax6)];
        } else {
          condval_3 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
        }
        patch_local_ptr[3] = condval_3;
        int at_27 = (at_25 + (ax6 * 64));
        float4 value = weight_ptr[at_27];
        float4 __1;
        float4 v_ = make_float4((patch_local_ptr[0]).x, (patch_local_ptr[0]).x, (patch_local_ptr[0]).x, (patch_local_ptr[0]).x);
        float4 v__1 = acc_local_ptr[0];
        __1.x = fma(v_.x, value.x, v__1.x);
        __1.y = fma(v_.y, value.y, v__1.y);
        __1.z = fma(v_.z, value.z, v__1.z);
        __1.w = fma(v_.w, value.w, v__1.w);
        acc_local_ptr[0] = __1;
        float4 __2;
        float4 v__2 = make_float4((patch_local_ptr[1]).x, (patch_local_ptr[1]).x, (patch_local_ptr[1]).x, (patch_local_ptr[1]).x);
        float4 v__3 = acc_local_ptr[1];
        __2.x = fma(v__2.x, value.x, v__3.x);
        __2.y = fma(v__2.y, value.y, v__3.y);
        __2.z = fma(v__2.z, value.z, v__3.z);
        __2.w = fma(v__2.w, value.w, v__3.w);
        acc_local_ptr[1] = __2;
        float4 __3;
        float4 v__4 = make_float4((patch_local_ptr[2]).x, (patch_local_ptr[2]).x, (patch_local_ptr[2]).x, (patch_local_ptr[2]).x);
        float4 v__5 = acc_local_ptr[2];
        __3.x = fma(v__4.x, value.x, v__5.x);
        __3.y = fma(v__4.y, value.y, v__5.y);
        __3.z = fma(v__4.z, value.z, v__5.z);
        __3.w = fma(v__4.w, value.w, v__5.w);
        acc_local_ptr[2] = __3;
        float4 __4;
        float4 v__6 = make_float4((patch_local_ptr[3]).x, (patch_local_ptr[3]).x, (patch_local_ptr[3]).x, (patch_local_ptr[3]).x);
        float4 v__7 = acc_local_ptr[3];
        __4.x = fma(v__6.x, value.x, v__7.x);
        __4.y = fma(v__6.y, value.y, v__7.y);
        __4.z = fma(v__6.z, value.z, v__7.z);
        __4.w = fma(v__6.w, value.w, v__7.w);
        acc_local_ptr[3] = __4;
        float4 value_1 = weight_ptr[(at_27 + 16)];
        float4 __5;
        float4 v__8 = make_float4((patch_local_ptr[0]).y, (patch_local_ptr[0]).y, (patch_local_ptr[0]).y, (patch_local_ptr[0]).y);
        float4 v__9 = acc_local_ptr[0];
        __5.x = fma(v__8.x, value_1.x, v__9.x);
        __5.y = fma(v__8.y, value_1.y, v__9.y);
        __5.z = fma(v__8.z, value_1.z, v__9.z);
        __5.w = fma(v__8.w, value_1.w, v__9.w);
        acc_local_ptr[0] = __5;
        float4 __6;
        float4 v__10 = make_float4((patch_local_ptr[1]).y, (patch_local_ptr[1]).y, (patch_local_ptr[1]).y, (patch_local_ptr[1]).y);
        float4 v__11 = acc_local_ptr[1];
        __6.x = fma(v__10.x, value_1.x, v__11.x);
        __6.y = fma(v__10.y, value_1.y, v__11.y);
        __6.z = fma(v__10.z, value_1.z, v__11.z);
        __6.w = fma(v__10.w, value_1.w, v__11.w);
        acc_local_ptr[1] = __6;
        float4 __7;
        float4 v__12 = make_float4((patch_local_ptr[2]).y, (patch_local_ptr[2]).y, (patch_local_ptr[2]).y, (patch_local_ptr[2]).y);
        float4 v__13 = acc_local_ptr[2];
        __7.x = fma(v__12.x, value_1.x, v__13.x);
        __7.y = fma(v__12.y, value_1.y, v__13.y);
        __7.z = fma(v__12.z, value_1.z, v__13.z);
        __7.w = fma(v__12.w, value_1.w, v__13.w);
        acc_local_ptr[2] = __7;
        float4 __8;
        float4 v__14 = make_float4((patch_local_ptr[3]).y, (patch_local_ptr[3]).y, (patch_local_ptr[3]).y, (patch_local_ptr[3]).y);
        float4 v__15 = acc_local_ptr[3];
        __8.x = fma(v__14.x, value_1.x, v__15.x);
        __8.y = fma(v__14.y, value_1.y, v__15.y);
        __8.z = fma(v__14.z, value_1.z, v__15.z);
        __8.w = fma(v__14.w, value_1.w, v__15.w);
        acc_local_ptr[3] = __8;
        float4 value_2 = weight_ptr[(at_27 + 32)];
        float4 __9;
        float4 v__16 = make_float4((patch_local_ptr[0]).z, (patch_local_ptr[0]).z, (patch_local_ptr[0]).z, (patch_local_ptr[0]).z);
        float4 v__17 = acc_local_ptr[0];
        __9.x = fma(v__16.x, value_2.x, v__17.x);
        __9.y = fma(v__16.y, value_2.y, v__17.y);
        __9.z = fma(v__16.z, value_2.z, v__17.z);
        __9.w = fma(v__16.w, value_2.w, v__17.w);
        acc_local_ptr[0] = __9;
        float4 __10;
        float4 v__18 = make_float4((patch_local_ptr[1]).z, (patch_local_ptr[1]).z, (patch_local_ptr[1]).z, (patch_local_ptr[1]).z);
        float4 v__19 = acc_local_ptr[1];
        __10.x = fma(v__18.x, value_2.x, v__19.x);
        __10.y = fma(v__18.y, value_2.y, v__19.y);
        __10.z = fma(v__18.z, value_2.z, v__19.z);
        __10.w = fma(v__18.w, value_2.w, v__19.w);
        acc_local_ptr[1] = __10;
        float4 __11;
        float4 v__20 = make_float4((patch_local_ptr[2]).z, (patch_local_ptr[2]).z, (patch_local_ptr[2]).z, (patch_local_ptr[2]).z);
        float4 v__21 = acc_local_ptr[2];
        __11.x = fma(v__20.x, value_2.x, v__21.x);
        __11.y = fma(v__20.y, value_2.y, v__21.y);
        __11.z = fma(v__20.z, value_2.z, v__21.z);
        __11.w = fma(v__20.w, value_2.w, v__21.w);
        acc_local_ptr[2] = __11;
        float4 __12;
        float4 v__22 = make_float4((patch_local_ptr[3]).z, (patch_local_ptr[3]).z, (patch_local_ptr[3]).z, (patch_local_ptr[3]).z);
        float4 v__23 = acc_local_ptr[3];
        __12.x = fma(v__22.x, value_2.x, v__23.x);
        __12.y = fma(v__22.y, value_2.y, v__23.y);
        __12.z = fma(v__22.z, value_2.z, v__23.z);
        __12.w = fma(v__22.w, value_2.w, v__23.w);
        acc_local_ptr[3] = __12;
        float4 value_3 = weight_ptr[(at_27 + 48)];
        float4 __13;
        float4 v__24 = make_float4((patch_local_ptr[0]).w, (patch_local_ptr[0]).w, (patch_local_ptr[0]).w, (patch_local_ptr[0]).w);
        float4 v__25 = acc_local_ptr[0];
        __13.x = fma(v__24.x, value_3.x, v__25.x);
        __13.y = fma(v__24.y, value_3.y, v__25.y);
        __13.z = fma(v__24.z, value_3.z, v__25.z);
        __13.w = fma(v__24.w, value_3.w, v__25.w);
        acc_local_ptr[0] = __13;
        float4 __14;
        float4 v__26 = make_float4((patch_local_ptr[1]).w, (patch_local_ptr[1]).w, (patch_local_ptr[1]).w, (patch_local_ptr[1]).w);
        float4 v__27 = acc_local_ptr[1];
        __14.x = fma(v__26.x, value_3.x, v__27.x);
        __14.y = fma(v__26.y, value_3.y, v__27.y);
        __14.z = fma(v__26.z, value_3.z, v__27.z);
        __14.w = fma(v__26.w, value_3.w, v__27.w);
        acc_local_ptr[1] = __14;
        float4 __15;
        float4 v__28 = make_float4((patch_local_ptr[2]).w, (patch_local_ptr[2]).w, (patch_local_ptr[2]).w, (patch_local_ptr[2]).w);
        float4 v__29 = acc_local_ptr[2];
        __15.x = fma(v__28.x, value_3.x, v__29.x);
        __15.y = fma(v__28.y, value_3.y, v__29.y);
        __15.z = fma(v__28.z, value_3.z, v__29.z);
        __15.w = fma(v__28.w, value_3.w, v__29.w);
        acc_local_ptr[2] = __15;
        float4 __16;
        float4 v__30 = make_float4((patch_local_ptr[3]).w, (patch_local_ptr[3]).w, (patch_local_ptr[3]).w, (patch_local_ptr[3]).w);
        float4 v__31 = acc_local_ptr[3];
        __16.x = fma(v__30.x, value_3.x, v__31.x);
        __16.y = fma(v__30.y, value_3.y, v__31.y);
        __16.z = fma(v__30.z, value_3.z, v__31.z);
        __16.w = fma(v__30.w, value_3.w, v__31.w);
        acc_local_ptr[3] = __16;
      }
    }
  }
  bool inside_1 = ((local_x + (at_1 * 4)) < 7);
  int at_28 = (((at_2 + (group_y * 3136)) + (local_y * 784)) + at_4);
  if (inside_1) {
    float4 __17;
      float4 __18;
        float4 v__32 = acc_local_ptr[0];
        float4 v__33 = bias_ptr[at_12];
        __18.x = (v__32.x+v__33.x);
        __18.y = (v__32.y+v__33.y);
        __18.z = (v__32.z+v__33.z);
        __18.w = (v__32.w+v__33.w);
      float4 v__34 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __17.x = max(__18.x, v__34.x);
      __17.y = max(__18.y, v__34.y);
      __17.z = max(__18.z, v__34.z);
      __17.w = max(__18.w, v__34.w);
    relu_ptr[at_28] = __17;
  }
  if (inside_1) {
    float4 __19;
      float4 __20;
        float4 v__35 = acc_local_ptr[1];
        float4 v__36 = bias_ptr[at_12];
        __20.x = (v__35.x+v__36.x);
        __20.y = (v__35.y+v__36.y);
        __20.z = (v__35.z+v__36.z);
        __20.w = (v__35.w+v__36.w);
      float4 v__37 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __19.x = max(__20.x, v__37.x);
      __19.y = max(__20.y, v__37.y);
      __19.z = max(__20.z, v__37.z);
      __19.w = max(__20.w, v__37.w);
    relu_ptr[(at_28 + 1)] = __19;
  }
  if (inside_1) {
    float4 __21;
      float4 __22;
        float4 v__38 = acc_local_ptr[2];
        float4 v__39 = bias_ptr[at_12];
        __22.x = (v__38.x+v__39.x);
        __22.y = (v__38.y+v__39.y);
        __22.z = (v__38.z+v__39.z);
        __22.w = (v__38.w+v__39.w);
      float4 v__40 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __21.x = max(__22.x, v__40.x);
      __21.y = max(__22.y, v__40.y);
      __21.z = max(__22.z, v__40.z);
      __21.w = max(__22.w, v__40.w);
    relu_ptr[(at_28 + 2)] = __21;
  }
  if (inside_1) {
    float4 __23;
      float4 __24;
        float4 v__41 = acc_local_ptr[3];
        float4 v__42 = bias_ptr[at_12];
        __24.x = (v__41.x+v__42.x);
        __24.y = (v__41.y+v__42.y);
        __24.z = (v__41.z+v__42.z);
        __24.w = (v__41.w+v__42.w);
      float4 v__43 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __23.x = max(__24.x, v__43.x);
      __23.y = max(__24.y, v__43.y);
      __23.z = max(__24.z, v__43.z);
      __23.w = max(__24.w, v__43.w);
    relu_ptr[(at_28 + 3)] = __23;
  }
}

