#version 450
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(std430, binding = 0) restrict readonly buffer X0 { float x0[]; };
layout(std430, binding = 1) restrict writeonly buffer X0_red { float x0_red[]; };
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u; }
float max_with_nan(float a, float b) { return mix(mix(max(a, b), b, is_nan(b)), a, is_nan(a)); }

float sub_group_shuffle_xor_of_8(float x, int lanes) { return gl_SubgroupSize == 8u ? (subgroupShuffleXor(x, uint(lanes))) : uintBitsToFloat(0x7FC00000u); }
void main() {
  int item = int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID);
  int blockIdx_x = int(gl_WorkGroupID.x);
  int group_x = blockIdx_x;
  float x0_red_share;
  float received;
  int threadIdx_x = item % 8;
  int local_x = threadIdx_x;
  x0_red_share = -uintBitsToFloat(0x7F800000u);
  int at = local_x >> 2;
  int at_1 = local_x & 3;
  int at_2 = group_x * 1018 + at * 509 + at_1;
  for (int full = 0; full < 127; full++) {
    x0_red_share = max_with_nan(x0_red_share, x0[at_2 + full * 4]);
  }
  bool inside = at_1 < 1;
  if (inside) {
    x0_red_share = max_with_nan(x0_red_share, x0[at_2 + 508]);
  }
  x0_red_share = x0_red_share;
  float value = x0_red_share;
  received = sub_group_shuffle_xor_of_8(value, 2);
  x0_red_share = max_with_nan(value, received);
  float value_1 = x0_red_share;
  received = sub_group_shuffle_xor_of_8(value_1, 1);
  x0_red_share = max_with_nan(value_1, received);
  if (inside) {
    x0_red[group_x * 2 + at] = x0_red_share;
  }
}
