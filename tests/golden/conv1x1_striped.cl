// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_ptr[8];
  __local float4 patch_shared_ptr[32];
  __local float4 kernel_shared_ptr[64];
  float4 texels_local_ptr[4];
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  acc_local_ptr[0] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[1] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[2] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[3] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[4] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[5] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[6] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  acc_local_ptr[7] = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
  int at = (group_x * 16);
  int at_1 = (local_y * 4);
  int at_2 = min((int)((at + local_x) + at_1), (int)195);
  int at_3 = (local_x + at_1);
  int at_4 = (group_y * 8);
  int at_5 = (((at_4 + local_x) + ((local_y >> 1) * 16)) + ((local_y & 1) * 4));
  for (int ax6_0 = 0; ax6_0 < 4; ++ax6_0) {
    barrier(CLK_LOCAL_MEM_FENCE);
    int at_6 = (at_2 + (ax6_0 * 392));
    for (int ax0_ax1_ax2_ax3_ax4_fused_0 = 0; ax0_ax1_ax2_ax3_ax4_fused_0 < 2; ++ax0_ax1_ax2_ax3_ax4_fused_0) {
      patch_shared_ptr[(at_3 + (ax0_ax1_ax2_ax3_ax4_fused_0 * 16))] = data_ptr[(at_6 + (ax0_ax1_ax2_ax3_ax4_fused_0 * 196))];
    }
    int at_7 = (at_5 + (ax6_0 * 128));
    for (int ax0_ax1_ax2_ax3_ax4_fused_0_1 = 0; ax0_ax1_ax2_ax3_ax4_fused_0_1 < 4; ++ax0_ax1_ax2_ax3_ax4_fused_0_1) {
      kernel_shared_ptr[(at_3 + (ax0_ax1_ax2_ax3_ax4_fused_0_1 * 16))] = weight_ptr[(at_7 + (ax0_ax1_ax2_ax3_ax4_fused_0_1 * 32))];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int ax6_1 = 0; ax6_1 < 2; ++ax6_1) {
      int at_8 = (local_x + (ax6_1 * 16));
      texels_local_ptr[0] = patch_shared_ptr[at_8];
      texels_local_ptr[1] = patch_shared_ptr[(at_8 + 4)];
      texels_local_ptr[2] = patch_shared_ptr[(at_8 + 8)];
      texels_local_ptr[3] = patch_shared_ptr[(at_8 + 12)];
      int at_9 = (local_y + (ax6_1 * 32));
      float4 value = kernel_shared_ptr[at_9];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s0), value, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s0), value, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s0), value, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s0), value, acc_local_ptr[3]);
      float4 value_1 = kernel_shared_ptr[(at_9 + 4)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s0), value_1, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s0), value_1, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s0), value_1, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s0), value_1, acc_local_ptr[7]);
      float4 value_2 = kernel_shared_ptr[(at_9 + 8)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s1), value_2, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s1), value_2, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s1), value_2, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s1), value_2, acc_local_ptr[3]);
      float4 value_3 = kernel_shared_ptr[(at_9 + 12)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s1), value_3, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s1), value_3, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s1), value_3, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s1), value_3, acc_local_ptr[7]);
      float4 value_4 = kernel_shared_ptr[(at_9 + 16)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s2), value_4, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s2), value_4, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s2), value_4, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s2), value_4, acc_local_ptr[3]);
      float4 value_5 = kernel_shared_ptr[(at_9 + 20)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s2), value_5, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s2), value_5, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s2), value_5, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s2), value_5, acc_local_ptr[7]);
      float4 value_6 = kernel_shared_ptr[(at_9 + 24)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s3), value_6, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s3), value_6, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s3), value_6, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s3), value_6, acc_local_ptr[3]);
      float4 value_7 = kernel_shared_ptr[(at_9 + 28)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s3), value_7, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s3), value_7, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s3), value_7, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s3), value_7, acc_local_ptr[7]);
    }
  }
  int at_10 = (at_4 + local_y);
  int at_11 = ((((group_y * 1568) + at) + local_x) + (local_y * 196));
  float4 value_8 = bias_ptr[at_10];
  float4 operand = (acc_local_ptr[0] + value_8);
  relu_ptr[at_11] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  bool inside = (group_x < 12);
  if (inside) {
    float4 operand_1 = (acc_local_ptr[1] + value_8);
    relu_ptr[(at_11 + 4)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_2 = (acc_local_ptr[2] + value_8);
    relu_ptr[(at_11 + 8)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_3 = (acc_local_ptr[3] + value_8);
    relu_ptr[(at_11 + 12)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  float4 value_9 = bias_ptr[(at_10 + 4)];
  float4 operand_4 = (acc_local_ptr[4] + value_9);
  relu_ptr[(at_11 + 784)] = select(operand_4, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_4 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  if (inside) {
    float4 operand_5 = (acc_local_ptr[5] + value_9);
    relu_ptr[(at_11 + 788)] = select(operand_5, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_5 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_6 = (acc_local_ptr[6] + value_9);
    relu_ptr[(at_11 + 792)] = select(operand_6, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_6 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_7 = (acc_local_ptr[7] + value_9);
    relu_ptr[(at_11 + 796)] = select(operand_7, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_7 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

