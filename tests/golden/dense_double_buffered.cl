// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr);
// n = group_y * 8 + local_y + (0 to 1) * 4
// m = group_x * 16 + local_x + (0 to 3) * 4
// sum over k 12, kstep 4
// data[m 33][k 48]
// weight[k 48][n 16][lane 4]
// relu[m 33][n 64]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __global float4* restrict relu_ptr, __global float4* restrict weight_ptr) {
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3, acc_local_4, acc_local_5, acc_local_6, acc_local_7;
  __local float4 patch_shared_ptr[144];
  __local float4 kernel_shared_ptr[256];
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
  float4 patch_shared_ahead_0, patch_shared_ahead_1, patch_shared_ahead_2, patch_shared_ahead_3;
  float4 kernel_shared_ahead_0, kernel_shared_ahead_1, kernel_shared_ahead_2, kernel_shared_ahead_3, kernel_shared_ahead_4, kernel_shared_ahead_5, kernel_shared_ahead_6, kernel_shared_ahead_7;
  int at = (group_x * 16);
  int at_1 = (at + local_y);
  int at_2 = ((local_x * 18) + local_y);
  for (int patch_texel = 0; patch_texel < 4; ++patch_texel) {
    int at_patch_texel = (patch_texel * 4);
    patch_shared_ptr[(at_2 + at_patch_texel)] = data_ptr[(local_x + (min((int)(at_1 + at_patch_texel), (int)32) * 12))];
  }
  int at_3 = ((convert_int(get_group_id(1))) * 8);
  int at_4 = (((at_3 + local_x) + ((local_y >> 1) * 16)) + ((local_y & 1) * 4));
  int at_5 = (local_x + (local_y * 4));
  for (int kernel_texel = 0; kernel_texel < 8; ++kernel_texel) {
    kernel_shared_ptr[(at_5 + (kernel_texel * 16))] = weight_ptr[(at_4 + (kernel_texel * 32))];
  }
  int at_6 = (local_x + 4);
  for (int k = 0; k < 3; ++k) {
    barrier(CLK_LOCAL_MEM_FENCE);
    bool inside_k = (k < 2);
    int at_k = (at_6 + (k * 4));
    int at_k_1 = (at_4 + (k * 256));
    if (inside_k) {
      patch_shared_ahead_0 = data_ptr[(at_k + (min((int)(at_1 + (0 * 4)), (int)32) * 12))];
      patch_shared_ahead_1 = data_ptr[(at_k + (min((int)(at_1 + (1 * 4)), (int)32) * 12))];
      patch_shared_ahead_2 = data_ptr[(at_k + (min((int)(at_1 + (2 * 4)), (int)32) * 12))];
      patch_shared_ahead_3 = data_ptr[(at_k + (min((int)(at_1 + (3 * 4)), (int)32) * 12))];
      kernel_shared_ahead_0 = weight_ptr[((at_k_1 + (0 * 32)) + 256)];
      kernel_shared_ahead_1 = weight_ptr[((at_k_1 + (1 * 32)) + 256)];
      kernel_shared_ahead_2 = weight_ptr[((at_k_1 + (2 * 32)) + 256)];
      kernel_shared_ahead_3 = weight_ptr[((at_k_1 + (3 * 32)) + 256)];
      kernel_shared_ahead_4 = weight_ptr[((at_k_1 + (4 * 32)) + 256)];
      kernel_shared_ahead_5 = weight_ptr[((at_k_1 + (5 * 32)) + 256)];
      kernel_shared_ahead_6 = weight_ptr[((at_k_1 + (6 * 32)) + 256)];
      kernel_shared_ahead_7 = weight_ptr[((at_k_1 + (7 * 32)) + 256)];
    }
    int at_k_2 = (k & 1);
    int at_k_3 = (local_x + (at_k_2 * 72));
    int at_k_4 = (local_y + (at_k_2 * 128));
    for (int k_1 = 0; k_1 < 4; ++k_1) {
      int at_k_5 = (at_k_3 + (k_1 * 18));
      texels_local_0 = patch_shared_ptr[at_k_5];
      texels_local_1 = patch_shared_ptr[(at_k_5 + 4)];
      texels_local_2 = patch_shared_ptr[(at_k_5 + 8)];
      texels_local_3 = patch_shared_ptr[(at_k_5 + 12)];
      int at_k_6 = (at_k_4 + (k_1 * 32));
      float4 value = kernel_shared_ptr[at_k_6];
      acc_local_0 = mad((float4)((texels_local_0).s0), value, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s0), value, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s0), value, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s0), value, acc_local_3);
      float4 value_1 = kernel_shared_ptr[(at_k_6 + 4)];
      acc_local_4 = mad((float4)((texels_local_0).s0), value_1, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s0), value_1, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s0), value_1, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s0), value_1, acc_local_7);
      float4 value_2 = kernel_shared_ptr[(at_k_6 + 8)];
      acc_local_0 = mad((float4)((texels_local_0).s1), value_2, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s1), value_2, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s1), value_2, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s1), value_2, acc_local_3);
      float4 value_3 = kernel_shared_ptr[(at_k_6 + 12)];
      acc_local_4 = mad((float4)((texels_local_0).s1), value_3, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s1), value_3, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s1), value_3, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s1), value_3, acc_local_7);
      float4 value_4 = kernel_shared_ptr[(at_k_6 + 16)];
      acc_local_0 = mad((float4)((texels_local_0).s2), value_4, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s2), value_4, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s2), value_4, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s2), value_4, acc_local_3);
      float4 value_5 = kernel_shared_ptr[(at_k_6 + 20)];
      acc_local_4 = mad((float4)((texels_local_0).s2), value_5, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s2), value_5, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s2), value_5, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s2), value_5, acc_local_7);
      float4 value_6 = kernel_shared_ptr[(at_k_6 + 24)];
      acc_local_0 = mad((float4)((texels_local_0).s3), value_6, acc_local_0);
      acc_local_1 = mad((float4)((texels_local_1).s3), value_6, acc_local_1);
      acc_local_2 = mad((float4)((texels_local_2).s3), value_6, acc_local_2);
      acc_local_3 = mad((float4)((texels_local_3).s3), value_6, acc_local_3);
      float4 value_7 = kernel_shared_ptr[(at_k_6 + 28)];
      acc_local_4 = mad((float4)((texels_local_0).s3), value_7, acc_local_4);
      acc_local_5 = mad((float4)((texels_local_1).s3), value_7, acc_local_5);
      acc_local_6 = mad((float4)((texels_local_2).s3), value_7, acc_local_6);
      acc_local_7 = mad((float4)((texels_local_3).s3), value_7, acc_local_7);
    }
    int at_k_7 = ((k + 1) & 1);
    int at_k_8 = (at_2 + (at_k_7 * 72));
    int at_k_9 = (at_5 + (at_k_7 * 128));
    if (inside_k) {
      patch_shared_ptr[(at_k_8 + (0 * 4))] = patch_shared_ahead_0;
      patch_shared_ptr[(at_k_8 + (1 * 4))] = patch_shared_ahead_1;
      patch_shared_ptr[(at_k_8 + (2 * 4))] = patch_shared_ahead_2;
      patch_shared_ptr[(at_k_8 + (3 * 4))] = patch_shared_ahead_3;
      kernel_shared_ptr[(at_k_9 + (0 * 16))] = kernel_shared_ahead_0;
      kernel_shared_ptr[(at_k_9 + (1 * 16))] = kernel_shared_ahead_1;
      kernel_shared_ptr[(at_k_9 + (2 * 16))] = kernel_shared_ahead_2;
      kernel_shared_ptr[(at_k_9 + (3 * 16))] = kernel_shared_ahead_3;
      kernel_shared_ptr[(at_k_9 + (4 * 16))] = kernel_shared_ahead_4;
      kernel_shared_ptr[(at_k_9 + (5 * 16))] = kernel_shared_ahead_5;
      kernel_shared_ptr[(at_k_9 + (6 * 16))] = kernel_shared_ahead_6;
      kernel_shared_ptr[(at_k_9 + (7 * 16))] = kernel_shared_ahead_7;
    }
  }
  int at_7 = (at + local_x);
  bool inside = (at_7 < 33);
  int at_8 = (at_3 + local_y);
  int at_9 = ((at_8 + (group_x * 256)) + (local_x * 16));
  if (inside) {
    float4 operand = (acc_local_0 + bias_ptr[at_8]);
    relu_ptr[at_9] = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_1 = (at_7 < 29);
  if (inside_1) {
    float4 operand_1 = (acc_local_1 + bias_ptr[at_8]);
    relu_ptr[(at_9 + 64)] = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_2 = (at_7 < 25);
  if (inside_2) {
    float4 operand_2 = (acc_local_2 + bias_ptr[at_8]);
    relu_ptr[(at_9 + 128)] = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  bool inside_3 = (at_7 < 21);
  if (inside_3) {
    float4 operand_3 = (acc_local_3 + bias_ptr[at_8]);
    relu_ptr[(at_9 + 192)] = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside) {
    float4 operand_4 = (acc_local_4 + bias_ptr[(at_8 + 4)]);
    relu_ptr[(at_9 + 4)] = select(operand_4, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_4 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_1) {
    float4 operand_5 = (acc_local_5 + bias_ptr[(at_8 + 4)]);
    relu_ptr[(at_9 + 68)] = select(operand_5, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_5 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_2) {
    float4 operand_6 = (acc_local_6 + bias_ptr[(at_8 + 4)]);
    relu_ptr[(at_9 + 132)] = select(operand_6, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_6 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
  if (inside_3) {
    float4 operand_7 = (acc_local_7 + bias_ptr[(at_8 + 4)]);
    relu_ptr[(at_9 + 196)] = select(operand_7, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_7 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
  }
}

