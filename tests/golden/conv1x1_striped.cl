// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
// oc = group_y * 8 + local_y + (0 to 1) * 4
// y * 14 + x = group_x * 16 + local_x + (0 to 3) * 4
// sum over ic 8, ky 1, kx 1, ilane 4
// data[n 1][ic 8][y 14][x 14][lane 4]
// weight[ic 8][ky 1][kx 1][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 14][x 14][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3, acc_local_4, acc_local_5, acc_local_6, acc_local_7;
  __local float4 patch_shared_ptr[32];
  __local float4 kernel_shared_ptr[64];
  float4 texels_local_0, texels_local_1, texels_local_2, texels_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_6 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_7 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (group_x * 16);
  int at_1 = (local_y * 4);
  int at_2 = min((int)((at + local_x) + at_1), (int)195);
  int at_3 = (local_x + at_1);
  int at_4 = (group_y * 8);
  int at_5 = (((at_4 + local_x) + ((local_y >> 1) * 16)) + ((local_y & 1) * 4));
  for (int ic = 0; ic < 4; ++ic) {
    barrier(CLK_LOCAL_MEM_FENCE);
    int at_ic = (at_2 + (ic * 392));
    for (int patch_texel = 0; patch_texel < 2; ++patch_texel) {
      patch_shared_ptr[(at_3 + (patch_texel * 16))] = data_ptr[(at_ic + (patch_texel * 196))];
    }
    int at_ic_1 = (at_5 + (ic * 128));
    for (int kernel_texel = 0; kernel_texel < 4; ++kernel_texel) {
      kernel_shared_ptr[(at_3 + (kernel_texel * 16))] = weight_ptr[(at_ic_1 + (kernel_texel * 32))];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int ic_1 = 0; ic_1 < 2; ++ic_1) {
      int at_ic_2 = (local_x + (ic_1 * 16));
      texels_local_0 = patch_shared_ptr[at_ic_2];
      texels_local_1 = patch_shared_ptr[(at_ic_2 + 4)];
      texels_local_2 = patch_shared_ptr[(at_ic_2 + 8)];
      texels_local_3 = patch_shared_ptr[(at_ic_2 + 12)];
      int at_ic_3 = (local_y + (ic_1 * 32));
      float4 value = kernel_shared_ptr[at_ic_3];
      acc_local_0 = mad((float4)((texels_local_0).s0), value, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s0), value, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s0), value, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s0), value, acc_local_3);
      float4 value_1 = kernel_shared_ptr[(at_ic_3 + 4)];
      acc_local_4 = mad((float4)((texels_local_0).s0), value_1, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s0), value_1, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s0), value_1, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s0), value_1, acc_local_7);
      float4 value_2 = kernel_shared_ptr[(at_ic_3 + 8)];
      acc_local_0 = mad((float4)((texels_local_0).s1), value_2, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s1), value_2, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s1), value_2, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s1), value_2, acc_local_3);
      float4 value_3 = kernel_shared_ptr[(at_ic_3 + 12)];
      acc_local_4 = mad((float4)((texels_local_0).s1), value_3, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s1), value_3, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s1), value_3, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s1), value_3, acc_local_7);
      float4 value_4 = kernel_shared_ptr[(at_ic_3 + 16)];
      acc_local_0 = mad((float4)((texels_local_0).s2), value_4, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s2), value_4, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s2), value_4, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s2), value_4, acc_local_3);
      float4 value_5 = kernel_shared_ptr[(at_ic_3 + 20)];
      acc_local_4 = mad((float4)((texels_local_0).s2), value_5, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s2), value_5, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s2), value_5, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s2), value_5, acc_local_7);
      float4 value_6 = kernel_shared_ptr[(at_ic_3 + 24)];
      acc_local_0 = mad((float4)((texels_local_0).s3), value_6, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s3), value_6, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s3), value_6, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s3), value_6, acc_local_3);
      float4 value_7 = kernel_shared_ptr[(at_ic_3 + 28)];
      acc_local_4 = mad((float4)((texels_local_0).s3), value_7, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s3), value_7, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s3), value_7, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s3), value_7, acc_local_7);
    }
  }
  int at_6 = (at_4 + local_y);
  int at_7 = ((((group_y * 1568) + at) + local_x) + (local_y * 196));
  float4 value_8 = bias_ptr[at_6];
  float4 operand = (acc_local_0 + value_8);
  relu_ptr[at_7] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  bool inside = (group_x < 12);
  if (inside) {
    float4 operand_1 = (acc_local_1 + value_8);
    relu_ptr[(at_7 + 4)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_2 = (acc_local_2 + value_8);
    relu_ptr[(at_7 + 8)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_3 = (acc_local_3 + value_8);
    relu_ptr[(at_7 + 12)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  float4 value_9 = bias_ptr[(at_6 + 4)];
  float4 operand_4 = (acc_local_4 + value_9);
  relu_ptr[(at_7 + 784)] = select(operand_4, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_4 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  if (inside) {
    float4 operand_5 = (acc_local_5 + value_9);
    relu_ptr[(at_7 + 788)] = select(operand_5, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_5 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_6 = (acc_local_6 + value_9);
    relu_ptr[(at_7 + 792)] = select(operand_6, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_6 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_7 = (acc_local_7 + value_9);
    relu_ptr[(at_7 + 796)] = select(operand_7, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_7 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

