// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
// oc = group_y * 4 + local_y
// y = group_x / 2
// x = (group_x % 2 * 4 + local_x) * 4 + (0 to 3)
// sum over ic 8, ky 3, kx 3, ilane 4
// data[n 1][ic 8][y 28][x 28][lane 4]
// weight[ic 8][ky 3][kx 3][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 28][x 28][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  int at = (group_x & 1);
  int at_1 = (group_x >> 1);
  int at_2 = ((local_x * 4) + (at * 16));
  int at_3 = ((at_2 + (at_1 * 28)) - 29);
  int at_4 = ((group_y * 4) + local_y);
  int at_5 = (((at_3 + (group_y * 3136)) + (local_y * 784)) + 29);
  if ((local_x + (at * 4)) < 7) {
    acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    for (int ic = 0; ic < 8; ++ic) {
      int at_ic = (at_3 + (ic * 784));
      int at_ic_1 = (at_4 + (ic * 576));
      for (int ky = 0; ky < 3; ++ky) {
        int at_ky = (at_1 + ky);
        bool inside_ky = (((bool)(at_ky >= 1)) && ((bool)(at_ky < 29)));
        int at_ic_ky = (at_ic + (ky * 28));
        int at_ic_ky_1 = (at_ic_1 + (ky * 192));
        for (int kx = 0; kx < 3; ++kx) {
          int at_kx = (at_2 + kx);
          int at_ic_ky_kx = (at_ic_ky + kx);
          float4 condval;
          if (((bool)inside_ky) && ((bool)(at_kx >= 1))) {
            condval = data_ptr[at_ic_ky_kx];
          } else {
            condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
          }
          patch_local_0 = condval;
          float4 condval_1;
          if (inside_ky) {
            condval_1 = data_ptr[(at_ic_ky_kx + 1)];
          } else {
            condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
          }
          patch_local_1 = condval_1;
          float4 condval_2;
          if (inside_ky) {
            condval_2 = data_ptr[(at_ic_ky_kx + 2)];
          } else {
            condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
          }
          patch_local_2 = condval_2;
          float4 condval_3;
          if (((bool)inside_ky) && ((bool)(at_kx < 26))) {
            condval_3 = data_ptr[(at_ic_ky_kx + 3)];
          } else {
            condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
          }
          patch_local_3 = condval_3;
          int at_ic_ky_kx_1 = (at_ic_ky_1 + (kx * 64));
          float4 value = weight_ptr[at_ic_ky_kx_1];
          acc_local_0 = mad((float4)((patch_local_0).s0), value, acc_local_0);
          acc_local_1 = mad((float4)((patch_local_1).s0), value, acc_local_1);
          acc_local_2 = mad((float4)((patch_local_2).s0), value, acc_local_2);
          acc_local_3 = mad((float4)((patch_local_3).s0), value, acc_local_3);
          float4 value_1 = weight_ptr[(at_ic_ky_kx_1 + 16)];
          acc_local_0 = mad((float4)((patch_local_0).s1), value_1, acc_local_0);
          acc_local_1 = mad((float4)((patch_local_1).s1), value_1, acc_local_1);
          acc_local_2 = mad((float4)((patch_local_2).s1), value_1, acc_local_2);
          acc_local_3 = mad((float4)((patch_local_3).s1), value_1, acc_local_3);
          float4 value_2 = weight_ptr[(at_ic_ky_kx_1 + 32)];
          acc_local_0 = mad((float4)((patch_local_0).s2), value_2, acc_local_0);
          acc_local_1 = mad((float4)((patch_local_1).s2), value_2, acc_local_1);
          acc_local_2 = mad((float4)((patch_local_2).s2), value_2, acc_local_2);
          acc_local_3 = mad((float4)((patch_local_3).s2), value_2, acc_local_3);
          float4 value_3 = weight_ptr[(at_ic_ky_kx_1 + 48)];
          acc_local_0 = mad((float4)((patch_local_0).s3), value_3, acc_local_0);
          acc_local_1 = mad((float4)((patch_local_1).s3), value_3, acc_local_1);
          acc_local_2 = mad((float4)((patch_local_2).s3), value_3, acc_local_2);
          acc_local_3 = mad((float4)((patch_local_3).s3), value_3, acc_local_3);
        }
      }
    }
    float4 value_4 = bias_ptr[at_4];
    float4 operand = (acc_local_0 + value_4);
    relu_ptr[at_5] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    float4 operand_1 = (acc_local_1 + value_4);
    relu_ptr[(at_5 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    float4 operand_2 = (acc_local_2 + value_4);
    relu_ptr[(at_5 + 2)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    float4 operand_3 = (acc_local_3 + value_4);
    relu_ptr[(at_5 + 3)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

