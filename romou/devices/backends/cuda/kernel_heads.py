"""The heads of kernels in a CUDA module's text: declarations and definitions, with the comment above."""

import re

KERNEL = re.compile(r'^(?:// .*\n)*extern "C" __global__ .*?(?P<name>\w+)\(\w[^(]*\) ?(?P<end>[;{])$', re.MULTILINE)
