"""The form that convolutions, dense layers and matrix products share: a sum of products over channels packed by four.

    acc[o, h, w, lane] = sum over r of  lhs(o, h, w, lane, r) * rhs(o, lane, r)

`o` counts texels of output channels, (h, w) the pixels and r the reduction. A family describes the reads `lhs` and
`rhs`. This package makes stages over a padded domain of them, declares the knobs, and schedules the stages:

    work group     wg_w x wg_o [x split_k] work-items, each with a register tile of tile_o x tile_h x tile_w float4
    padded domain  register tiles need no bounds checks. Indices are clamped to the last valid one, results beyond the
                   edge are not stored, and only the final store is guarded
    local          the group's part of lhs and rhs is staged in local memory, `local` texels of the reduction at a time
    arrangement    "blocked": neighbouring pixels and channels belong to one work-item, which shares the input that
                   their windows have in common
                   "striped": they belong to neighbouring work-items, so that reads of a warp are coalesced
    split_k        work-items share a reduction and add up their partial sums in local memory, for operators with few
                   outputs and long reductions (paper, Section 5.3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from tvm import te, tirx

Expr: TypeAlias = "tirx.Expr | int"


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """A sum of products, as a family describes it.

    inputs: the operands.
    extents: (o, h, w) without padding, in texels and pixels.
    reduce: name -> extent of each reduction axis. `split_k` and `local` cut the first one.
    lhs, rhs: expressions over (o, h, w, lane, *r) and (o, lane, *r). Indices are always inside the extents.
    output: indices of the output buffer -> (o, h, w, lane).
    output_shape: shape of the buffer that the sum is written to, in single precision.
    lhs_varies: whether lhs depends on the output channel: "never", "by texel" `o` (groups of whole texels), or "by
        lane" (depthwise). Only "never" is worth staging in local memory.
    vector: whether the four lanes of a texel are neighbours in memory on both sides, so that one access loads them.
    lhs_vector: whether the lanes of an input texel are neighbours in memory. If not, they are loaded one by one.
    rhs_vector: neighbours in memory on the right, which are loaded into registers together: the "lanes" of a texel,
        steps of the last "reduction" axis, or "none".
    lhs_neighbours: neighbours in memory on the left, beside the lanes of a texel: "pixels", or steps of the first
        "reduction" axis.
    texel: lanes of an input texel. It is loaded whole even if the last reduction axis is shorter (an image of three
        channels).
    columns: columns of the right side in memory, if they do not fill their last texel.
    is_image: whether the data is in an image. Reads outside of it are zero.
    lhs_of_image: lhs for data in an image, if it still has a condition there. An image is zero only outside of its rows
        and columns.
    is_padded: whether taps may be outside of the data. If not, an image is read without a sampler.
    is_batched: whether each row h has its own right side. Then rhs is over (o, lane, *r, h), and a tile has one row.
    stride: pixels of the data between the windows of neighbours in a row.
    axes: names of (o, h, w), which the kernel's text shows. An axis of one element may have none.
    layouts: names of the axes of each operand and of the output, outermost first: "n:oc:y:x:lane".
    windows: windows of neighbouring texels of output channels, one after the other, which lack different taps.
    has_tap: condition over (o, *r) that the weight is no zero in place of such a tap. None without such taps.
    taps: taps of all `windows`, without those that they lack.
    """

    inputs: Sequence[te.Tensor]
    extents: tuple[int, int, int]
    reduce: Mapping[str, int]
    lhs: Callable[..., tirx.Expr]
    rhs: Callable[..., tirx.Expr]
    output: Callable[..., tuple[Expr, Expr, Expr, Expr]]
    output_shape: tuple[int, ...]
    lhs_varies: Literal["never", "by texel", "by lane"] = "never"
    vector: bool = True
    lhs_vector: bool = True
    rhs_vector: Literal["lanes", "reduction", "none"] = "lanes"
    lhs_neighbours: Literal["pixels", "reduction"] = "pixels"
    texel: int | None = None
    columns: int | None = None
    is_image: bool = False
    lhs_of_image: Callable[..., tirx.Expr] | None = None
    is_padded: bool = True
    is_batched: bool = False
    stride: int = 1
    axes: tuple[str, str, str] = ("o", "h", "w")
    layouts: Sequence[str] = ()
    has_tap: Callable[..., tirx.Expr] | None = None
    windows: int = 1
    taps: int = 0

    def skips_taps(self, config: Any) -> Any:
        """Return whether a work-item has all `windows` in its tile, whose missing taps are left out.

        Also for columns of many configs.
        """
        if self.has_tap is None:
            return False
        is_whole = (config["tile_o"] % self.windows == 0) & (config["arrangement"] == "blocked")
        return is_whole & (config["unroll"] == "window") & (config["local"] == 0)

    def of_own_taps(self, config: Any, count: Any) -> Any:
        """Return a count over the taps of all windows without those that a work-item leaves out."""
        whole = self.windows * math.prod(list(self.reduce.values())[1:-1])
        return np.where(self.skips_taps(config), count * self.taps // whole, count)


def round_up(extent: int, tile: Any) -> Any:
    """Return the smallest multiple of `tile` that is at least `extent`, or an array of them for an array of tiles."""
    return (extent + tile - 1) // tile * tile
