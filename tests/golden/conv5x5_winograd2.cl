// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(16, 6, 1))) void main_kernel(__global float4* restrict data_ptr, __global float4* restrict transformed_ptr);
__kernel __attribute__((reqd_work_group_size(16, 6, 1))) void main_kernel(__global float4* restrict data_ptr, __global float4* restrict transformed_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  float4 data_tile_local_0, data_tile_local_1, data_tile_local_2, data_tile_local_3, data_tile_local_4, data_tile_local_5;
  __local float4 data_rows_shared_ptr[576];
  float4 data_rows_shared_local_0, data_rows_shared_local_1, data_rows_shared_local_2, data_rows_shared_local_3, data_rows_shared_local_4, data_rows_shared_local_5;
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  int at = ((group_x * 16) + local_x);
  int at_1 = min((int)at, (int)49);
  int at_2 = ((at_1 * 41) >> 10);
  int at_3 = (at_1 - (at_2 * 25));
  int at_4 = ((at_1 * 13) >> 6);
  int at_5 = ((at_1 + (local_y >> 1)) - (at_4 * 5));
  int at_6 = ((local_y + (at_1 * 2)) - (at_4 * 10));
  bool inside = (((bool)(((bool)(at_3 >= 5)) && ((bool)(at_5 >= 1)))) && ((bool)(at_6 < 11)));
  int at_7 = (((at_6 + (at_2 * 81)) + (((at_3 * 13) >> 6) * 18)) - 20);
  float4 condval;
  if (inside) {
    condval = data_ptr[at_7];
  } else {
    condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_0 = condval;
  float4 condval_1;
  if (inside) {
    condval_1 = data_ptr[(at_7 + 9)];
  } else {
    condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_1 = condval_1;
  float4 condval_2;
  if (((bool)(at_5 >= 1)) && ((bool)(at_6 < 11))) {
    condval_2 = data_ptr[(at_7 + 18)];
  } else {
    condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_2 = condval_2;
  bool inside_1 = (((bool)(((bool)(at_3 < 20)) && ((bool)(at_5 >= 1)))) && ((bool)(at_6 < 11)));
  float4 condval_3;
  if (inside_1) {
    condval_3 = data_ptr[(at_7 + 27)];
  } else {
    condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_3 = condval_3;
  float4 condval_4;
  if (inside_1) {
    condval_4 = data_ptr[(at_7 + 36)];
  } else {
    condval_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_4 = condval_4;
  float4 condval_5;
  if (((bool)(((bool)(at_3 < 15)) && ((bool)(at_5 >= 1)))) && ((bool)(at_6 < 11))) {
    condval_5 = data_ptr[(at_7 + 45)];
  } else {
    condval_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  }
  data_tile_local_5 = condval_5;
  int at_8 = (local_x + (local_y * 16));
  data_rows_shared_ptr[at_8] = (((data_tile_local_0 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_tile_local_4) - (data_tile_local_2 * ((float4)(5.000000e+00f, 5.000000e+00f, 5.000000e+00f, 5.000000e+00f))));
  data_rows_shared_ptr[(at_8 + 96)] = (((data_tile_local_3 + data_tile_local_4) - (data_tile_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f)))) - (data_tile_local_2 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))));
  data_rows_shared_ptr[(at_8 + 192)] = ((((data_tile_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_tile_local_4) - (data_tile_local_2 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f)))) - data_tile_local_3);
  data_rows_shared_ptr[(at_8 + 288)] = ((((data_tile_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))) + data_tile_local_4) - (data_tile_local_1 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f)))) - data_tile_local_2);
  data_rows_shared_ptr[(at_8 + 384)] = ((((data_tile_local_1 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))) + data_tile_local_4) - data_tile_local_2) - (data_tile_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))));
  data_rows_shared_ptr[(at_8 + 480)] = (((data_tile_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_tile_local_5) - (data_tile_local_3 * ((float4)(5.000000e+00f, 5.000000e+00f, 5.000000e+00f, 5.000000e+00f))));
  barrier(CLK_LOCAL_MEM_FENCE);
  int at_9 = (local_x + (local_y * 96));
  data_rows_shared_local_0 = data_rows_shared_ptr[at_9];
  data_rows_shared_local_1 = data_rows_shared_ptr[(at_9 + 16)];
  data_rows_shared_local_2 = data_rows_shared_ptr[(at_9 + 32)];
  data_rows_shared_local_3 = data_rows_shared_ptr[(at_9 + 48)];
  data_rows_shared_local_4 = data_rows_shared_ptr[(at_9 + 64)];
  data_rows_shared_local_5 = data_rows_shared_ptr[(at_9 + 80)];
  bool inside_2 = (((group_x * 8) + (local_x >> 1)) < 25);
  int at_10 = (at + (local_y * 300));
  if (inside_2) {
    transformed_ptr[at_10] = (((data_rows_shared_local_0 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_rows_shared_local_4) - (data_rows_shared_local_2 * ((float4)(5.000000e+00f, 5.000000e+00f, 5.000000e+00f, 5.000000e+00f))));
  }
  if (inside_2) {
    transformed_ptr[(at_10 + 50)] = (((data_rows_shared_local_3 + data_rows_shared_local_4) - (data_rows_shared_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f)))) - (data_rows_shared_local_2 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))));
  }
  if (inside_2) {
    transformed_ptr[(at_10 + 100)] = ((((data_rows_shared_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_rows_shared_local_4) - (data_rows_shared_local_2 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f)))) - data_rows_shared_local_3);
  }
  if (inside_2) {
    transformed_ptr[(at_10 + 150)] = ((((data_rows_shared_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))) + data_rows_shared_local_4) - (data_rows_shared_local_1 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f)))) - data_rows_shared_local_2);
  }
  if (inside_2) {
    transformed_ptr[(at_10 + 200)] = ((((data_rows_shared_local_1 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))) + data_rows_shared_local_4) - data_rows_shared_local_2) - (data_rows_shared_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))));
  }
  if (inside_2) {
    transformed_ptr[(at_10 + 250)] = (((data_rows_shared_local_1 * ((float4)(4.000000e+00f, 4.000000e+00f, 4.000000e+00f, 4.000000e+00f))) + data_rows_shared_local_5) - (data_rows_shared_local_3 * ((float4)(5.000000e+00f, 5.000000e+00f, 5.000000e+00f, 5.000000e+00f))));
  }
}

