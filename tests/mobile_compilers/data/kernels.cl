// The kernels whose compilers' output is kept in a630.txt and g76.txt.
__kernel void dot4(__read_only image2d_t a, __global const float* b, __global float* c, int n) {
  float4 sum = (float4)(0.0f);
  for (int i = 0; i < n; ++i) sum += read_imagef(a, (int2)(i, get_local_id(0))) * b[i];
  vstore4(sum, get_local_id(0), c);
}

__kernel void shuffle(__global float* a, __global const int* n) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i * n[0] & 63] = a[i];
  float sum = 0.0f;
  for (int i = 0; i < n[1]; ++i) sum += kept[n[i] & 63];
  a[get_local_id(0)] = sum;
}
