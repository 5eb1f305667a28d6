#version 450
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_vote : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(std430, binding = 0) restrict readonly buffer X0 { float x0[]; };
layout(std430, binding = 1) restrict writeonly buffer X0_red { float x0_red[]; };
shared float partial[2];
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u; }
float max_with_nan(float a, float b) { return mix(mix(max(a, b), b, is_nan(b)), a, is_nan(a)); }

float sub_group_max_with_nan_of_64(float x) { return gl_SubgroupSize == 64u ? (subgroupAny((floatBitsToUint(x) & 0x7FFFFFFFu) > 0x7F800000u) ? uintBitsToFloat(0x7FC00000u) : subgroupMax(x)) : uintBitsToFloat(0x7FC00000u); }
void main() {
  int item = int(gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID);
  int blockIdx_x = int(gl_WorkGroupID.x);
  int group_x = blockIdx_x;
  float x0_red_share;
  int threadIdx_x = item % 128;
  int local_x = threadIdx_x;
  x0_red_share = -uintBitsToFloat(0x7F800000u);
  int at = group_x * 509 + local_x;
  x0_red_share = max_with_nan(x0_red_share, x0[at]);
  x0_red_share = max_with_nan(x0_red_share, x0[at + 128]);
  x0_red_share = max_with_nan(x0_red_share, x0[at + 256]);
  if (local_x < 125) {
    x0_red_share = max_with_nan(x0_red_share, x0[at + 384]);
  }
  x0_red_share = x0_red_share;
  x0_red_share = sub_group_max_with_nan_of_64(x0_red_share);
  if ((local_x & 63) < 1) {
    partial[local_x >> 6] = x0_red_share;
  }
  x0_red_share = -uintBitsToFloat(0x7F800000u);
  barrier();
  x0_red_share = max_with_nan(x0_red_share, partial[0]);
  x0_red_share = max_with_nan(x0_red_share, partial[1]);
  if (local_x < 1) {
    x0_red[group_x] = x0_red_share;
  }
}
