"""Images that a kernel reads only inside of their bounds. They need no sampler, which would take floats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import tvm
from tvm import tirx

from romou.compiler.tir.guarded_loads import GuardedLoad, guarded_loads


def read_inside(func: tirx.PrimFunc, images: Sequence[tirx.Buffer]) -> list[tirx.Buffer]:
    """Return the images with no read outside, proven by the extents of loops and launches and by conditions.

    for x in range(14): use(image[x, 0:4])                    an image of 14 texels is read inside
    for x in range(16): use(image[x, 0:4])                    not
    for x in range(16): if x < 14: use(image[x, 0:4])         inside

    Indices must be the tensor's axes: run before buffers are flattened. An image that is not read is not returned.
    """
    loads = guarded_loads(func.body) if images else []
    of_images = ([load for load in loads if image.same_as(load.access.source)] for image in images)
    return [image for image, own in zip(images, of_images, strict=True) if own and all(map(_is_inside, own))]


def _is_inside(load: GuardedLoad) -> bool:
    analyzer = tvm.sym.Analyzer()
    for var, values in load.ranges:
        analyzer.bind(var, values)
    with ExitStack() as stack:
        # A condition loaded from memory proves nothing about an index.
        for condition in load.conditions:
            if "bool" in str(condition.ty):
                stack.enter_context(analyzer.constraint_scope(condition))
        # The last index takes the lanes of a texel.
        sides = zip(load.access.source.shape[:-1], list(load.access.indices)[:-1], strict=True)
        return all(_lies_in(analyzer, index, int(extent)) for extent, index in sides)


def _lies_in(analyzer: tvm.sym.Analyzer, index: tirx.Expr, extent: int) -> bool:
    bound = analyzer.const_int_bound(index)
    return bool(
        (bound.min_value >= 0 or analyzer.can_prove(index >= 0))
        and (bound.max_value < extent or analyzer.can_prove(index < extent))
    )
