// Function: main_kernel
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)

#define READ_PLAIN_IMAGEH(image, sampler, coord) read_imageh(image, (coord).xy)
#define READ_PLAIN_IMAGEF(image, sampler, coord) read_imagef(image, (coord).xy)
#define READ_INSIDE_IMAGEH(image, sampler, coord) read_imageh(image, coord)
#define READ_INSIDE_IMAGEF(image, sampler, coord) read_imagef(image, coord)
#ifdef UNROLL_HINT
#define KEPT_LOOP __attribute__((opencl_unroll_hint(1)))
#define LOOP_START 0
#else
#define KEPT_LOOP
#define LOOP_START get_group_id(2)
#endif
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __read_only image2d_array_t data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr);
// oc = (group_y * 4 + local_y) * 2 + (0 to 1)
// y = group_x / 2
// x = (group_x % 2 * 4 + local_x) * 4 + (0 to 3)
// sum over ic 16, ky 1, kx 1, ilane 4
// data[n 1][ic 16][y 28][x 28][lane 4]
// weight[ic 16][ky 1][kx 1][ilane 4][oc 32][lane 4]
// relu[n 1][oc 32][y 28][x 28][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __read_only image2d_array_t data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3, acc_local_4, acc_local_5, acc_local_6, acc_local_7;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int at = (group_x & 1);
  int at_1 = ((local_x * 4) + (at * 16));
  int at_2 = (group_x >> 1);
  int at_3 = (((convert_int(get_group_id(1))) * 8) + ((convert_int(get_local_id(1))) * 2));
  if ((local_x + (at * 4)) < 7) {
    acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_4 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_5 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_6 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_7 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    KEPT_LOOP
    for (int ic = LOOP_START; ic < 16; ++ic) {
      float4 v_ = as_float4(READ_INSIDE_IMAGEF(data_ptr, image_sampler, ((int4)(at_1, at_2, ic, 0))));
      patch_local_0 = v_;
      float4 v__1 = as_float4(READ_INSIDE_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 1), at_2, ic, 0))));
      patch_local_1 = v__1;
      float4 v__2 = as_float4(READ_INSIDE_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 2), at_2, ic, 0))));
      patch_local_2 = v__2;
      float4 v__3 = as_float4(READ_INSIDE_IMAGEF(data_ptr, image_sampler, ((int4)((at_1 + 3), at_2, ic, 0))));
      patch_local_3 = v__3;
      float4 v__4 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_3, ic, 0, 0))));
      float4 value = v__4;
      acc_local_0 = mad((float4)((patch_local_0).s0), value, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s0), value, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s0), value, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s0), value, acc_local_3);
      float4 v__5 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 1), ic, 0, 0))));
      float4 value_1 = v__5;
      acc_local_4 = mad((float4)((patch_local_0).s0), value_1, acc_local_4);
      acc_local_5 = mad((float4)((patch_local_1).s0), value_1, acc_local_5);
      acc_local_6 = mad((float4)((patch_local_2).s0), value_1, acc_local_6);
      acc_local_7 = mad((float4)((patch_local_3).s0), value_1, acc_local_7);
      float4 v__6 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 32), ic, 0, 0))));
      float4 value_2 = v__6;
      acc_local_0 = mad((float4)((patch_local_0).s1), value_2, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s1), value_2, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s1), value_2, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s1), value_2, acc_local_3);
      float4 v__7 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 33), ic, 0, 0))));
      float4 value_3 = v__7;
      acc_local_4 = mad((float4)((patch_local_0).s1), value_3, acc_local_4);
      acc_local_5 = mad((float4)((patch_local_1).s1), value_3, acc_local_5);
      acc_local_6 = mad((float4)((patch_local_2).s1), value_3, acc_local_6);
      acc_local_7 = mad((float4)((patch_local_3).s1), value_3, acc_local_7);
      float4 v__8 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 64), ic, 0, 0))));
      float4 value_4 = v__8;
      acc_local_0 = mad((float4)((patch_local_0).s2), value_4, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s2), value_4, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s2), value_4, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s2), value_4, acc_local_3);
      float4 v__9 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 65), ic, 0, 0))));
      float4 value_5 = v__9;
      acc_local_4 = mad((float4)((patch_local_0).s2), value_5, acc_local_4);
      acc_local_5 = mad((float4)((patch_local_1).s2), value_5, acc_local_5);
      acc_local_6 = mad((float4)((patch_local_2).s2), value_5, acc_local_6);
      acc_local_7 = mad((float4)((patch_local_3).s2), value_5, acc_local_7);
      float4 v__10 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 96), ic, 0, 0))));
      float4 value_6 = v__10;
      acc_local_0 = mad((float4)((patch_local_0).s3), value_6, acc_local_0);
      acc_local_1 = mad((float4)((patch_local_1).s3), value_6, acc_local_1);
      acc_local_2 = mad((float4)((patch_local_2).s3), value_6, acc_local_2);
      acc_local_3 = mad((float4)((patch_local_3).s3), value_6, acc_local_3);
      float4 v__11 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_3 + 97), ic, 0, 0))));
      float4 value_7 = v__11;
      acc_local_4 = mad((float4)((patch_local_0).s3), value_7, acc_local_4);
      acc_local_5 = mad((float4)((patch_local_1).s3), value_7, acc_local_5);
      acc_local_6 = mad((float4)((patch_local_2).s3), value_7, acc_local_6);
      acc_local_7 = mad((float4)((patch_local_3).s3), value_7, acc_local_7);
    }
    float4 value_8 = bias_ptr[at_3];
    float4 operand = (acc_local_0 + value_8);
    float4 texel = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)(at_1, at_2, at_3, 0), as_float4(texel));
    float4 operand_1 = (acc_local_1 + value_8);
    float4 texel_1 = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 1), at_2, at_3, 0), as_float4(texel_1));
    float4 operand_2 = (acc_local_2 + value_8);
    float4 texel_2 = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 2), at_2, at_3, 0), as_float4(texel_2));
    float4 operand_3 = (acc_local_3 + value_8);
    float4 texel_3 = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 3), at_2, at_3, 0), as_float4(texel_3));
    float4 value_9 = bias_ptr[(at_3 + 1)];
    float4 operand_4 = (acc_local_4 + value_9);
    float4 texel_4 = select(operand_4, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_4 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)(at_1, at_2, (at_3 + 1), 0), as_float4(texel_4));
    float4 operand_5 = (acc_local_5 + value_9);
    float4 texel_5 = select(operand_5, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_5 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 1), at_2, (at_3 + 1), 0), as_float4(texel_5));
    float4 operand_6 = (acc_local_6 + value_9);
    float4 texel_6 = select(operand_6, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_6 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 2), at_2, (at_3 + 1), 0), as_float4(texel_6));
    float4 operand_7 = (acc_local_7 + value_9);
    float4 texel_7 = select(operand_7, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_7 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_1 + 3), at_2, (at_3 + 1), 0), as_float4(texel_7));
  }
}

