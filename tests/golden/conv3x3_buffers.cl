// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
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
  int at = (group_x >> 1);
  int at_1 = (group_x & 1);
  int at_2 = ((local_x * 4) + (at_1 * 16));
  int at_3 = min((int)at_2, (int)27);
  int at_4 = (at * 28);
  int at_5 = ((at_4 + at_3) - 29);
  int at_6 = min((int)(at_2 + 1), (int)27);
  int at_7 = ((at_4 + at_6) - 29);
  int at_8 = min((int)(at_2 + 2), (int)27);
  int at_9 = ((at_4 + at_8) - 29);
  int at_10 = min((int)(at_2 + 3), (int)27);
  int at_11 = ((at_4 + at_10) - 29);
  int at_12 = ((group_y * 4) + local_y);
  for (int ax6 = 0; ax6 < 8; ++ax6) {
    int at_13 = (ax6 * 784);
    int at_14 = (at_5 + at_13);
    int at_15 = (at_7 + at_13);
    int at_16 = (at_9 + at_13);
    int at_17 = (at_11 + at_13);
    int at_18 = (at_12 + (ax6 * 576));
    for (int ax7 = 0; ax7 < 3; ++ax7) {
      int at_19 = (at + ax7);
      bool inside = (((bool)(at_19 >= 1)) && ((bool)(at_19 < 29)));
      int at_20 = (ax7 * 28);
      int at_21 = (at_14 + at_20);
      int at_22 = (at_15 + at_20);
      int at_23 = (at_16 + at_20);
      int at_24 = (at_17 + at_20);
      int at_25 = (at_18 + (ax7 * 192));
      for (int ax8 = 0; ax8 < 3; ++ax8) {
        int at_26 = (at_3 + ax8);
        float4 condval;
        if (((bool)inside) && ((bool)(((bool)(at_26 >= 1)) && ((bool)(at_26 < 29))))) {
          condval = data_ptr[(at_21 + ax8)];
        } else {
          condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[0] = condval;
        float4 condval_1;
        if (((bool)inside) && ((bool)((at_6 + ax8) < 29))) {
          condval_1 = data_ptr[(at_22 + ax8)];
        } else {
          condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[1] = condval_1;
        float4 condval_2;
        if (((bool)inside) && ((bool)((at_8 + ax8) < 29))) {
          condval_2 = data_ptr[(at_23 + ax8)];
        } else {
          condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[2] = condval_2;
        float4 condval_3;
        if (((bool)inside) && ((bool)((at_10 + ax8) < 29))) {
          condval_3 = data_ptr[(at_24 + ax8)];
        } else {
          condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_ptr[3] = condval_3;
        int at_27 = (at_25 + (ax8 * 64));
        float4 value = weight_ptr[at_27];
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s0), value, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s0), value, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s0), value, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s0), value, acc_local_ptr[3]);
        float4 value_1 = weight_ptr[(at_27 + 16)];
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s1), value_1, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s1), value_1, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s1), value_1, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s1), value_1, acc_local_ptr[3]);
        float4 value_2 = weight_ptr[(at_27 + 32)];
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s2), value_2, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s2), value_2, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s2), value_2, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s2), value_2, acc_local_ptr[3]);
        float4 value_3 = weight_ptr[(at_27 + 48)];
        acc_local_ptr[0] = mad((float4)((patch_local_ptr[0]).s3), value_3, acc_local_ptr[0]);
        acc_local_ptr[1] = mad((float4)((patch_local_ptr[1]).s3), value_3, acc_local_ptr[1]);
        acc_local_ptr[2] = mad((float4)((patch_local_ptr[2]).s3), value_3, acc_local_ptr[2]);
        acc_local_ptr[3] = mad((float4)((patch_local_ptr[3]).s3), value_3, acc_local_ptr[3]);
      }
    }
  }
  bool inside_1 = ((local_x + (at_1 * 4)) < 7);
  int at_28 = (((at_2 + (group_y * 3136)) + (local_y * 784)) + at_4);
  if (inside_1) {
    float4 operand = (acc_local_ptr[0] + bias_ptr[at_12]);
    relu_ptr[at_28] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_1) {
    float4 operand_1 = (acc_local_ptr[1] + bias_ptr[at_12]);
    relu_ptr[(at_28 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_1) {
    float4 operand_2 = (acc_local_ptr[2] + bias_ptr[at_12]);
    relu_ptr[(at_28 + 2)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_1) {
    float4 operand_3 = (acc_local_ptr[3] + bias_ptr[at_12]);
    relu_ptr[(at_28 + 3)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