// Function: main_kernel_1
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel_1(__global float4* restrict products_ptr, __global float4* restrict transformed_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel_1(__global float4* restrict products_ptr, __global float4* restrict transformed_ptr, __global float4* restrict weight_ptr) {
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  int at = (group_x >> 1);
  int at_1 = (group_x & 1);
  int at_2 = ((local_x * 4) + (at_1 * 16));
  int at_3 = (at * 50);
  int at_4 = (at_3 + min((int)at_2, (int)24));
  int at_5 = (at_3 + min((int)(at_2 + 1), (int)24));
  int at_6 = (at_3 + min((int)(at_2 + 2), (int)24));
  int at_7 = (at_3 + min((int)(at_2 + 3), (int)24));
  int at_8 = (local_y + (at * 12));
  int at_9 = ((at_2 + (local_y * 25)) + (at * 75));
  if (local_y < 3) {
    acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    for (int ic = 0; ic < 2; ++ic) {
      int at_ic = (ic * 25);
      patch_local_0 = transformed_ptr[(at_4 + at_ic)];
      patch_local_1 = transformed_ptr[(at_5 + at_ic)];
      patch_local_2 = transformed_ptr[(at_6 + at_ic)];
      patch_local_3 = transformed_ptr[(at_7 + at_ic)];
      int at_ic_1 = (at_8 + (ic * 432));
      float4 value = weight_ptr[at_ic_1];
      acc_local_0 = mad((float4)((patch_local_0).s0), value, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s0), value, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s0), value, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s0), value, acc_local_3);
      float4 value_1 = weight_ptr[(at_ic_1 + 3)];
      acc_local_0 = mad((float4)((patch_local_0).s1), value_1, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s1), value_1, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s1), value_1, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s1), value_1, acc_local_3);
      float4 value_2 = weight_ptr[(at_ic_1 + 6)];
      acc_local_0 = mad((float4)((patch_local_0).s2), value_2, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s2), value_2, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s2), value_2, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s2), value_2, acc_local_3);
      float4 value_3 = weight_ptr[(at_ic_1 + 9)];
      acc_local_0 = mad((float4)((patch_local_0).s3), value_3, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s3), value_3, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s3), value_3, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s3), value_3, acc_local_3);
    }
    if (at_2 < 25) {
      products_ptr[at_9] = acc_local_0;
    }
    if ((local_x + (at_1 * 4)) < 6) {
      products_ptr[(at_9 + 1)] = acc_local_1;
    }
    if (at_2 < 23) {
      products_ptr[(at_9 + 2)] = acc_local_2;
    }
    if (((local_x * 2) + (at_1 * 8)) < 11) {
      products_ptr[(at_9 + 3)] = acc_local_3;
    }
  }
}

