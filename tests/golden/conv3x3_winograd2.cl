// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void main_kernel(__global float4* restrict data_ptr, __global float4* restrict transformed_ptr);
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void main_kernel(__global float4* restrict data_ptr, __global float4* restrict transformed_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  float4 data_rows_local_0, data_rows_local_1, data_rows_local_2, data_rows_local_3, data_rows_local_4, data_rows_local_5, data_rows_local_6, data_rows_local_7, data_rows_local_8, data_rows_local_9, data_rows_local_10, data_rows_local_11, data_rows_local_12, data_rows_local_13, data_rows_local_14, data_rows_local_15;
  float4 data_tile_local_0, data_tile_local_1, data_tile_local_2, data_tile_local_3;
  int local_x = (convert_int(get_local_id(0)));
  int at = ((group_x * 64) + local_x);
  int at_1 = min((int)at, (int)391);
  int at_2 = (at_1 - (((at_1 * 335) >> 14) * 49));
  int at_3 = ((at_1 * 293) >> 11);
  int at_4 = (at_1 - (at_3 * 7));
  int at_5 = (((at_1 * 2) + (at_3 * 14)) - 15);
  bool inside = (at_4 >= 1);
  bool inside_1 = (at_2 >= 7);
  bool inside_2 = (at_2 < 42);
  bool inside_3 = (at_4 < 6);
  if (((group_x * 8) + (local_x >> 3)) < 49) {
    float4 condval;
    if (((bool)(at_2 >= 7)) && ((bool)(at_4 >= 1))) {
      condval = data_ptr[at_5];
    } else {
      condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_0 = condval;
    float4 condval_1;
    if (inside) {
      condval_1 = data_ptr[(at_5 + 14)];
    } else {
      condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_1 = condval_1;
    float4 condval_2;
    if (inside) {
      condval_2 = data_ptr[(at_5 + 28)];
    } else {
      condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_2 = condval_2;
    float4 condval_3;
    if (((bool)(at_2 < 42)) && ((bool)(at_4 >= 1))) {
      condval_3 = data_ptr[(at_5 + 42)];
    } else {
      condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_3 = condval_3;
    data_rows_local_0 = (data_tile_local_0 - data_tile_local_2);
    data_rows_local_4 = (data_tile_local_1 + data_tile_local_2);
    data_rows_local_8 = (data_tile_local_2 - data_tile_local_1);
    data_rows_local_12 = (data_tile_local_1 - data_tile_local_3);
    float4 condval_4;
    if (inside_1) {
      condval_4 = data_ptr[(at_5 + 1)];
    } else {
      condval_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_0 = condval_4;
    data_tile_local_1 = data_ptr[(at_5 + 15)];
    data_tile_local_2 = data_ptr[(at_5 + 29)];
    float4 condval_5;
    if (inside_2) {
      condval_5 = data_ptr[(at_5 + 43)];
    } else {
      condval_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_3 = condval_5;
    data_rows_local_1 = (data_tile_local_0 - data_tile_local_2);
    data_rows_local_5 = (data_tile_local_1 + data_tile_local_2);
    data_rows_local_9 = (data_tile_local_2 - data_tile_local_1);
    data_rows_local_13 = (data_tile_local_1 - data_tile_local_3);
    float4 condval_6;
    if (inside_1) {
      condval_6 = data_ptr[(at_5 + 2)];
    } else {
      condval_6 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_0 = condval_6;
    data_tile_local_1 = data_ptr[(at_5 + 16)];
    data_tile_local_2 = data_ptr[(at_5 + 30)];
    float4 condval_7;
    if (inside_2) {
      condval_7 = data_ptr[(at_5 + 44)];
    } else {
      condval_7 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_3 = condval_7;
    data_rows_local_2 = (data_tile_local_0 - data_tile_local_2);
    data_rows_local_6 = (data_tile_local_1 + data_tile_local_2);
    data_rows_local_10 = (data_tile_local_2 - data_tile_local_1);
    data_rows_local_14 = (data_tile_local_1 - data_tile_local_3);
    float4 condval_8;
    if (((bool)(at_2 >= 7)) && ((bool)(at_4 < 6))) {
      condval_8 = data_ptr[(at_5 + 3)];
    } else {
      condval_8 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_0 = condval_8;
    float4 condval_9;
    if (inside_3) {
      condval_9 = data_ptr[(at_5 + 17)];
    } else {
      condval_9 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_1 = condval_9;
    float4 condval_10;
    if (inside_3) {
      condval_10 = data_ptr[(at_5 + 31)];
    } else {
      condval_10 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_2 = condval_10;
    float4 condval_11;
    if (((bool)(at_2 < 42)) && ((bool)(at_4 < 6))) {
      condval_11 = data_ptr[(at_5 + 45)];
    } else {
      condval_11 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    }
    data_tile_local_3 = condval_11;
    data_rows_local_3 = (data_tile_local_0 - data_tile_local_2);
    data_rows_local_7 = (data_tile_local_1 + data_tile_local_2);
    data_rows_local_11 = (data_tile_local_2 - data_tile_local_1);
    data_rows_local_15 = (data_tile_local_1 - data_tile_local_3);
    transformed_ptr[at] = (data_rows_local_0 - data_rows_local_2);
    transformed_ptr[(at + 392)] = (data_rows_local_1 + data_rows_local_2);
    transformed_ptr[(at + 784)] = (data_rows_local_2 - data_rows_local_1);
    transformed_ptr[(at + 1176)] = (data_rows_local_1 - data_rows_local_3);
    transformed_ptr[(at + 1568)] = (data_rows_local_4 - data_rows_local_6);
    transformed_ptr[(at + 1960)] = (data_rows_local_5 + data_rows_local_6);
    transformed_ptr[(at + 2352)] = (data_rows_local_6 - data_rows_local_5);
    transformed_ptr[(at + 2744)] = (data_rows_local_5 - data_rows_local_7);
    transformed_ptr[(at + 3136)] = (data_rows_local_8 - data_rows_local_10);
    transformed_ptr[(at + 3528)] = (data_rows_local_9 + data_rows_local_10);
    transformed_ptr[(at + 3920)] = (data_rows_local_10 - data_rows_local_9);
    transformed_ptr[(at + 4312)] = (data_rows_local_9 - data_rows_local_11);
    transformed_ptr[(at + 4704)] = (data_rows_local_12 - data_rows_local_14);
    transformed_ptr[(at + 5096)] = (data_rows_local_13 + data_rows_local_14);
    transformed_ptr[(at + 5488)] = (data_rows_local_14 - data_rows_local_13);
    transformed_ptr[(at + 5880)] = (data_rows_local_13 - data_rows_local_15);
  }
}

// Function: main_kernel_1
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel_1(__global float4* restrict products_ptr, __global float4* restrict transformed_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel_1(__global float4* restrict products_ptr, __global float4* restrict transformed_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (group_x >> 2);
  int at_1 = (group_x & 3);
  int at_2 = ((local_x * 4) + (at_1 * 16));
  int at_3 = (at * 392);
  int at_4 = (at_3 + min((int)at_2, (int)48));
  int at_5 = (at_3 + min((int)(at_2 + 1), (int)48));
  int at_6 = (at_3 + min((int)(at_2 + 2), (int)48));
  int at_7 = (at_3 + min((int)(at_2 + 3), (int)48));
  int at_8 = (((group_y * 4) + local_y) + (at * 64));
  const __global float4* transformed_at = transformed_ptr + at_4;
  const __global float4* transformed_at_1 = transformed_ptr + at_5;
  const __global float4* transformed_at_2 = transformed_ptr + at_6;
  const __global float4* transformed_at_3 = transformed_ptr + at_7;
  const __global float4* weight_at = weight_ptr + at_8;
  for (int ic = 0; ic < 8; ++ic) {
    patch_local_0 = transformed_at[0];
    patch_local_1 = transformed_at_1[0];
    patch_local_2 = transformed_at_2[0];
    patch_local_3 = transformed_at_3[0];
    float4 value = weight_at[0];
    acc_local_0 = mad((float4)((patch_local_0).s0), value, acc_local_0);
    acc_local_1 = mad((float4)((patch_local_1).s0), value, acc_local_1);
    acc_local_2 = mad((float4)((patch_local_2).s0), value, acc_local_2);
    acc_local_3 = mad((float4)((patch_local_3).s0), value, acc_local_3);
    float4 value_1 = weight_at[16];
    acc_local_0 = mad((float4)((patch_local_0).s1), value_1, acc_local_0);
    acc_local_1 = mad((float4)((patch_local_1).s1), value_1, acc_local_1);
    acc_local_2 = mad((float4)((patch_local_2).s1), value_1, acc_local_2);
    acc_local_3 = mad((float4)((patch_local_3).s1), value_1, acc_local_3);
    float4 value_2 = weight_at[32];
    acc_local_0 = mad((float4)((patch_local_0).s2), value_2, acc_local_0);
    acc_local_1 = mad((float4)((patch_local_1).s2), value_2, acc_local_1);
    acc_local_2 = mad((float4)((patch_local_2).s2), value_2, acc_local_2);
    acc_local_3 = mad((float4)((patch_local_3).s2), value_2, acc_local_3);
    float4 value_3 = weight_at[48];
    acc_local_0 = mad((float4)((patch_local_0).s3), value_3, acc_local_0);
    acc_local_1 = mad((float4)((patch_local_1).s3), value_3, acc_local_1);
    acc_local_2 = mad((float4)((patch_local_2).s3), value_3, acc_local_2);
    acc_local_3 = mad((float4)((patch_local_3).s3), value_3, acc_local_3);
    transformed_at += 49;
    transformed_at_1 += 49;
    transformed_at_2 += 49;
    transformed_at_3 += 49;
    weight_at += 1024;
  }
  int at_9 = (((at_2 + (group_y * 196)) + (local_y * 49)) + (at * 784));
  if (at_2 < 49) {
    products_ptr[at_9] = acc_local_0;
  }
  if (at_1 < 3) {
    products_ptr[(at_9 + 1)] = acc_local_1;
  }
  if (at_2 < 47) {
    products_ptr[(at_9 + 2)] = acc_local_2;
  }
  if (((local_x * 2) + (at_1 * 8)) < 23) {
    products_ptr[(at_9 + 3)] = acc_local_3;
  }
}

// Function: main_kernel_2
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void main_kernel_2(__global float4* restrict bias_ptr, __global float4* restrict products_ptr, __global float4* restrict relu_ptr);
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void main_kernel_2(__global float4* restrict bias_ptr, __global float4* restrict products_ptr, __global float4* restrict relu_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  float4 output_rows_local_0, output_rows_local_1, output_rows_local_2, output_rows_local_3, output_rows_local_4, output_rows_local_5, output_rows_local_6, output_rows_local_7;
  float4 output_tile_local_0, output_tile_local_1;
  int local_x = (convert_int(get_local_id(0)));
  int at = ((group_x * 64) + local_x);
  int at_1 = min((int)at, (int)783);
  int at_2 = (at_1 + 3136);
  int at_3 = ((at * 669) >> 15);
  int at_4 = (((group_x * 128) + (local_x * 2)) + (((at * 1171) >> 13) * 14));
  if (((group_x * 4) + (local_x >> 4)) < 49) {
    float4 value = products_ptr[at_2];
    float4 value_1 = products_ptr[(at_2 + 3136)];
    output_rows_local_0 = ((products_ptr[at_1] + value) + value_1);
    output_rows_local_4 = ((value - value_1) - products_ptr[(at_2 + 6272)]);
    float4 value_2 = products_ptr[(at_2 + 784)];
    float4 value_3 = products_ptr[(at_2 + 3920)];
    output_rows_local_1 = ((products_ptr[(at_2 - 2352)] + value_2) + value_3);
    output_rows_local_5 = ((value_2 - value_3) - products_ptr[(at_2 + 7056)]);
    float4 value_4 = products_ptr[(at_2 + 1568)];
    float4 value_5 = products_ptr[(at_2 + 4704)];
    output_rows_local_2 = ((products_ptr[(at_2 - 1568)] + value_4) + value_5);
    output_rows_local_6 = ((value_4 - value_5) - products_ptr[(at_2 + 7840)]);
    float4 value_6 = products_ptr[(at_2 + 2352)];
    float4 value_7 = products_ptr[(at_2 + 5488)];
    output_rows_local_3 = ((products_ptr[(at_2 - 784)] + value_6) + value_7);
    output_rows_local_7 = ((value_6 - value_7) - products_ptr[(at_2 + 8624)]);
    output_tile_local_0 = ((output_rows_local_0 + output_rows_local_1) + output_rows_local_2);
    output_tile_local_1 = ((output_rows_local_1 - output_rows_local_2) - output_rows_local_3);
    float4 value_8 = bias_ptr[at_3];
    float4 operand = (output_tile_local_0 + value_8);
    relu_ptr[at_4] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    float4 operand_1 = (output_tile_local_1 + value_8);
    relu_ptr[(at_4 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    output_tile_local_0 = ((output_rows_local_4 + output_rows_local_5) + output_rows_local_6);
    output_tile_local_1 = ((output_rows_local_5 - output_rows_local_6) - output_rows_local_7);
    float4 operand_2 = (output_tile_local_0 + value_8);
    relu_ptr[(at_4 + 14)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    float4 operand_3 = (output_tile_local_1 + value_8);
    relu_ptr[(at_4 + 15)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

