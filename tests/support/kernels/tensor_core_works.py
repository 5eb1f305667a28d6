"""Operators in fp16 that tensor cores and cooperative matrices multiply: tests of both hold them against the same
shapes.
"""

from __future__ import annotations

from romou.compiler.operators.families.dense import Dense
from support.kernels.operators import conv

HALF = {"dtype": "float16"}
PLAIN = conv(32, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1), **HALF)
# Nothing that a tile or a warp divides, a window that hangs over on some sides, channels that fill no whole texel.
ODD = conv(48, (9, 10), 37, (3, 3), stride=(2, 1), padding=(0, 1, 1, 0), batch=3, **HALF)
POINTWISE = conv(64, (7, 5), 130, (1, 1), batch=2, **HALF)
DENSE = Dense(m=61, k=256, n=70, **HALF)
# No whole groups of texels: zeros fill the last one.
FILLED = conv(528, (7, 9), 37, (1, 1), batch=2, **HALF)
# Fewer texels than a group has: the window's taps are the texels.
FIRST = conv(3, (30, 30), 37, (7, 7), stride=(2, 2), padding=(3, 3, 3, 3), batch=2, **HALF)
