#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#define SUB_GROUP_ITEM ((int)(get_sub_group_id() * get_max_sub_group_size() + get_sub_group_local_id()))
#if defined(cl_intel_required_subgroup_size)
#define SUB_GROUPS_OF_64 __attribute__((intel_reqd_sub_group_size(64)))
#elif defined(cl_qcom_reqd_sub_group_size)
#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable
#define SUB_GROUPS_OF_64 __attribute__((qcom_reqd_sub_group_size("half")))
#else
#define SUB_GROUPS_OF_64
#endif
float sub_group_max_with_nan_of_64(float x) { return get_max_sub_group_size() == 64 ? (sub_group_any(isnan(x)) ? NAN : sub_group_reduce_max(x)) : NAN; }
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) SUB_GROUPS_OF_64 void main_kernel(__global float* restrict x0_ptr, __global float* restrict x0_red_ptr) {
  int group_x = (convert_int(get_group_id(0)));
  float x0_red_share_0;
  __local float partial_ptr[2];
  int local_x = (convert_int(SUB_GROUP_ITEM));
  x0_red_share_0 = -INFINITY;
  int at = ((group_x * 509) + local_x);
  float operand = x0_red_share_0;
  float operand_1 = x0_ptr[at];
  x0_red_share_0 = select(operand_1, select(operand, operand_1, (convert_int((operand < operand_1)))), (convert_int((operand_1 == operand_1))));
  float operand_2 = x0_red_share_0;
  float operand_3 = x0_ptr[(at + 128)];
  x0_red_share_0 = select(operand_3, select(operand_2, operand_3, (convert_int((operand_2 < operand_3)))), (convert_int((operand_3 == operand_3))));
  float operand_4 = x0_red_share_0;
  float operand_5 = x0_ptr[(at + 256)];
  x0_red_share_0 = select(operand_5, select(operand_4, operand_5, (convert_int((operand_4 < operand_5)))), (convert_int((operand_5 == operand_5))));
  if (local_x < 125) {
    float operand_6 = x0_red_share_0;
    float operand_7 = x0_ptr[(at + 384)];
    x0_red_share_0 = select(operand_7, select(operand_6, operand_7, (convert_int((operand_6 < operand_7)))), (convert_int((operand_7 == operand_7))));
  }
  x0_red_share_0 = x0_red_share_0;
  x0_red_share_0 = sub_group_max_with_nan_of_64(x0_red_share_0);
  if ((local_x & 63) < 1) {
    partial_ptr[(local_x >> 6)] = x0_red_share_0;
  }
  x0_red_share_0 = -INFINITY;
  barrier(CLK_LOCAL_MEM_FENCE);
  float operand_8 = x0_red_share_0;
  float operand_9 = partial_ptr[0];
  x0_red_share_0 = select(operand_9, select(operand_8, operand_9, (convert_int((operand_8 < operand_9)))), (convert_int((operand_9 == operand_9))));
  float operand_10 = x0_red_share_0;
  float operand_11 = partial_ptr[1];
  x0_red_share_0 = select(operand_11, select(operand_10, operand_11, (convert_int((operand_10 < operand_11)))), (convert_int((operand_11 == operand_11))));
  if (local_x < 1) {
    x0_red_ptr[group_x] = x0_red_share_0;
  }
}
