// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
// oc = group_y * 4 + local_y
// y = group_x
// x = local_x * 4 + (0 to 3)
// sum over ic 8, ky 3, kx 3, ilane 4
// data[n 1][ic 8][y 14][x 14][lane 4]
// weight[ic 8][ky 3][kx 3][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 14][x 14][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  __local float4 patch_shared_ptr[144];
  __local float4 kernel_shared_ptr[144];
  float4 texels_local_0, texels_local_1, texels_local_2, texels_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (local_x + (local_y * 4));
  int at_1 = min((int)at, (int)13);
  int at_2 = (group_x * 14);
  int at_3 = ((at_2 + at_1) - 15);
  int at_4 = (group_y * 4);
  int at_5 = ((at_4 + local_x) + (local_y * 16));
  int at_6 = (local_x * 4);
  for (int ic = 0; ic < 8; ++ic) {
    barrier(CLK_LOCAL_MEM_FENCE);
    int at_ic = (at_3 + (ic * 196));
    for (int patch_texel = 0; patch_texel < 9; ++patch_texel) {
      int at_patch_texel = ((patch_texel * 11) >> 5);
      int at_patch_texel_1 = (group_x + at_patch_texel);
      int at_patch_texel_2 = ((at_1 + patch_texel) - (at_patch_texel * 3));
      float4 condval;
      if (((bool)(((bool)(((bool)(at_patch_texel_1 >= 1)) && ((bool)(at_patch_texel_1 < 15)))) && ((bool)(at_patch_texel_2 >= 1)))) && ((bool)(at_patch_texel_2 < 15))) {
        condval = data_ptr[((at_ic + patch_texel) + (at_patch_texel * 11))];
      } else {
        condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      patch_shared_ptr[(at + (patch_texel * 16))] = condval;
    }
    int at_ic_1 = (at_5 + (ic * 576));
    for (int kernel_texel = 0; kernel_texel < 9; ++kernel_texel) {
      kernel_shared_ptr[(at + (kernel_texel * 16))] = weight_ptr[(at_ic_1 + (kernel_texel * 64))];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int ky = 0; ky < 3; ++ky) {
      int at_ky = (ky * 48);
      int at_ky_1 = (at_6 + at_ky);
      int at_ky_2 = (local_y + at_ky);
      for (int kx = 0; kx < 3; ++kx) {
        int at_kx = (kx * 16);
        int at_ky_kx = (at_ky_1 + at_kx);
        texels_local_0 = patch_shared_ptr[at_ky_kx];
        texels_local_1 = patch_shared_ptr[(at_ky_kx + 1)];
        texels_local_2 = patch_shared_ptr[(at_ky_kx + 2)];
        texels_local_3 = patch_shared_ptr[(at_ky_kx + 3)];
        int at_ky_kx_1 = (at_ky_2 + at_kx);
        float4 value = kernel_shared_ptr[at_ky_kx_1];
        acc_local_0 = fma((float4)((texels_local_0).s0), value, acc_local_0);
        acc_local_1 = fma((float4)((texels_local_1).s0), value, acc_local_1);
        acc_local_2 = fma((float4)((texels_local_2).s0), value, acc_local_2);
        acc_local_3 = fma((float4)((texels_local_3).s0), value, acc_local_3);
        float4 value_1 = kernel_shared_ptr[(at_ky_kx_1 + 4)];
        acc_local_0 = fma((float4)((texels_local_0).s1), value_1, acc_local_0);
        acc_local_1 = fma((float4)((texels_local_1).s1), value_1, acc_local_1);
        acc_local_2 = fma((float4)((texels_local_2).s1), value_1, acc_local_2);
        acc_local_3 = fma((float4)((texels_local_3).s1), value_1, acc_local_3);
        float4 value_2 = kernel_shared_ptr[(at_ky_kx_1 + 8)];
        acc_local_0 = fma((float4)((texels_local_0).s2), value_2, acc_local_0);
        acc_local_1 = fma((float4)((texels_local_1).s2), value_2, acc_local_1);
        acc_local_2 = fma((float4)((texels_local_2).s2), value_2, acc_local_2);
        acc_local_3 = fma((float4)((texels_local_3).s2), value_2, acc_local_3);
        float4 value_3 = kernel_shared_ptr[(at_ky_kx_1 + 12)];
        acc_local_0 = fma((float4)((texels_local_0).s3), value_3, acc_local_0);
        acc_local_1 = fma((float4)((texels_local_1).s3), value_3, acc_local_1);
        acc_local_2 = fma((float4)((texels_local_2).s3), value_3, acc_local_2);
        acc_local_3 = fma((float4)((texels_local_3).s3), value_3, acc_local_3);
      }
    }
  }
  int at_7 = (at_4 + local_y);
  int at_8 = ((((group_y * 784) + at_2) + at_6) + (local_y * 196));
  float4 value_4 = bias_ptr[at_7];
  float4 operand = (acc_local_0 + value_4);
  relu_ptr[at_8] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  float4 operand_1 = (acc_local_1 + value_4);
  relu_ptr[(at_8 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  bool inside = (local_x < 3);
  if (inside) {
    float4 operand_2 = (acc_local_2 + value_4);
    relu_ptr[(at_8 + 2)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_3 = (acc_local_3 + value_4);
    relu_ptr[(at_8 + 3)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

