// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global ushort* restrict bias_ptr, __global ushort* restrict data_ptr, __global ushort* restrict relu_ptr, __global ushort* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global ushort* restrict bias_ptr, __global ushort* restrict data_ptr, __global ushort* restrict relu_ptr, __global ushort* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_ptr[4];
  float4 patch_local_ptr[4];
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_ptr[0] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[1] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[2] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[3] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = ((((group_x * 4) + local_x) * 147) >> 10);
  int at_1 = ((group_x * 16) + (local_x * 4));
  int at_2 = (at_1 - (((at_1 * 1171) >> 15) * 28));
  int at_3 = (at_1 - ((((at_1 + 3) * 1171) >> 15) * 28));
  int at_4 = ((group_y * 4) + local_y);
  for (int ax6 = 0; ax6 < 8; ++ax6) {
    int at_5 = (at_1 + (ax6 * 784));
    int at_6 = (at_4 + (ax6 * 576));
    for (int ax7 = 0; ax7 < 3; ++ax7) {
      int at_7 = (at + ax7);
      bool inside = (((bool)(at_7 >= 1)) && ((bool)(at_7 < 29)));
      int at_8 = (at_5 + (ax7 * 28));
      int at_9 = (at_6 + (ax7 * 192));
      for (int ax8 = 0; ax8 < 3; ++ax8) {
        int at_10 = (at_8 + ax8);
        float4 condval;
        if (((bool)inside) && ((bool)((at_2 + ax8) >= 1))) {
          condval = vloada_half4((at_10 - 29), (__global half*)(data_ptr));
        } else {
          condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[0] = condval;
        float4 condval_1;
        if (inside) {
          condval_1 = vloada_half4((at_10 - 28), (__global half*)(data_ptr));
        } else {
          condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[1] = condval_1;
        float4 condval_2;
        if (inside) {
          condval_2 = vloada_half4((at_10 - 27), (__global half*)(data_ptr));
        } else {
          condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[2] = condval_2;
        float4 condval_3;
        if (((bool)inside) && ((bool)((at_3 + ax8) < 26))) {
          condval_3 = vloada_half4((at_10 - 26), (__global half*)(data_ptr));
        } else {
          condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[3] = condval_3;
        int at_11 = (at_9 + (ax8 * 64));
        float4 value = vloada_half4(at_11, (__global half*)(weight_ptr));
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s0), value, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s0), value, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s0), value, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s0), value, acc_local_ptr[3]);
        float4 value_1 = vloada_half4((at_11 + 16), (__global half*)(weight_ptr));
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s1), value_1, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s1), value_1, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s1), value_1, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s1), value_1, acc_local_ptr[3]);
        float4 value_2 = vloada_half4((at_11 + 32), (__global half*)(weight_ptr));
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s2), value_2, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s2), value_2, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s2), value_2, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s2), value_2, acc_local_ptr[3]);
        float4 value_3 = vloada_half4((at_11 + 48), (__global half*)(weight_ptr));
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s3), value_3, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s3), value_3, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s3), value_3, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s3), value_3, acc_local_ptr[3]);
      }
    }
  }
  int at_12 = ((at_1 + (group_y * 3136)) + (local_y * 784));
  float4 operand = (acc_local_ptr[0] + vloada_half4(at_4, (__global half*)(bias_ptr)));
  vstorea_half4(select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)))))), at_12, (__global half*)(relu_ptr));
  float4 operand_1 = (acc_local_ptr[1] + vloada_half4(at_4, (__global half*)(bias_ptr)));
  vstorea_half4(select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)))))), (at_12 + 1), (__global half*)(relu_ptr));
  float4 operand_2 = (acc_local_ptr[2] + vloada_half4(at_4, (__global half*)(bias_ptr)));
  vstorea_half4(select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)))))), (at_12 + 2), (__global half*)(relu_ptr));
  float4 operand_3 = (acc_local_ptr[3] + vloada_half4(at_4, (__global half*)(bias_ptr)));
  vstorea_half4(select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)))))), (at_12 + 3), (__global half*)(relu_ptr));
}