// Function: main_kernel_2
__kernel __attribute__((reqd_work_group_size(32, 2, 1))) void main_kernel_2(__global float4* restrict bias_ptr, __global float4* restrict products_ptr, __global float4* restrict relu_ptr);
__kernel __attribute__((reqd_work_group_size(32, 2, 1))) void main_kernel_2(__global float4* restrict bias_ptr, __global float4* restrict products_ptr, __global float4* restrict relu_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  __local float4 output_rows_shared_ptr[384];
  float4 output_column_local_0, output_column_local_1, output_column_local_2, output_column_local_3, output_column_local_4, output_column_local_5;
  float4 output_rows_shared_local_0, output_rows_shared_local_1, output_rows_shared_local_2, output_rows_shared_local_3, output_rows_shared_local_4, output_rows_shared_local_5;
  float4 output_tile_local_0, output_tile_local_1;
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  int at = ((group_x * 32) + local_x);
  int at_1 = ((local_y * 75) + min((int)at, (int)74));
  int at_2 = (local_x + (local_y * 32));
  for (int output_rows_texel = 0; output_rows_texel < 3; ++output_rows_texel) {
    int at_output_rows_texel = (at_1 + (output_rows_texel * 150));
    output_column_local_0 = products_ptr[at_output_rows_texel];
    output_column_local_1 = products_ptr[(at_output_rows_texel + 450)];
    output_column_local_2 = products_ptr[(at_output_rows_texel + 900)];
    output_column_local_3 = products_ptr[(at_output_rows_texel + 1350)];
    output_column_local_4 = products_ptr[(at_output_rows_texel + 1800)];
    output_column_local_5 = products_ptr[(at_output_rows_texel + 2250)];
    int at_output_rows_texel_1 = (at_2 + (output_rows_texel * 64));
    output_rows_shared_ptr[at_output_rows_texel_1] = ((((output_column_local_0 + output_column_local_1) + output_column_local_2) + output_column_local_3) + output_column_local_4);
    output_rows_shared_ptr[(at_output_rows_texel_1 + 192)] = ((((output_column_local_1 + (output_column_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f)))) + output_column_local_5) - output_column_local_2) - (output_column_local_4 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))));
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  int at_3 = (local_x + (local_y * 192));
  output_rows_shared_local_0 = output_rows_shared_ptr[at_3];
  output_rows_shared_local_1 = output_rows_shared_ptr[(at_3 + 32)];
  output_rows_shared_local_2 = output_rows_shared_ptr[(at_3 + 64)];
  output_rows_shared_local_3 = output_rows_shared_ptr[(at_3 + 96)];
  output_rows_shared_local_4 = output_rows_shared_ptr[(at_3 + 128)];
  output_rows_shared_local_5 = output_rows_shared_ptr[(at_3 + 160)];
  output_tile_local_0 = ((((output_rows_shared_local_0 + output_rows_shared_local_1) + output_rows_shared_local_2) + output_rows_shared_local_3) + output_rows_shared_local_4);
  output_tile_local_1 = ((((output_rows_shared_local_1 + (output_rows_shared_local_3 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f)))) + output_rows_shared_local_5) - output_rows_shared_local_2) - (output_rows_shared_local_4 * ((float4)(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f))));
  bool inside = (at < 75);
  int at_4 = ((at * 41) >> 10);
  int at_5 = (((at - (at_4 * 25)) * 13) >> 6);
  int at_6 = (local_y + (at_5 * 2));
  int at_7 = ((at * 103) >> 9);
  int at_8 = ((((((group_x * 64) + (local_x * 2)) + (local_y * 9)) + (at_4 * 81)) + (at_5 * 18)) - (at_7 * 10));
  if (inside) {
    if (at_6 < 9) {
      float4 operand = (output_tile_local_0 + bias_ptr[at_4]);
      relu_ptr[at_8] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    }
  }
  if (inside) {
    if (((bool)(at_6 < 9)) && ((bool)((at - (at_7 * 5)) < 4))) {
      float4 operand_1 = (output_tile_local_1 + bias_ptr[at_4]);
      relu_ptr[(at_8 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    }
  }
}

