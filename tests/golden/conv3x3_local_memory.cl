// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_ptr[4];
  __local float4 patch_shared_ptr[144];
  __local float4 kernel_shared_ptr[144];
  float4 texels_local_ptr[4];
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_ptr[0] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[1] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[2] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[3] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (local_x + (local_y * 4));
  int at_1 = min((int)at, (int)13);
  int at_2 = (group_x * 14);
  int at_3 = ((at_2 + at_1) - 15);
  int at_4 = (group_y * 4);
  int at_5 = ((at_4 + local_x) + (local_y * 16));
  int at_6 = (local_x * 4);
  for (int ax6_0 = 0; ax6_0 < 8; ++ax6_0) {
    barrier(CLK_LOCAL_MEM_FENCE);
    int at_7 = (at_3 + (ax6_0 * 196));
    for (int ax0_ax1_ax2_ax3_ax4_fused_0 = 0; ax0_ax1_ax2_ax3_ax4_fused_0 < 9; ++ax0_ax1_ax2_ax3_ax4_fused_0) {
      int at_8 = ((ax0_ax1_ax2_ax3_ax4_fused_0 * 11) >> 5);
      int at_9 = (group_x + at_8);
      int at_10 = ((at_1 + ax0_ax1_ax2_ax3_ax4_fused_0) - (at_8 * 3));
      float4 condval;
      if (((bool)(((bool)(((bool)(at_9 >= 1)) && ((bool)(at_9 < 15)))) && ((bool)(at_10 >= 1)))) && ((bool)(at_10 < 15))) {
        condval = data_ptr[((at_7 + ax0_ax1_ax2_ax3_ax4_fused_0) + (at_8 * 11))];
      } else {
        condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
      }
      patch_shared_ptr[(at + (ax0_ax1_ax2_ax3_ax4_fused_0 * 16))] = condval;
    }
    int at_11 = (at_5 + (ax6_0 * 576));
    for (int ax0_ax1_ax2_ax3_ax4_fused_0_1 = 0; ax0_ax1_ax2_ax3_ax4_fused_0_1 < 9; ++ax0_ax1_ax2_ax3_ax4_fused_0_1) {
      kernel_shared_ptr[(at + (ax0_ax1_ax2_ax3_ax4_fused_0_1 * 16))] = weight_ptr[(at_11 + (ax0_ax1_ax2_ax3_ax4_fused_0_1 * 64))];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int ax7 = 0; ax7 < 3; ++ax7) {
      int at_12 = (ax7 * 48);
      int at_13 = (at_6 + at_12);
      int at_14 = (local_y + at_12);
      for (int ax8 = 0; ax8 < 3; ++ax8) {
        int at_15 = (ax8 * 16);
        int at_16 = (at_13 + at_15);
        texels_local_ptr[0] = patch_shared_ptr[at_16];
        texels_local_ptr[1] = patch_shared_ptr[(at_16 + 1)];
        texels_local_ptr[2] = patch_shared_ptr[(at_16 + 2)];
        texels_local_ptr[3] = patch_shared_ptr[(at_16 + 3)];
        int at_17 = (at_14 + at_15);
        float4 value = kernel_shared_ptr[at_17];
        acc_local_ptr[0] = fma((float4)((texels_local_ptr[0]).s0), value, acc_local_ptr[0]);
        acc_local_ptr[1] = fma((float4)((texels_local_ptr[1]).s0), value, acc_local_ptr[1]);
        acc_local_ptr[2] = fma((float4)((texels_local_ptr[2]).s0), value, acc_local_ptr[2]);
        acc_local_ptr[3] = fma((float4)((texels_local_ptr[3]).s0), value, acc_local_ptr[3]);
        float4 value_1 = kernel_shared_ptr[(at_17 + 4)];
        acc_local_ptr[0] = fma((float4)((texels_local_ptr[0]).s1), value_1, acc_local_ptr[0]);
        acc_local_ptr[1] = fma((float4)((texels_local_ptr[1]).s1), value_1, acc_local_ptr[1]);
        acc_local_ptr[2] = fma((float4)((texels_local_ptr[2]).s1), value_1, acc_local_ptr[2]);
        acc_local_ptr[3] = fma((float4)((texels_local_ptr[3]).s1), value_1, acc_local_ptr[3]);
        float4 value_2 = kernel_shared_ptr[(at_17 + 8)];
        acc_local_ptr[0] = fma((float4)((texels_local_ptr[0]).s2), value_2, acc_local_ptr[0]);
        acc_local_ptr[1] = fma((float4)((texels_local_ptr[1]).s2), value_2, acc_local_ptr[1]);
        acc_local_ptr[2] = fma((float4)((texels_local_ptr[2]).s2), value_2, acc_local_ptr[2]);
        acc_local_ptr[3] = fma((float4)((texels_local_ptr[3]).s2), value_2, acc_local_ptr[3]);
        float4 value_3 = kernel_shared_ptr[(at_17 + 12)];
        acc_local_ptr[0] = fma((float4)((texels_local_ptr[0]).s3), value_3, acc_local_ptr[0]);
        acc_local_ptr[1] = fma((float4)((texels_local_ptr[1]).s3), value_3, acc_local_ptr[1]);
        acc_local_ptr[2] = fma((float4)((texels_local_ptr[2]).s3), value_3, acc_local_ptr[2]);
        acc_local_ptr[3] = fma((float4)((texels_local_ptr[3]).s3), value_3, acc_local_ptr[3]);
      }
    }
  }
  int at_18 = (at_4 + local_y);
  int at_19 = ((((group_y * 784) + at_2) + at_6) + (local_y * 196));
  float4 value_4 = bias_ptr[at_18];
  float4 operand = (acc_local_ptr[0] + value_4);
  relu_ptr[at_19] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  float4 operand_1 = (acc_local_ptr[1] + value_4);
  relu_ptr[(at_19 + 1)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  bool inside = (local_x < 3);
  if (inside) {
    float4 operand_2 = (acc_local_ptr[2] + value_4);
    relu_ptr[(at_19 + 2)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_3 = (acc_local_ptr[3] + value_4);
    relu_ptr[(at_19 + 3)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

