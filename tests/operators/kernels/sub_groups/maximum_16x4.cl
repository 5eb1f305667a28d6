#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#define SUB_GROUP_ITEM ((int)(get_sub_group_id() * get_max_sub_group_size() + get_sub_group_local_id()))
#ifdef cl_qcom_subgroup_shuffle
#pragma OPENCL EXTENSION cl_qcom_subgroup_shuffle : enable
#define SHUFFLE_XOR(x, lanes) qcom_sub_group_shuffle_xor(x, lanes, CLK_SUB_GROUP_SHUFFLE_WIDTH_WAVE_SIZE_QCOM, x)
#else
#ifdef cl_khr_subgroup_shuffle
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#endif
#define SHUFFLE_XOR(x, lanes) sub_group_shuffle_xor(x, lanes)
#endif
#if defined(cl_intel_required_subgroup_size)
#define SUB_GROUPS_OF_64 __attribute__((intel_reqd_sub_group_size(64)))
#elif defined(cl_qcom_reqd_sub_group_size)
#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable
#define SUB_GROUPS_OF_64 __attribute__((qcom_reqd_sub_group_size("half")))
#else
#define SUB_GROUPS_OF_64
#endif
float sub_group_shuffle_xor_of_64(float x, int lanes) { return get_max_sub_group_size() == 64 ? (SHUFFLE_XOR(x, lanes)) : NAN; }
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) SUB_GROUPS_OF_64 void main_kernel(__global float* restrict x0_ptr, __global float* restrict x0_red_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  float x0_red_share_0;
  float received_0;
  int local_x = (convert_int(SUB_GROUP_ITEM));
  x0_red_share_0 = -INFINITY;
  int at = ((group_x * 4) + (local_x >> 4));
  int at_1 = (local_x & 15);
  int at_2 = ((min((int)at, (int)9) * 509) + at_1);
  for (int full = 0; full < 31; ++full) {
    float operand = x0_red_share_0;
    float operand_1 = x0_ptr[(at_2 + (full * 16))];
    x0_red_share_0 = select(operand_1, select(operand, operand_1, (convert_int((operand < operand_1)))), (convert_int((operand_1 == operand_1))));
  }
  if (at_1 < 13) {
    float operand_2 = x0_red_share_0;
    float operand_3 = x0_ptr[(at_2 + 496)];
    x0_red_share_0 = select(operand_3, select(operand_2, operand_3, (convert_int((operand_2 < operand_3)))), (convert_int((operand_3 == operand_3))));
  }
  x0_red_share_0 = x0_red_share_0;
  float value = x0_red_share_0;
  received_0 = sub_group_shuffle_xor_of_64(value, 8);
  float operand_4 = received_0;
  x0_red_share_0 = select(operand_4, select(value, operand_4, (convert_int((value < operand_4)))), (convert_int((operand_4 == operand_4))));
  float value_1 = x0_red_share_0;
  received_0 = sub_group_shuffle_xor_of_64(value_1, 4);
  float operand_5 = received_0;
  x0_red_share_0 = select(operand_5, select(value_1, operand_5, (convert_int((value_1 < operand_5)))), (convert_int((operand_5 == operand_5))));
  float value_2 = x0_red_share_0;
  received_0 = sub_group_shuffle_xor_of_64(value_2, 2);
  float operand_6 = received_0;
  x0_red_share_0 = select(operand_6, select(value_2, operand_6, (convert_int((value_2 < operand_6)))), (convert_int((operand_6 == operand_6))));
  float value_3 = x0_red_share_0;
  received_0 = sub_group_shuffle_xor_of_64(value_3, 1);
  float operand_7 = received_0;
  x0_red_share_0 = select(operand_7, select(value_3, operand_7, (convert_int((value_3 < operand_7)))), (convert_int((operand_7 == operand_7))));
  if (at_1 < 1) {
    if (((group_x * 2) + (local_x >> 5)) < 5) {
      x0_red_ptr[at] = x0_red_share_0;
    }
  }
}
