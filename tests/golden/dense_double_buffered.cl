// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  float4 acc_local_ptr[8];
  __local float4 patch_shared_ptr[144];
  __local float4 kernel_shared_ptr[256];
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
  float4 patch_shared_ahead_ptr[4];
  float4 kernel_shared_ahead_ptr[8];
  int at = (group_x * 16);
  int at_1 = (at + local_y);
  int at_2 = ((local_x * 18) + local_y);
  for (int ax1_ax2_ax0_fused_0 = 0; ax1_ax2_ax0_fused_0 < 4; ++ax1_ax2_ax0_fused_0) {
    int at_3 = (ax1_ax2_ax0_fused_0 * 4);
    patch_shared_ptr[(at_2 + at_3)] = data_ptr[(local_x + (min((int)(at_1 + at_3), (int)32) * 12))];
  }
  int at_4 = ((convert_int(get_group_id(1))) * 8);
  int at_5 = (((at_4 + local_x) + ((local_y >> 1) * 16)) + ((local_y & 1) * 4));
  int at_6 = (local_x + (local_y * 4));
  for (int ax0_ax1_ax2_fused_0 = 0; ax0_ax1_ax2_fused_0 < 8; ++ax0_ax1_ax2_fused_0) {
    kernel_shared_ptr[(at_6 + (ax0_ax1_ax2_fused_0 * 16))] = weight_ptr[(at_5 + (ax0_ax1_ax2_fused_0 * 32))];
  }
  int at_7 = (local_x + 4);
  for (int ax6_0 = 0; ax6_0 < 3; ++ax6_0) {
    barrier(CLK_LOCAL_MEM_FENCE);
    bool inside = (ax6_0 < 2);
    int at_8 = (at_7 + (ax6_0 * 4));
    int at_9 = (at_5 + (ax6_0 * 256));
    if (inside) {
      patch_shared_ahead_ptr[0] = data_ptr[(at_8 + (min((int)(at_1 + (0 * 4)), (int)32) * 12))];
      patch_shared_ahead_ptr[1] = data_ptr[(at_8 + (min((int)(at_1 + (1 * 4)), (int)32) * 12))];
      patch_shared_ahead_ptr[2] = data_ptr[(at_8 + (min((int)(at_1 + (2 * 4)), (int)32) * 12))];
      patch_shared_ahead_ptr[3] = data_ptr[(at_8 + (min((int)(at_1 + (3 * 4)), (int)32) * 12))];
      kernel_shared_ahead_ptr[0] = weight_ptr[((at_9 + (0 * 32)) + 256)];
      kernel_shared_ahead_ptr[1] = weight_ptr[((at_9 + (1 * 32)) + 256)];
      kernel_shared_ahead_ptr[2] = weight_ptr[((at_9 + (2 * 32)) + 256)];
      kernel_shared_ahead_ptr[3] = weight_ptr[((at_9 + (3 * 32)) + 256)];
      kernel_shared_ahead_ptr[4] = weight_ptr[((at_9 + (4 * 32)) + 256)];
      kernel_shared_ahead_ptr[5] = weight_ptr[((at_9 + (5 * 32)) + 256)];
      kernel_shared_ahead_ptr[6] = weight_ptr[((at_9 + (6 * 32)) + 256)];
      kernel_shared_ahead_ptr[7] = weight_ptr[((at_9 + (7 * 32)) + 256)];
    }
    int at_10 = (ax6_0 & 1);
    int at_11 = (local_x + (at_10 * 72));
    int at_12 = (local_y + (at_10 * 128));
    for (int ax6_1 = 0; ax6_1 < 4; ++ax6_1) {
      int at_13 = (at_11 + (ax6_1 * 18));
      texels_local_ptr[0] = patch_shared_ptr[at_13];
      texels_local_ptr[1] = patch_shared_ptr[(at_13 + 4)];
      texels_local_ptr[2] = patch_shared_ptr[(at_13 + 8)];
      texels_local_ptr[3] = patch_shared_ptr[(at_13 + 12)];
      int at_14 = (at_12 + (ax6_1 * 32));
      float4 value = kernel_shared_ptr[at_14];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s0), value, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s0), value, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s0), value, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s0), value, acc_local_ptr[3]);
      float4 value_1 = kernel_shared_ptr[(at_14 + 4)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s0), value_1, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s0), value_1, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s0), value_1, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s0), value_1, acc_local_ptr[7]);
      float4 value_2 = kernel_shared_ptr[(at_14 + 8)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s1), value_2, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s1), value_2, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s1), value_2, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s1), value_2, acc_local_ptr[3]);
      float4 value_3 = kernel_shared_ptr[(at_14 + 12)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s1), value_3, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s1), value_3, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s1), value_3, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s1), value_3, acc_local_ptr[7]);
      float4 value_4 = kernel_shared_ptr[(at_14 + 16)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s2), value_4, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s2), value_4, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s2), value_4, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s2), value_4, acc_local_ptr[3]);
      float4 value_5 = kernel_shared_ptr[(at_14 + 20)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s2), value_5, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s2), value_5, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s2), value_5, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s2), value_5, acc_local_ptr[7]);
      float4 value_6 = kernel_shared_ptr[(at_14 + 24)];
      acc_local_ptr[0] = mad((float4)((texels_local_ptr[0]).s3), value_6, acc_local_ptr[0]);
      acc_local_ptr[1] = mad((float4)((texels_local_ptr[1]).s3), value_6, acc_local_ptr[1]);
      acc_local_ptr[2] = mad((float4)((texels_local_ptr[2]).s3), value_6, acc_local_ptr[2]);
      acc_local_ptr[3] = mad((float4)((texels_local_ptr[3]).s3), value_6, acc_local_ptr[3]);
      float4 value_7 = kernel_shared_ptr[(at_14 + 28)];
      acc_local_ptr[4] = mad((float4)((texels_local_ptr[0]).s3), value_7, acc_local_ptr[4]);
      acc_local_ptr[5] = mad((float4)((texels_local_ptr[1]).s3), value_7, acc_local_ptr[5]);
      acc_local_ptr[6] = mad((float4)((texels_local_ptr[2]).s3), value_7, acc_local_ptr[6]);
      acc_local_ptr[7] = mad((float4)((texels_local_ptr[3]).s3), value_7, acc_local_ptr[7]);
    }
    int at_15 = ((ax6_0 + 1) & 1);
    int at_16 = (at_2 + (at_15 * 72));
    int at_17 = (at_6 + (at_15 * 128));
    if (inside) {
      patch_shared_ptr[(at_16 + (0 * 4))] = patch_shared_ahead_ptr[0];
      patch_shared_ptr[(at_16 + (1 * 4))] = patch_shared_ahead_ptr[1];
      patch_shared_ptr[(at_16 + (2 * 4))] = patch_shared_ahead_ptr[2];
      patch_shared_ptr[(at_16 + (3 * 4))] = patch_shared_ahead_ptr[3];
      kernel_shared_ptr[(at_17 + (0 * 16))] = kernel_shared_ahead_ptr[0];
      kernel_shared_ptr[(at_17 + (1 * 16))] = kernel_shared_ahead_ptr[1];
      kernel_shared_ptr[(at_17 + (2 * 16))] = kernel_shared_ahead_ptr[2];
      kernel_shared_ptr[(at_17 + (3 * 16))] = kernel_shared_ahead_ptr[3];
      kernel_shared_ptr[(at_17 + (4 * 16))] = kernel_shared_ahead_ptr[4];
      kernel_shared_ptr[(at_17 + (5 * 16))] = kernel_shared_ahead_ptr[5];
      kernel_shared_ptr[(at_17 + (6 * 16))] = kernel_shared_ahead_ptr[6];
      kernel_shared_ptr[(at_17 + (7 * 16))] = kernel_shared_ahead_ptr[7];
    }
  }
  int at_18 = (at + local_x);
  bool inside_1 = (at_18 < 33);
  int at_19 = (at_4 + local_y);
  int at_20 = ((at_19 + (group_x * 256)) + (local_x * 16));
  if (inside_1) {
    float4 operand = (acc_local_ptr[0] + bias_ptr[at_19]);
    relu_ptr[at_20] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_2 = (at_18 < 29);
  if (inside_2) {
    float4 operand_1 = (acc_local_ptr[1] + bias_ptr[at_19]);
    relu_ptr[(at_20 + 64)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_3 = (at_18 < 25);
  if (inside_3) {
    float4 operand_2 = (acc_local_ptr[2] + bias_ptr[at_19]);
    relu_ptr[(at_20 + 128)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_4 = (at_18 < 21);
  if (inside_4) {
    float4 operand_3 = (acc_local_ptr[3] + bias_ptr[at_19]);
    relu_ptr[(at_20 + 192)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_1) {
    float4 operand_4 = (acc_local_ptr[4] + bias_ptr[(at_19 + 4)]);
    relu_ptr[(at_20 + 4)] = select(operand_4, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_4 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_2) {
    float4 operand_5 = (acc_local_ptr[5] + bias_ptr[(at_19 + 4)]);
    relu_ptr[(at_20 + 68)] = select(operand_5, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_5 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_3) {
    float4 operand_6 = (acc_local_ptr[6] + bias_ptr[(at_19 + 4)]);
    relu_ptr[(at_20 + 132)] = select(operand_6, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_6 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_4) {
    float4 operand_7 = (acc_local_ptr[7] + bias_ptr[(at_19 + 4)]);
    relu_ptr[(at_20 + 196)] = select(operand_7, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_7 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

