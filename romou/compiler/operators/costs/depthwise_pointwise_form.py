"""Usage of the fused kernel of a depthwise and a pointwise convolution.

It has the pointwise formulas, plus the staged windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from romou.base.limits import Limits
from romou.base.space import Columns
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.costs.closed_form import ClosedForm
from romou.compiler.operators.costs.data_reads import PITCH, DataReads, Pixels, Steps
from romou.compiler.operators.costs.form import Form, form_of
from romou.compiler.operators.families.depthwise_pointwise import DepthwisePointwiseTemplate
from romou.compiler.operators.workload import Conv2d
from romou.compiler.tir.evaluate import count_distinct
from romou.compiler.tir.primitives import LANES, MemoryKind


class DepthwisePointwiseForm(ClosedForm):
    """The formulas of one pair of convolutions, over arrays of knobs."""

    def __init__(self, template: DepthwisePointwiseTemplate, limits: Limits) -> None:
        super().__init__(template, limits)
        self._kernel = template.windows.kernel
        self._reads = _WindowReads(self._forms, template.windows)

    def _contraction_usage(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        usage = super()._contraction_usage(columns, counts)
        taps, is_image = math.prod(self._kernel), columns["data"] == MemoryKind.IMAGE
        # Texels that a work-item computes in one iteration. An unfused pointwise convolution would load one texel for
        # each.
        staged = -(
            -(columns["local"] * columns["tile_h"] * columns["wg_w"] * columns["tile_w"]) // usage.work_group_size
        )
        texel_bytes = LANES * self._element_bytes * usage.work_group_size * staged
        return replace(
            usage,
            buffer_bytes=usage.buffer_bytes + taps * columns["local"] * LANES * self._element_bytes,
            unshared_buffer_bytes=usage.unshared_buffer_bytes
            + texel_bytes * (taps + (taps - 1) * np.logical_not(is_image)),
            unshared_image_bytes=usage.unshared_image_bytes + texel_bytes * (taps - 1) * is_image,
            multiply_adds=usage.multiply_adds + taps * staged * LANES,
        )


@form_of.register
def _(template: DepthwisePointwiseTemplate, limits: Limits) -> Form:
    return DepthwisePointwiseForm(template, limits)


class _WindowReads(DataReads):
    """Counts of reads of the depthwise convolution's input.

    Its output, the pointwise convolution's input, is not read.
    """

    def __init__(self, forms: Mapping[str, Contraction], windows: Conv2d) -> None:
        super().__init__(forms)
        self._windows = windows
        self.is_padded = any(windows.padding)
        self._pixels_read = functools.cache(self._count_pixels)

    def _distinct(self, pixels: Pixels, steps: Steps, group_o: int) -> int:
        """Return the product of texels and pixels.

        An iteration's channels are whole texels, each with the same pixels.
        """
        return self._pixels_read(pixels.order, pixels.is_image, pixels.tile_h, pixels.width) * steps.together * LANES

    def _count_pixels(self, order: str, is_image: bool, tile_h: int, width: int) -> int:
        """Count the input pixels under the windows of the first group. In an image, padding counts too."""
        w, at = self._windows, self._forms[order].extents
        _, place, _ = w.pixels(order == "flat")
        h, x, kh, kw = np.ix_(*map(np.arange, (tile_h, width, *w.kernel)))
        n, oy, ox = place(np.minimum(h, at[1] - 1), np.minimum(x, at[2] - 1))
        y, x = (
            o * s + k * d - p
            for o, s, k, d, p in zip((oy, ox), w.stride, (kh, kw), w.dilation, w.padding[:2], strict=True)
        )
        key: Any = (n * PITCH + y) * PITCH + x
        inside = (y >= 0) & (y < w.in_hw[0]) & (x >= 0) & (x < w.in_hw[1])
        return count_distinct(key if is_image else key[np.broadcast_to(inside, key.shape)])
