// Function: main_kernel
#define READ_IMAGEH(image, sampler, coord) read_imageh(image, sampler, coord)
#define READ_IMAGEF(image, sampler, coord) read_imagef(image, sampler, coord)

#define READ_PLAIN_IMAGEH(image, sampler, coord) read_imageh(image, (coord).xy)
#define READ_PLAIN_IMAGEF(image, sampler, coord) read_imagef(image, (coord).xy)
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr);
// oc = group_y * 4 + local_y
// y = group_x / 2
// x = (group_x % 2 * 4 + local_x) * 4 + (0 to 3)
// sum over ic 1, ky 7, kx 7, ilane 3
// data[n 1][ic 1][y 56][x 56][lane 4]
// weight[ic 1][ky 7][kx 7][ilane 3][oc 8][lane 4]
// relu[n 1][oc 8][y 28][x 28][lane 4]
__kernel __attribute__((reqd_work_group_size(4, 4, 1))) void main_kernel(__global float4* restrict bias_ptr, __global float4* restrict data_ptr, __write_only image2d_array_t relu_ptr, __read_only image2d_t weight_ptr) {
  const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
  float4 acc_local_0, acc_local_1, acc_local_2, acc_local_3;
  float4 patch_local_0, patch_local_1, patch_local_2, patch_local_3;
  int group_x = (convert_int(get_group_id(0)));
  int local_x = (convert_int(get_local_id(0)));
  int at = (group_x & 1);
  int at_1 = (group_x >> 1);
  int at_2 = (at_1 * 2);
  int at_3 = ((local_x * 8) + (at * 32));
  int at_4 = ((at_3 + (at_1 * 112)) - 171);
  int at_5 = (((convert_int(get_group_id(1))) * 4) + (convert_int(get_local_id(1))));
  int at_6 = ((local_x * 4) + (at * 16));
  if ((local_x + (at * 4)) < 7) {
    acc_local_0 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    acc_local_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
    for (int ky = 0; ky < 7; ++ky) {
      int at_ky = (at_2 + ky);
      bool inside_ky = (((bool)(at_ky >= 3)) && ((bool)(at_ky < 59)));
      int at_ky_1 = (at_4 + (ky * 56));
      int at_ky_2 = (at_5 + (ky * 168));
      const __global float4* data_at = data_ptr + at_ky_1;
      for (int kx = 0; kx < 7; ++kx) {
        int at_kx = (at_3 + kx);
        float4 condval;
        if (((bool)inside_ky) && ((bool)(at_kx >= 3))) {
          condval = data_at[0];
        } else {
          condval = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_0 = condval;
        float4 condval_1;
        if (((bool)inside_ky) && ((bool)(at_kx >= 1))) {
          condval_1 = data_at[2];
        } else {
          condval_1 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_1 = condval_1;
        float4 condval_2;
        if (inside_ky) {
          condval_2 = data_at[4];
        } else {
          condval_2 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_2 = condval_2;
        float4 condval_3;
        if (((bool)inside_ky) && ((bool)(at_kx < 53))) {
          condval_3 = data_at[6];
        } else {
          condval_3 = ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f));
        }
        patch_local_3 = condval_3;
        int at_ky_kx = (at_ky_2 + (kx * 24));
        float4 v_ = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)(at_ky_kx, 0, 0, 0))));
        float4 value = v_;
        acc_local_0 = mad((float4)((patch_local_0).s0), value, acc_local_0);
        acc_local_1 = mad((float4)((patch_local_1).s0), value, acc_local_1);
        acc_local_2 = mad((float4)((patch_local_2).s0), value, acc_local_2);
        acc_local_3 = mad((float4)((patch_local_3).s0), value, acc_local_3);
        float4 v__1 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_ky_kx + 8), 0, 0, 0))));
        float4 value_1 = v__1;
        acc_local_0 = mad((float4)((patch_local_0).s1), value_1, acc_local_0);
        acc_local_1 = mad((float4)((patch_local_1).s1), value_1, acc_local_1);
        acc_local_2 = mad((float4)((patch_local_2).s1), value_1, acc_local_2);
        acc_local_3 = mad((float4)((patch_local_3).s1), value_1, acc_local_3);
        float4 v__2 = as_float4(READ_PLAIN_IMAGEF(weight_ptr, image_sampler, ((int4)((at_ky_kx + 16), 0, 0, 0))));
        float4 value_2 = v__2;
        acc_local_0 = mad((float4)((patch_local_0).s2), value_2, acc_local_0);
        acc_local_1 = mad((float4)((patch_local_1).s2), value_2, acc_local_1);
        acc_local_2 = mad((float4)((patch_local_2).s2), value_2, acc_local_2);
        acc_local_3 = mad((float4)((patch_local_3).s2), value_2, acc_local_3);
        data_at += 1;
      }
    }
    float4 value_3 = bias_ptr[at_5];
    float4 operand = (acc_local_0 + value_3);
    float4 texel = select(operand, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)(at_6, at_1, at_5, 0), as_float4(texel));
    float4 operand_1 = (acc_local_1 + value_3);
    float4 texel_1 = select(operand_1, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_1 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_6 + 1), at_1, at_5, 0), as_float4(texel_1));
    float4 operand_2 = (acc_local_2 + value_3);
    float4 texel_2 = select(operand_2, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_2 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_6 + 2), at_1, at_5, 0), as_float4(texel_2));
    float4 operand_3 = (acc_local_3 + value_3);
    float4 texel_3 = select(operand_3, ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f)), (convert_int4((operand_3 < ((float4)(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f))))));
    write_imagef(relu_ptr, (int4)((at_6 + 3), at_1, at_5, 0), as_float4(texel_3));
  }
}

