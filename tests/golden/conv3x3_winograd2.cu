extern "C" __global__ void __launch_bounds__(64) main_kernel(float4* __restrict__ data_ptr, float4* __restrict__ transformed_ptr);
extern "C" __global__ void __launch_bounds__(16) main_kernel_1(float4* __restrict__ products_ptr, float4* __restrict__ transformed_ptr, float4* __restrict__ weight_ptr);
extern "C" __global__ void __launch_bounds__(64) main_kernel_2(float4* __restrict__ bias_ptr, float4* __restrict__ products_ptr, float4* __restrict__ relu_ptr);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float4* __restrict__ data_ptr, float4* __restrict__ transformed_ptr) {
  int group_x = ((int)blockIdx.x);
  alignas(64) float4 data_rows_local_ptr[16];
  alignas(64) float4 data_tile_local_ptr[4];
  int local_x = ((int)threadIdx.x);
  int at = ((group_x * 64) + local_x);
  int at_1 = min(at, 391);
  int at_2 = (at_1 - (((at_1 * 335) >> 14) * 49));
  int at_3 = ((at_1 * 293) >> 11);
  int at_4 = (at_1 - (at_3 * 7));
  int at_5 = (((at_1 * 2) + (at_3 * 14)) - 15);
  float4 condval;
  if ((at_2 >= 7) && (at_4 >= 1)) {
    condval = data_ptr[at_5];
  } else {
    condval = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[0] = condval;
  bool inside = (at_4 >= 1);
  float4 condval_1;
  if (inside) {
    condval_1 = data_ptr[(at_5 + 14)];
  } else {
    condval_1 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[1] = condval_1;
  float4 condval_2;
  if (inside) {
    condval_2 = data_ptr[(at_5 + 28)];
  } else {
    condval_2 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[2] = condval_2;
  float4 condval_3;
  if ((at_2 < 42) && (at_4 >= 1)) {
    condval_3 = data_ptr[(at_5 + 42)];
  } else {
    condval_3 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[3] = condval_3;
  float4 read = data_tile_local_ptr[0];
  float4 read_1 = data_tile_local_ptr[2];
  float4 __1;
    __1.x = (read.x-read_1.x);
    __1.y = (read.y-read_1.y);
    __1.z = (read.z-read_1.z);
    __1.w = (read.w-read_1.w);
  data_rows_local_ptr[0] = __1;
  float4 read_2 = data_tile_local_ptr[1];
  float4 read_3 = data_tile_local_ptr[2];
  float4 __2;
    __2.x = (read_2.x+read_3.x);
    __2.y = (read_2.y+read_3.y);
    __2.z = (read_2.z+read_3.z);
    __2.w = (read_2.w+read_3.w);
  data_rows_local_ptr[4] = __2;
  float4 read_4 = data_tile_local_ptr[2];
  float4 read_5 = data_tile_local_ptr[1];
  float4 __3;
    __3.x = (read_4.x-read_5.x);
    __3.y = (read_4.y-read_5.y);
    __3.z = (read_4.z-read_5.z);
    __3.w = (read_4.w-read_5.w);
  data_rows_local_ptr[8] = __3;
  float4 read_6 = data_tile_local_ptr[1];
  float4 read_7 = data_tile_local_ptr[3];
  float4 __4;
    __4.x = (read_6.x-read_7.x);
    __4.y = (read_6.y-read_7.y);
    __4.z = (read_6.z-read_7.z);
    __4.w = (read_6.w-read_7.w);
  data_rows_local_ptr[12] = __4;
  bool inside_1 = (at_2 >= 7);
  float4 condval_4;
  if (inside_1) {
    condval_4 = data_ptr[(at_5 + 1)];
  } else {
    condval_4 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[0] = condval_4;
  data_tile_local_ptr[1] = data_ptr[(at_5 + 15)];
  data_tile_local_ptr[2] = data_ptr[(at_5 + 29)];
  bool inside_2 = (at_2 < 42);
  float4 condval_5;
  if (inside_2) {
    condval_5 = data_ptr[(at_5 + 43)];
  } else {
    condval_5 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[3] = condval_5;
  float4 read_8 = data_tile_local_ptr[0];
  float4 read_9 = data_tile_local_ptr[2];
  float4 __5;
    __5.x = (read_8.x-read_9.x);
    __5.y = (read_8.y-read_9.y);
    __5.z = (read_8.z-read_9.z);
    __5.w = (read_8.w-read_9.w);
  data_rows_local_ptr[1] = __5;
  float4 read_10 = data_tile_local_ptr[1];
  float4 read_11 = data_tile_local_ptr[2];
  float4 __6;
    __6.x = (read_10.x+read_11.x);
    __6.y = (read_10.y+read_11.y);
    __6.z = (read_10.z+read_11.z);
    __6.w = (read_10.w+read_11.w);
  data_rows_local_ptr[5] = __6;
  float4 read_12 = data_tile_local_ptr[2];
  float4 read_13 = data_tile_local_ptr[1];
  float4 __7;
    __7.x = (read_12.x-read_13.x);
    __7.y = (read_12.y-read_13.y);
    __7.z = (read_12.z-read_13.z);
    __7.w = (read_12.w-read_13.w);
  data_rows_local_ptr[9] = __7;
  float4 read_14 = data_tile_local_ptr[1];
  float4 read_15 = data_tile_local_ptr[3];
  float4 __8;
    __8.x = (read_14.x-read_15.x);
    __8.y = (read_14.y-read_15.y);
    __8.z = (read_14.z-read_15.z);
    __8.w = (read_14.w-read_15.w);
  data_rows_local_ptr[13] = __8;
  float4 condval_6;
  if (inside_1) {
    condval_6 = data_ptr[(at_5 + 2)];
  } else {
    condval_6 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[0] = condval_6;
  data_tile_local_ptr[1] = data_ptr[(at_5 + 16)];
  data_tile_local_ptr[2] = data_ptr[(at_5 + 30)];
  float4 condval_7;
  if (inside_2) {
    condval_7 = data_ptr[(at_5 + 44)];
  } else {
    condval_7 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[3] = condval_7;
  float4 read_16 = data_tile_local_ptr[0];
  float4 read_17 = data_tile_local_ptr[2];
  float4 __9;
    __9.x = (read_16.x-read_17.x);
    __9.y = (read_16.y-read_17.y);
    __9.z = (read_16.z-read_17.z);
    __9.w = (read_16.w-read_17.w);
  data_rows_local_ptr[2] = __9;
  float4 read_18 = data_tile_local_ptr[1];
  float4 read_19 = data_tile_local_ptr[2];
  float4 __10;
    __10.x = (read_18.x+read_19.x);
    __10.y = (read_18.y+read_19.y);
    __10.z = (read_18.z+read_19.z);
    __10.w = (read_18.w+read_19.w);
  data_rows_local_ptr[6] = __10;
  float4 read_20 = data_tile_local_ptr[2];
  float4 read_21 = data_tile_local_ptr[1];
  float4 __11;
    __11.x = (read_20.x-read_21.x);
    __11.y = (read_20.y-read_21.y);
    __11.z = (read_20.z-read_21.z);
    __11.w = (read_20.w-read_21.w);
  data_rows_local_ptr[10] = __11;
  float4 read_22 = data_tile_local_ptr[1];
  float4 read_23 = data_tile_local_ptr[3];
  float4 __12;
    __12.x = (read_22.x-read_23.x);
    __12.y = (read_22.y-read_23.y);
    __12.z = (read_22.z-read_23.z);
    __12.w = (read_22.w-read_23.w);
  data_rows_local_ptr[14] = __12;
  float4 condval_8;
  if ((at_2 >= 7) && (at_4 < 6)) {
    condval_8 = data_ptr[(at_5 + 3)];
  } else {
    condval_8 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[0] = condval_8;
  bool inside_3 = (at_4 < 6);
  float4 condval_9;
  if (inside_3) {
    condval_9 = data_ptr[(at_5 + 17)];
  } else {
    condval_9 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[1] = condval_9;
  float4 condval_10;
  if (inside_3) {
    condval_10 = data_ptr[(at_5 + 31)];
  } else {
    condval_10 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[2] = condval_10;
  float4 condval_11;
  if ((at_2 < 42) && (at_4 < 6)) {
    condval_11 = data_ptr[(at_5 + 45)];
  } else {
    condval_11 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  }
  data_tile_local_ptr[3] = condval_11;
  float4 read_24 = data_tile_local_ptr[0];
  float4 read_25 = data_tile_local_ptr[2];
  float4 __13;
    __13.x = (read_24.x-read_25.x);
    __13.y = (read_24.y-read_25.y);
    __13.z = (read_24.z-read_25.z);
    __13.w = (read_24.w-read_25.w);
  data_rows_local_ptr[3] = __13;
  float4 read_26 = data_tile_local_ptr[1];
  float4 read_27 = data_tile_local_ptr[2];
  float4 __14;
    __14.x = (read_26.x+read_27.x);
    __14.y = (read_26.y+read_27.y);
    __14.z = (read_26.z+read_27.z);
    __14.w = (read_26.w+read_27.w);
  data_rows_local_ptr[7] = __14;
  float4 read_28 = data_tile_local_ptr[2];
  float4 read_29 = data_tile_local_ptr[1];
  float4 __15;
    __15.x = (read_28.x-read_29.x);
    __15.y = (read_28.y-read_29.y);
    __15.z = (read_28.z-read_29.z);
    __15.w = (read_28.w-read_29.w);
  data_rows_local_ptr[11] = __15;
  float4 read_30 = data_tile_local_ptr[1];
  float4 read_31 = data_tile_local_ptr[3];
  float4 __16;
    __16.x = (read_30.x-read_31.x);
    __16.y = (read_30.y-read_31.y);
    __16.z = (read_30.z-read_31.z);
    __16.w = (read_30.w-read_31.w);
  data_rows_local_ptr[15] = __16;
  bool inside_4 = (((group_x * 8) + (local_x >> 3)) < 49);
  if (inside_4) {
    float4 read_32 = data_rows_local_ptr[0];
    float4 read_33 = data_rows_local_ptr[2];
    float4 __17;
      __17.x = (read_32.x-read_33.x);
      __17.y = (read_32.y-read_33.y);
      __17.z = (read_32.z-read_33.z);
      __17.w = (read_32.w-read_33.w);
    transformed_ptr[at] = __17;
  }
  if (inside_4) {
    float4 read_34 = data_rows_local_ptr[1];
    float4 read_35 = data_rows_local_ptr[2];
    float4 __18;
      __18.x = (read_34.x+read_35.x);
      __18.y = (read_34.y+read_35.y);
      __18.z = (read_34.z+read_35.z);
      __18.w = (read_34.w+read_35.w);
    transformed_ptr[(at + 392)] = __18;
  }
  if (inside_4) {
    float4 read_36 = data_rows_local_ptr[2];
    float4 read_37 = data_rows_local_ptr[1];
    float4 __19;
      __19.x = (read_36.x-read_37.x);
      __19.y = (read_36.y-read_37.y);
      __19.z = (read_36.z-read_37.z);
      __19.w = (read_36.w-read_37.w);
    transformed_ptr[(at + 784)] = __19;
  }
  if (inside_4) {
    float4 read_38 = data_rows_local_ptr[1];
    float4 read_39 = data_rows_local_ptr[3];
    float4 __20;
      __20.x = (read_38.x-read_39.x);
      __20.y = (read_38.y-read_39.y);
      __20.z = (read_38.z-read_39.z);
      __20.w = (read_38.w-read_39.w);
    transformed_ptr[(at + 1176)] = __20;
  }
  if (inside_4) {
    float4 read_40 = data_rows_local_ptr[4];
    float4 read_41 = data_rows_local_ptr[6];
    float4 __21;
      __21.x = (read_40.x-read_41.x);
      __21.y = (read_40.y-read_41.y);
      __21.z = (read_40.z-read_41.z);
      __21.w = (read_40.w-read_41.w);
    transformed_ptr[(at + 1568)] = __21;
  }
  if (inside_4) {
    float4 read_42 = data_rows_local_ptr[5];
    float4 read_43 = data_rows_local_ptr[6];
    float4 __22;
      __22.x = (read_42.x+read_43.x);
      __22.y = (read_42.y+read_43.y);
      __22.z = (read_42.z+read_43.z);
      __22.w = (read_42.w+read_43.w);
    transformed_ptr[(at + 1960)] = __22;
  }
  if (inside_4) {
    float4 read_44 = data_rows_local_ptr[6];
    float4 read_45 = data_rows_local_ptr[5];
    float4 __23;
      __23.x = (read_44.x-read_45.x);
      __23.y = (read_44.y-read_45.y);
      __23.z = (read_44.z-read_45.z);
      __23.w = (read_44.w-read_45.w);
    transformed_ptr[(at + 2352)] = __23;
  }
  if (inside_4) {
    float4 read_46 = data_rows_local_ptr[5];
    float4 read_47 = data_rows_local_ptr[7];
    float4 __24;
      __24.x = (read_46.x-read_47.x);
      __24.y = (read_46.y-read_47.y);
      __24.z = (read_46.z-read_47.z);
      __24.w = (read_46.w-read_47.w);
    transformed_ptr[(at + 2744)] = __24;
  }
  if (inside_4) {
    float4 read_48 = data_rows_local_ptr[8];
    float4 read_49 = data_rows_local_ptr[10];
    float4 __25;
      __25.x = (read_48.x-read_49.x);
      __25.y = (read_48.y-read_49.y);
      __25.z = (read_48.z-read_49.z);
      __25.w = (read_48.w-read_49.w);
    transformed_ptr[(at + 3136)] = __25;
  }
  if (inside_4) {
    float4 read_50 = data_rows_local_ptr[9];
    float4 read_51 = data_rows_local_ptr[10];
    float4 __26;
      __26.x = (read_50.x+read_51.x);
      __26.y = (read_50.y+read_51.y);
      __26.z = (read_50.z+read_51.z);
      __26.w = (read_50.w+read_51.w);
    transformed_ptr[(at + 3528)] = __26;
  }
  if (inside_4) {
    float4 read_52 = data_rows_local_ptr[10];
    float4 read_53 = data_rows_local_ptr[9];
    float4 __27;
      __27.x = (read_52.x-read_53.x);
      __27.y = (read_52.y-read_53.y);
      __27.z = (read_52.z-read_53.z);
      __27.w = (read_52.w-read_53.w);
    transformed_ptr[(at + 3920)] = __27;
  }
  if (inside_4) {
    float4 read_54 = data_rows_local_ptr[9];
    float4 read_55 = data_rows_local_ptr[11];
    float4 __28;
      __28.x = (read_54.x-read_55.x);
      __28.y = (read_54.y-read_55.y);
      __28.z = (read_54.z-read_55.z);
      __28.w = (read_54.w-read_55.w);
    transformed_ptr[(at + 4312)] = __28;
  }
  if (inside_4) {
    float4 read_56 = data_rows_local_ptr[12];
    float4 read_57 = data_rows_local_ptr[14];
    float4 __29;
      __29.x = (read_56.x-read_57.x);
      __29.y = (read_56.y-read_57.y);
      __29.z = (read_56.z-read_57.z);
      __29.w = (read_56.w-read_57.w);
    transformed_ptr[(at + 4704)] = __29;
  }
  if (inside_4) {
    float4 read_58 = data_rows_local_ptr[13];
    float4 read_59 = data_rows_local_ptr[14];
    float4 __30;
      __30.x = (read_58.x+read_59.x);
      __30.y = (read_58.y+read_59.y);
      __30.z = (read_58.z+read_59.z);
      __30.w = (read_58.w+read_59.w);
    transformed_ptr[(at + 5096)] = __30;
  }
  if (inside_4) {
    float4 read_60 = data_rows_local_ptr[14];
    float4 read_61 = data_rows_local_ptr[13];
    float4 __31;
      __31.x = (read_60.x-read_61.x);
      __31.y = (read_60.y-read_61.y);
      __31.z = (read_60.z-read_61.z);
      __31.w = (read_60.w-read_61.w);
    transformed_ptr[(at + 5488)] = __31;
  }
  if (inside_4) {
    float4 read_62 = data_rows_local_ptr[13];
    float4 read_63 = data_rows_local_ptr[15];
    float4 __32;
      __32.x = (read_62.x-read_63.x);
      __32.y = (read_62.y-read_63.y);
      __32.z = (read_62.z-read_63.z);
      __32.w = (read_62.w-read_63.w);
    transformed_ptr[(at + 5880)] = __32;
  }
}

extern "C" __global__ void __launch_bounds__(16) main_kernel_1(float4* __restrict__ products_ptr, float4* __restrict__ transformed_ptr, float4* __restrict__ weight_ptr) {
  int group_y = ((int)blockIdx.y);
  alignas(64) float4 acc_local_ptr[4];
  alignas(64) float4 patch_local_ptr[4];
  int group_x = ((int)blockIdx.x);
  int local_x = ((int)threadIdx.x);
  int local_y = ((int)threadIdx.y);
  acc_local_ptr[0] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[1] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[2] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  acc_local_ptr[3] = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
  int at = (group_x >> 2);
  int at_1 = (group_x & 3);
  int at_2 = ((local_x * 4) + (at_1 * 16));
  int at_3 = (at * 392);
  int at_4 = (at_3 + min(at_2, 48));
  int at_5 = (at_3 + min((at_2 + 1), 48));
  int at_6 = (at_3 + min((at_2 + 2), 48));
  int at_7 = (at_3 + min((at_2 + 3), 48));
  int at_8 = (((group_y * 4) + local_y) + (at * 64));
  for (int ax6 = 0; ax6 < 8; ++ax6) {
    int at_9 = (ax6 * 49);
    patch_local_ptr[0] = transformed_ptr[(at_4 + at_9)];
    patch_local_ptr[1] = transformed_ptr[(at_5 + at_9)];
    patch_local_ptr[2] = transformed_ptr[(at_6 + at_9)];
    patch_local_ptr[3] = transformed_ptr[(at_7 + at_9)];
    int at_10 = (at_8 + (ax6 * 1024));
    float4 value = weight_ptr[at_10];
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
    float4 value_1 = weight_ptr[(at_10 + 16)];
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
    float4 value_2 = weight_ptr[(at_10 + 32)];
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
    float4 value_3 = weight_ptr[(at_10 + 48)];
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
  int at_11 = (((at_2 + (group_y * 196)) + (local_y * 49)) + (at * 784));
  if (at_2 < 49) {
    products_ptr[at_11] = acc_local_ptr[0];
  }
  if (at_1 < 3) {
    products_ptr[(at_11 + 1)] = acc_local_ptr[1];
  }
  if (at_2 < 47) {
    products_ptr[(at_11 + 2)] = acc_local_ptr[2];
  }
  if (((local_x * 2) + (at_1 * 8)) < 23) {
    products_ptr[(at_11 + 3)] = acc_local_ptr[3];
  }
}

extern "C" __global__ void __launch_bounds__(64) main_kernel_2(float4* __restrict__ bias_ptr, float4* __restrict__ products_ptr, float4* __restrict__ relu_ptr) {
  int group_x = ((int)blockIdx.x);
  alignas(64) float4 output_rows_local_ptr[8];
  alignas(64) float4 output_tile_local_ptr[2];
  int local_x = ((int)threadIdx.x);
  int at = ((group_x * 64) + local_x);
  int at_1 = min(at, 783);
  int at_2 = (at_1 + 3136);
  float4 value = products_ptr[at_2];
  float4 value_1 = products_ptr[(at_2 + 3136)];
  float4 __1;
    float4 __2;
      float4 v_ = products_ptr[at_1];
      __2.x = (v_.x+value.x);
      __2.y = (v_.y+value.y);
      __2.z = (v_.z+value.z);
      __2.w = (v_.w+value.w);
    __1.x = (__2.x+value_1.x);
    __1.y = (__2.y+value_1.y);
    __1.z = (__2.z+value_1.z);
    __1.w = (__2.w+value_1.w);
  output_rows_local_ptr[0] = __1;
  float4 __3;
    float4 __4;
      __4.x = (value.x-value_1.x);
      __4.y = (value.y-value_1.y);
      __4.z = (value.z-value_1.z);
      __4.w = (value.w-value_1.w);
    float4 v__1 = products_ptr[(at_2 + 6272)];
    __3.x = (__4.x-v__1.x);
    __3.y = (__4.y-v__1.y);
    __3.z = (__4.z-v__1.z);
    __3.w = (__4.w-v__1.w);
  output_rows_local_ptr[4] = __3;
  float4 value_2 = products_ptr[(at_2 + 784)];
  float4 value_3 = products_ptr[(at_2 + 3920)];
  float4 __5;
    float4 __6;
      float4 v__2 = products_ptr[(at_2 - 2352)];
      __6.x = (v__2.x+value_2.x);
      __6.y = (v__2.y+value_2.y);
      __6.z = (v__2.z+value_2.z);
      __6.w = (v__2.w+value_2.w);
    __5.x = (__6.x+value_3.x);
    __5.y = (__6.y+value_3.y);
    __5.z = (__6.z+value_3.z);
    __5.w = (__6.w+value_3.w);
  output_rows_local_ptr[1] = __5;
  float4 __7;
    float4 __8;
      __8.x = (value_2.x-value_3.x);
      __8.y = (value_2.y-value_3.y);
      __8.z = (value_2.z-value_3.z);
      __8.w = (value_2.w-value_3.w);
    float4 v__3 = products_ptr[(at_2 + 7056)];
    __7.x = (__8.x-v__3.x);
    __7.y = (__8.y-v__3.y);
    __7.z = (__8.z-v__3.z);
    __7.w = (__8.w-v__3.w);
  output_rows_local_ptr[5] = __7;
  float4 value_4 = products_ptr[(at_2 + 1568)];
  float4 value_5 = products_ptr[(at_2 + 4704)];
  float4 __9;
    float4 __10;
      float4 v__4 = products_ptr[(at_2 - 1568)];
      __10.x = (v__4.x+value_4.x);
      __10.y = (v__4.y+value_4.y);
      __10.z = (v__4.z+value_4.z);
      __10.w = (v__4.w+value_4.w);
    __9.x = (__10.x+value_5.x);
    __9.y = (__10.y+value_5.y);
    __9.z = (__10.z+value_5.z);
    __9.w = (__10.w+value_5.w);
  output_rows_local_ptr[2] = __9;
  float4 __11;
    float4 __12;
      __12.x = (value_4.x-value_5.x);
      __12.y = (value_4.y-value_5.y);
      __12.z = (value_4.z-value_5.z);
      __12.w = (value_4.w-value_5.w);
    float4 v__5 = products_ptr[(at_2 + 7840)];
    __11.x = (__12.x-v__5.x);
    __11.y = (__12.y-v__5.y);
    __11.z = (__12.z-v__5.z);
    __11.w = (__12.w-v__5.w);
  output_rows_local_ptr[6] = __11;
  float4 value_6 = products_ptr[(at_2 + 2352)];
  float4 value_7 = products_ptr[(at_2 + 5488)];
  float4 __13;
    float4 __14;
      float4 v__6 = products_ptr[(at_2 - 784)];
      __14.x = (v__6.x+value_6.x);
      __14.y = (v__6.y+value_6.y);
      __14.z = (v__6.z+value_6.z);
      __14.w = (v__6.w+value_6.w);
    __13.x = (__14.x+value_7.x);
    __13.y = (__14.y+value_7.y);
    __13.z = (__14.z+value_7.z);
    __13.w = (__14.w+value_7.w);
  output_rows_local_ptr[3] = __13;
  float4 __15;
    float4 __16;
      __16.x = (value_6.x-value_7.x);
      __16.y = (value_6.y-value_7.y);
      __16.z = (value_6.z-value_7.z);
      __16.w = (value_6.w-value_7.w);
    float4 v__7 = products_ptr[(at_2 + 8624)];
    __15.x = (__16.x-v__7.x);
    __15.y = (__16.y-v__7.y);
    __15.z = (__16.z-v__7.z);
    __15.w = (__16.w-v__7.w);
  output_rows_local_ptr[7] = __15;
  float4 read = output_rows_local_ptr[0];
  float4 read_1 = output_rows_local_ptr[1];
  float4 read_2 = output_rows_local_ptr[2];
  float4 __17;
    float4 __18;
      __18.x = (read.x+read_1.x);
      __18.y = (read.y+read_1.y);
      __18.z = (read.z+read_1.z);
      __18.w = (read.w+read_1.w);
    __17.x = (__18.x+read_2.x);
    __17.y = (__18.y+read_2.y);
    __17.z = (__18.z+read_2.z);
    __17.w = (__18.w+read_2.w);
  output_tile_local_ptr[0] = __17;
  float4 read_3 = output_rows_local_ptr[1];
  float4 read_4 = output_rows_local_ptr[2];
  float4 read_5 = output_rows_local_ptr[3];
  float4 __19;
    float4 __20;
      __20.x = (read_3.x-read_4.x);
      __20.y = (read_3.y-read_4.y);
      __20.z = (read_3.z-read_4.z);
      __20.w = (read_3.w-read_4.w);
    __19.x = (__20.x-read_5.x);
    __19.y = (__20.y-read_5.y);
    __19.z = (__20.z-read_5.z);
    __19.w = (__20.w-read_5.w);
  output_tile_local_ptr[1] = __19;
  bool inside = (((group_x * 4) + (local_x >> 4)) < 49);
  int at_3 = ((at * 669) >> 15);
  int at_4 = (((group_x * 128) + (local_x * 2)) + (((at * 1171) >> 13) * 14));
  if (inside) {
    float4 read_6 = output_tile_local_ptr[0];
    float4 __21;
      float4 v__8 = bias_ptr[at_3];
      __21.x = (read_6.x+v__8.x);
      __21.y = (read_6.y+v__8.y);
      __21.z = (read_6.z+v__8.z);
      __21.w = (read_6.w+v__8.w);
    float4 operand = __21;
    float4 __22;
    ushort4 __23;
      float4 v__9 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __23.x = (operand.x<v__9.x);
      __23.y = (operand.y<v__9.y);
      __23.z = (operand.z<v__9.z);
      __23.w = (operand.w<v__9.w);
    float4 v__10 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __22.x = (bool(__23.x)?v__10.x:operand.x);
    __22.y = (bool(__23.y)?v__10.y:operand.y);
    __22.z = (bool(__23.z)?v__10.z:operand.z);
    __22.w = (bool(__23.w)?v__10.w:operand.w);
    relu_ptr[at_4] = __22;
  }
  if (inside) {
    float4 read_7 = output_tile_local_ptr[1];
    float4 __24;
      float4 v__11 = bias_ptr[at_3];
      __24.x = (read_7.x+v__11.x);
      __24.y = (read_7.y+v__11.y);
      __24.z = (read_7.z+v__11.z);
      __24.w = (read_7.w+v__11.w);
    float4 operand_1 = __24;
    float4 __25;
    ushort4 __26;
      float4 v__12 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __26.x = (operand_1.x<v__12.x);
      __26.y = (operand_1.y<v__12.y);
      __26.z = (operand_1.z<v__12.z);
      __26.w = (operand_1.w<v__12.w);
    float4 v__13 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __25.x = (bool(__26.x)?v__13.x:operand_1.x);
    __25.y = (bool(__26.y)?v__13.y:operand_1.y);
    __25.z = (bool(__26.z)?v__13.z:operand_1.z);
    __25.w = (bool(__26.w)?v__13.w:operand_1.w);
    relu_ptr[(at_4 + 1)] = __25;
  }
  float4 read_8 = output_rows_local_ptr[4];
  float4 read_9 = output_rows_local_ptr[5];
  float4 read_10 = output_rows_local_ptr[6];
  float4 __27;
    float4 __28;
      __28.x = (read_8.x+read_9.x);
      __28.y = (read_8.y+read_9.y);
      __28.z = (read_8.z+read_9.z);
      __28.w = (read_8.w+read_9.w);
    __27.x = (__28.x+read_10.x);
    __27.y = (__28.y+read_10.y);
    __27.z = (__28.z+read_10.z);
    __27.w = (__28.w+read_10.w);
  output_tile_local_ptr[0] = __27;
  float4 read_11 = output_rows_local_ptr[5];
  float4 read_12 = output_rows_local_ptr[6];
  float4 read_13 = output_rows_local_ptr[7];
  float4 __29;
    float4 __30;
      __30.x = (read_11.x-read_12.x);
      __30.y = (read_11.y-read_12.y);
      __30.z = (read_11.z-read_12.z);
      __30.w = (read_11.w-read_12.w);
    __29.x = (__30.x-read_13.x);
    __29.y = (__30.y-read_13.y);
    __29.z = (__30.z-read_13.z);
    __29.w = (__30.w-read_13.w);
  output_tile_local_ptr[1] = __29;
  if (inside) {
    float4 read_14 = output_tile_local_ptr[0];
    float4 __31;
      float4 v__14 = bias_ptr[at_3];
      __31.x = (read_14.x+v__14.x);
      __31.y = (read_14.y+v__14.y);
      __31.z = (read_14.z+v__14.z);
      __31.w = (read_14.w+v__14.w);
    float4 operand_2 = __31;
    float4 __32;
    ushort4 __33;
      float4 v__15 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __33.x = (operand_2.x<v__15.x);
      __33.y = (operand_2.y<v__15.y);
      __33.z = (operand_2.z<v__15.z);
      __33.w = (operand_2.w<v__15.w);
    float4 v__16 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __32.x = (bool(__33.x)?v__16.x:operand_2.x);
    __32.y = (bool(__33.y)?v__16.y:operand_2.y);
    __32.z = (bool(__33.z)?v__16.z:operand_2.z);
    __32.w = (bool(__33.w)?v__16.w:operand_2.w);
    relu_ptr[(at_4 + 14)] = __32;
  }
  if (inside) {
    float4 read_15 = output_tile_local_ptr[1];
    float4 __34;
      float4 v__17 = bias_ptr[at_3];
      __34.x = (read_15.x+v__17.x);
      __34.y = (read_15.y+v__17.y);
      __34.z = (read_15.z+v__17.z);
      __34.w = (read_15.w+v__17.w);
    float4 operand_3 = __34;
    float4 __35;
    ushort4 __36;
      float4 v__18 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      __36.x = (operand_3.x<v__18.x);
      __36.y = (operand_3.y<v__18.y);
      __36.z = (operand_3.z<v__18.z);
      __36.w = (operand_3.w<v__18.w);
    float4 v__19 = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    __35.x = (bool(__36.x)?v__19.x:operand_3.x);
    __35.y = (bool(__36.y)?v__19.y:operand_3.y);
    __35.z = (bool(__36.z)?v__19.z:operand_3.z);
    __35.w = (bool(__36.w)?v__19.w:operand_3.w);
    relu_ptr[(at_4 + 15)] = __35;
  }
}

