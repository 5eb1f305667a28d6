// Function: main_kernel
#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(std430, binding = 0) restrict readonly buffer Bias { uvec2 bias[]; };
layout(std430, binding = 1) restrict readonly buffer Data { uvec2 data[]; };
layout(std430, binding = 2) restrict writeonly buffer Relu { uvec2 relu[]; };
layout(std430, binding = 3) restrict readonly buffer Weight { uvec2 weight[]; };
shared uvec2 operands[576];
shared vec4 stored_sums[320];
uvec2 bits_of_half4(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }
vec4 half4_of(uvec2 pairs) { return vec4(unpackHalf2x16(pairs.x), unpackHalf2x16(pairs.y)); }
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u; }
float max_with_nan(float a, float b) { return mix(mix(max(a, b), b, is_nan(b)), a, is_nan(a)); }
vec4 max_with_nan(vec4 a, vec4 b) { return vec4(max_with_nan(a.x, b.x), max_with_nan(a.y, b.y), max_with_nan(a.z, b.z), max_with_nan(a.w, b.w)); }

// oc = group_y * 8 + (0 to 7)
// y * 28 + x = group_x * 32 + (0 to 31)
// sum over ic 8, ky 3, kx 3, ilane 4
// data[n 1][ic 8][y 28][x 28][lane 4]
// weight[ic 8][ky 3][kx 3][ilane 4][oc 16][lane 4]
// relu[n 1][oc 16][y 28][x 28][lane 4]
void main() {
  int item = int(gl_SubgroupID * 32 + gl_SubgroupInvocationID);
  int blockIdx_y = int(gl_WorkGroupID.y);
  int group_y = blockIdx_y;
  float acc_local[16];
  int blockIdx_x = int(gl_WorkGroupID.x);
  int threadIdx_x = item % 4;
  int threadIdx_y = item / 4 % 16;
  int group_x = blockIdx_x;
  int local_x = threadIdx_x;
  int local_y = threadIdx_y;
  vec4 stored = vec4(0.0);
  acc_local[0] = stored.x;
  acc_local[1] = stored.y;
  acc_local[2] = stored.z;
  acc_local[3] = stored.w;
  vec4 stored_1 = vec4(0.0);
  acc_local[4] = stored_1.x;
  acc_local[5] = stored_1.y;
  acc_local[6] = stored_1.z;
  acc_local[7] = stored_1.w;
  vec4 stored_2 = vec4(0.0);
  acc_local[8] = stored_2.x;
  acc_local[9] = stored_2.y;
  acc_local[10] = stored_2.z;
  acc_local[11] = stored_2.w;
  vec4 stored_3 = vec4(0.0);
  acc_local[12] = stored_3.x;
  acc_local[13] = stored_3.y;
  acc_local[14] = stored_3.z;
  acc_local[15] = stored_3.w;
  coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[2];
  sums[0] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
  sums[1] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
  int at = local_y & 7;
  int at_1 = group_y * 8;
  int at_2 = at_1 + local_x * 576 + at;
  int at_3 = local_y >> 3;
  int at_4 = at & 1;
  int at_5 = group_x * 32;
  int at_6 = at_3 * 16;
  int at_7 = (at >> 1) * 2;
  int at_8 = min(at_5 + at_6 + (at_4 >> 1) * 8 + at_7 + (at_4 & 1), 783);
  int at_9 = (at_8 * 1171) >> 15;
  int at_10 = at_8 - at_9 * 28;
  int at_11 = at_5 + at + at_6;
  int at_12 = local_x * 784;
  int at_13 = at_12 + min(at_11, 783) - 29;
  int at_14 = at_4 + 2;
  int at_15 = min(at_5 + at_6 + at_7 + (at_14 >> 1) * 8 + (at_14 & 1), 783);
  int at_16 = (at_15 * 1171) >> 15;
  int at_17 = at_15 - at_16 * 28;
  int at_18 = at_12 + min(at_11 + 8, 783) - 29;
  int at_19 = at >> 2;
  int at_20 = at & 3;
  int at_21 = at_3 * 288;
  int at_22 = local_x * 24 + at_21 + at_19 * 96 + at_20;
  int at_23 = local_x + at * 6 + at_21 + 192;
  for (int ic = 0; ic < 2; ic++) {
    int at_ic = at_2 + ic * 2304;
    int at_ic_1 = ic * 3136;
    int at_ic_2 = at_13 + at_ic_1;
    int at_ic_3 = at_18 + at_ic_1;
    for (int ky = 0; ky < 3; ky++) {
      int at_ic_ky = at_ic + ky * 192;
      int at_ky = at_9 + ky;
      bool inside_ky = (at_ky >= 1) && (at_ky < 29);
      int at_ky_1 = ky * 28;
      int at_ic_ky_1 = at_ic_2 + at_ky_1;
      int at_ky_2 = at_16 + ky;
      bool inside_ky_1 = (at_ky_2 >= 1) && (at_ky_2 < 29);
      int at_ic_ky_2 = at_ic_3 + at_ky_1;
      for (int kx = 0; kx < 3; kx++) {
        int at_ic_ky_kx = at_ic_ky + kx * 64;
        uvec2 weight_1 = weight[at_ic_ky_kx];
        uvec2 weight_2 = weight[at_ic_ky_kx + 16];
        uvec2 weight_3 = weight[at_ic_ky_kx + 32];
        uvec2 weight_4 = weight[at_ic_ky_kx + 48];
        int at_kx = at_10 + kx;
        bool inside = inside_ky && (at_kx >= 1) && (at_kx < 29);
        uvec2 data_1 = mix(uvec2(0u), data[mix(0, at_ic_ky_1 + kx, inside)], bvec2(inside));
        int at_kx_1 = at_17 + kx;
        bool inside_1 = inside_ky_1 && (at_kx_1 >= 1) && (at_kx_1 < 29);
        uvec2 data_2 = mix(uvec2(0u), data[mix(0, at_ic_ky_2 + kx, inside_1)], bvec2(inside_1));
        subgroupBarrier();
        operands[at_22] = weight_1;
        operands[at_22 + 6] = weight_2;
        operands[at_22 + 12] = weight_3;
        operands[at_22 + 18] = weight_4;
        operands[at_23] = data_1;
        operands[at_23 + 48] = data_2;
        subgroupBarrier();
        {
          coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> columns_0;
          coopMatLoad(columns_0, operands, at_21 + 192, 6, gl_CooperativeMatrixLayoutColumnMajor);
          coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> rows;
          coopMatLoad(rows, operands, at_21, 6, gl_CooperativeMatrixLayoutColumnMajor);
          sums[0] = coopMatMulAdd(rows, columns_0, sums[0]);
          coopMatLoad(rows, operands, at_21 + 96, 6, gl_CooperativeMatrixLayoutColumnMajor);
          sums[1] = coopMatMulAdd(rows, columns_0, sums[1]);
        }
      }
    }
  }
  subgroupBarrier();
  int at_24 = at_3 * 160;
  coopMatStore(sums[0], stored_sums, at_24, 5, gl_CooperativeMatrixLayoutColumnMajor);
  coopMatStore(sums[1], stored_sums, at_24 + 80, 5, gl_CooperativeMatrixLayoutColumnMajor);
  subgroupBarrier();
  int at_25 = local_x * 10 + at_24 + at_19 * 80 + at_20;
  vec4 own = stored_sums[at_25];
  vec4 stored_4 = vec4(acc_local[0], acc_local[1], acc_local[2], acc_local[3]) + own;
  acc_local[0] = stored_4.x;
  acc_local[1] = stored_4.y;
  acc_local[2] = stored_4.z;
  acc_local[3] = stored_4.w;
  vec4 own_1 = stored_sums[at_25 + 5];
  vec4 stored_5 = vec4(acc_local[4], acc_local[5], acc_local[6], acc_local[7]) + own_1;
  acc_local[4] = stored_5.x;
  acc_local[5] = stored_5.y;
  acc_local[6] = stored_5.z;
  acc_local[7] = stored_5.w;
  vec4 own_2 = stored_sums[at_25 + 40];
  vec4 stored_6 = vec4(acc_local[8], acc_local[9], acc_local[10], acc_local[11]) + own_2;
  acc_local[8] = stored_6.x;
  acc_local[9] = stored_6.y;
  acc_local[10] = stored_6.z;
  acc_local[11] = stored_6.w;
  vec4 own_3 = stored_sums[at_25 + 45];
  vec4 stored_7 = vec4(acc_local[12], acc_local[13], acc_local[14], acc_local[15]) + own_3;
  acc_local[12] = stored_7.x;
  acc_local[13] = stored_7.y;
  acc_local[14] = stored_7.z;
  acc_local[15] = stored_7.w;
  bool inside_2 = (group_x * 2 + at_3) < 49;
  int at_26 = at_1 + at;
  int at_27 = group_y * 6272 + at_5 + local_x * 2 + at * 784 + at_6;
  if (inside_2) {
    relu[at_27] = bits_of_half4(max_with_nan(vec4(acc_local[0], acc_local[1], acc_local[2], acc_local[3]) + half4_of(bias[at_26]), vec4(0.0)));
  }
  if (inside_2) {
    relu[at_27 + 1] = bits_of_half4(max_with_nan(vec4(acc_local[4], acc_local[5], acc_local[6], acc_local[7]) + half4_of(bias[at_26]), vec4(0.0)));
  }
  if (inside_2) {
    relu[at_27 + 8] = bits_of_half4(max_with_nan(vec4(acc_local[8], acc_local[9], acc_local[10], acc_local[11]) + half4_of(bias[at_26]), vec4(0.0)));
  }
  if (inside_2) {
    relu[at_27 + 9] = bits_of_half4(max_with_nan(vec4(acc_local[12], acc_local[13], acc_local[14], acc_local[15]) + half4_of(bias[at_26]), vec4(0.0)));
  }
}

