// Function: main_kernel
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)

#define READ_PLAIN_IMAGEH(image, sampler, coord) read_imageh(image, (coord).xy)
#define READ_PLAIN_IMAGEF(image, sampler, coord) read_imagef(image, (coord).xy)
#ifdef UNROLL_HINT
#define KEPT_LOOP __attribute__((opencl_unroll_hint(1)))
#define LOOP_START 0
#else
#define KEPT_LOOP
#define LOOP_START get_group_id(2)
#endif
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __read_only image2d_array_t data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr);
// oc = group_y * 4 + local_y
// y = group_x / 2
// x = (group_x % 2 * 4 + local_x) * 4 + (0 to 3)
// sum over ic 8, ky 7, kx 1, ilane 4
// data[n 1][ic 8][y 17][x 17][lane 4]
// weight[ic 8][ky 7][kx 1][ilane 4][oc 10][lane 4]
// relu[n 1][oc 10][y 17][x 17][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __read_only image2d_array_t data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  int group_y = (convert_int(get_group_id(1)));
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int local_y = (convert_int(get_local_id(1)));
  int at = (group_x & 1);
  int at_1 = ((local_x * 4) + (at * 16));
  int at_2 = (group_x >> 1);
  int at_3 = (at_2 - 3);
  int at_4 = ((group_y * 4) + local_y);
  int at_5 = min((int)at_4, (int)9);
  if (((group_y * 2) + (local_y >> 1)) < 5) {
    acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    KEPT_LOOP
    for (int ic = LOOP_START; ic < 8; ++ic) {
      KEPT_LOOP
      for (int ky = LOOP_START; ky < 7; ++ky) {
        int at_ky = (at_3 + ky);
        float4 v_ = as_float4(READ_IMAGEF(data_ptr, image_sampler, ((int4)(at_1, at_ky, ic, 0))));
        patch_local_0 = v_;
        float4 v__1 = as_float4(READ_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 1), at_ky, ic, 0))));
        patch_local_1 = v__1;
        float4 v__2 = as_float4(READ_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 2), at_ky, ic, 0))));
        patch_local_2 = v__2;
        float4 v__3 = as_float4(READ_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 3), at_ky, ic, 0))));
        patch_local_3 = v__3;
        int at_ky_1 = (at_5 + (ky * 40));
        float4 v__4 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_ky_1, ic, 0, 0))));
        float4 value = v__4;
        acc_local_0 = mad(((float4)((patch_local_0).s0, (patch_local_0).s0, (patch_local_0).s0, (patch_local_0).s0)), value, acc_local_0);
        acc_local_1 = mad(((float4)((patch_local_1).s0, (patch_local_1).s0, (patch_local_1).s0, (patch_local_1).s0)), value, acc_local_1);
        acc_local_2 = mad(((float4)((patch_local_2).s0, (patch_local_2).s0, (patch_local_2).s0, (patch_local_2).s0)), value, acc_local_2);
        acc_local_3 = mad(((float4)((patch_local_3).s0, (patch_local_3).s0, (patch_local_3).s0, (patch_local_3).s0)), value, acc_local_3);
        float4 v__5 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_ky_1 + 10), ic, 0, 0))));
        float4 value_1 = v__5;
        acc_local_0 = mad(((float4)((patch_local_0).s1, (patch_local_0).s1, (patch_local_0).s1, (patch_local_0).s1)), value_1, acc_local_0);
        acc_local_1 = mad(((float4)((patch_local_1).s1, (patch_local_1).s1, (patch_local_1).s1, (patch_local_1).s1)), value_1, acc_local_1);
        acc_local_2 = mad(((float4)((patch_local_2).s1, (patch_local_2).s1, (patch_local_2).s1, (patch_local_2).s1)), value_1, acc_local_2);
        acc_local_3 = mad(((float4)((patch_local_3).s1, (patch_local_3).s1, (patch_local_3).s1, (patch_local_3).s1)), value_1, acc_local_3);
        float4 v__6 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_ky_1 + 20), ic, 0, 0))));
        float4 value_2 = v__6;
        acc_local_0 = mad(((float4)((patch_local_0).s2, (patch_local_0).s2, (patch_local_0).s2, (patch_local_0).s2)), value_2, acc_local_0);
        acc_local_1 = mad(((float4)((patch_local_1).s2, (patch_local_1).s2, (patch_local_1).s2, (patch_local_1).s2)), value_2, acc_local_1);
        acc_local_2 = mad(((float4)((patch_local_2).s2, (patch_local_2).s2, (patch_local_2).s2, (patch_local_2).s2)), value_2, acc_local_2);
        acc_local_3 = mad(((float4)((patch_local_3).s2, (patch_local_3).s2, (patch_local_3).s2, (patch_local_3).s2)), value_2, acc_local_3);
        float4 v__7 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_ky_1 + 30), ic, 0, 0))));
        float4 value_3 = v__7;
        acc_local_0 = mad(((float4)((patch_local_0).s3, (patch_local_0).s3, (patch_local_0).s3, (patch_local_0).s3)), value_3, acc_local_0);
        acc_local_1 = mad(((float4)((patch_local_1).s3, (patch_local_1).s3, (patch_local_1).s3, (patch_local_1).s3)), value_3, acc_local_1);
        acc_local_2 = mad(((float4)((patch_local_2).s3, (patch_local_2).s3, (patch_local_2).s3, (patch_local_2).s3)), value_3, acc_local_2);
        acc_local_3 = mad(((float4)((patch_local_3).s3, (patch_local_3).s3, (patch_local_3).s3, (patch_local_3).s3)), value_3, acc_local_3);
      }
    }
    if (at_1 < 17) {
      float4 operand = (acc_local_0 + bias_ptr[at_4]);
      float4 texel = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
      write_imagef(relu_ptr, (int4)(at_1, at_2, at_4, 0), as_float4(texel));
    }
    if (at < 1) {
      float4 operand_1 = (acc_local_1 + bias_ptr[at_4]);
      float4 texel_1 = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
      write_imagef(relu_ptr, (int4)((at_1 + 1), at_2, at_4, 0), as_float4(texel_1));
    }
    if (at_1 < 15) {
      float4 operand_2 = (acc_local_2 + bias_ptr[at_4]);
      float4 texel_2 = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
      write_imagef(relu_ptr, (int4)((at_1 + 2), at_2, at_4, 0), as_float4(texel_2));
    }
    if (((local_x * 2) + (at * 8)) < 7) {
      float4 operand_3 = (acc_local_3 + bias_ptr[at_4]);
      float4 texel_3 = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
      write_imagef(relu_ptr, (int4)((at_1 + 3), at_2, at_4, 0), as_float4(texel_3));
    }
  }
}

