"""Adds OpenCL C code that makes Oclgrind follow uninitialised values through images, for check_kernels.py.

Oclgrind 21.10 decides whether a texel is uninitialised by unrelated memory behind the image's handle, and checks
neither coordinates nor written values. So a texel is read through atomics, which mark its bits as initialised: the host
fills inputs and outputs. Coordinates and written values are passed to a built-in function, because Oclgrind checks its
arguments. Work-items run one after another between barriers, so one word of local memory serves a group.
"""

from __future__ import annotations

import re

_DEFINITIONS = """
float4 romou_known(float4 texel, volatile __local int *word) {
  float4 known;
  for (int lane = 0; lane < 4; ++lane) {
    atomic_cmpxchg(word, 0, as_int(((float *)&texel)[lane]));
    ((float *)&known)[lane] = as_float(atomic_xchg(word, 0));
  }
  return known;
}
int4 __attribute__((overloadable)) romou_checked_place(int4 place) { abs(place); return place; }
int2 __attribute__((overloadable)) romou_checked_place(int2 place) { abs(place); return place; }
uint4 romou_known_words(uint4 texel, volatile __local int *word) {
  return as_uint4(romou_known(as_float4(texel), word));
}
float4 romou_checked_value(float4 value) { fabs(value); return value; }
#define romou_read(image, sampler, place) romou_known(read_imagef(image, sampler, romou_checked_place(place)), &romou_word)
#define romou_read_plain(image, place) romou_known(read_imagef(image, romou_checked_place(place)), &romou_word)
#define romou_third(first, second, third, chosen, ...) chosen
#define read_imagef(...) romou_third(__VA_ARGS__, romou_read, romou_read_plain, )(__VA_ARGS__)
#define read_imageui(image, place) romou_known_words(read_imageui(image, romou_checked_place(place)), &romou_word)
#define write_imagef(image, place, value) write_imagef(image, romou_checked_place(place), romou_checked_value(value))
"""  # noqa: E501
_START = r"""\g<0>
  volatile __local int romou_word;
  if (get_local_id(0) + get_local_id(1) + get_local_id(2) == 0) romou_word = 0;
  barrier(CLK_LOCAL_MEM_FENCE);"""


def watched(source: str) -> str:
    """Return the source with checks of its kernels' texels, coordinates and image writes."""
    return _DEFINITIONS + re.sub(r"__kernel [^;{]* image2d_(?:array_)?t [^;{]*\{", _START, source)
