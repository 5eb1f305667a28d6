"""Names of the stages that a contraction is scheduled in. They are names of TIR blocks, so kernels show some of them."""

from __future__ import annotations

from enum import Enum


class Stage(str, Enum):
    """A stage; its value is the name of its block.

        data -> patch -> texels ─┐
                                 ├─> acc -> tile -> crop             one work-item sums a whole reduction
        weight -> kernel -> right┘
                                 └─> part -> acc -> crop             `split_k` work-items share one

    patch: the data that is staged in local memory, or loaded into registers where nothing is staged.   texels: what of it is in registers.
    kernel: the weight that is staged in local memory.   right: what of it is loaded into registers several reduction steps at a time.
    """

    PATCH = "patch"
    TEXELS = "texels"
    KERNEL = "kernel"
    RIGHT = "right"
    PART = "part"
    ACC = "acc"
    TILE = "tile"
    CROP = "crop"

    # Messages, records and kernels show the word alone.
    __str__, __repr__ = str.__str__, str.__repr__
