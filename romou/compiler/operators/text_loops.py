"""The loops of a reduction as a kernel's text spells them, which a compiler's result depends on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from romou.base.space import Columns
from romou.compiler.operators.base import Template


class Loops(NamedTuple):
    """The loops of a sum of products in a kernel's text. Fields may be arrays.

    is_unrolled: whether loops are unrolled in the text. Otherwise the compiler decides, even for the lanes of a texel
    unrolled: steps of the reduction that are unrolled, without the lanes
    channels, rows, columns: iterations of the inner loops over channels and over the window. A window that is split
        over two loops has fewer than its extent
    """

    is_unrolled: Any
    unrolled: Any
    channels: Any
    rows: Any
    columns: Any


def loops_of(template: Template, columns: Columns, count: int) -> Loops:
    """Return the loops of Romou's kernels, each an array of `count`: the window is inside of the channels."""
    *outer, width = getattr(getattr(template, "workload", None), "kernel", None) or (1,)
    height = math.prod(outer)
    unrolled = np.where(np.asarray(columns.get("unroll", "")) == "window", height * width, 1)
    fields = (True, unrolled, 1, height, width)
    return Loops(*(np.broadcast_to(field, count) for field in fields))
