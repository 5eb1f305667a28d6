"""The one shape that convolutions and dense layers share: a sum of products over channels packed by four.

    acc[o, h, w, lane] = sum over r of  lhs(o, h, w, lane, r) * rhs(o, lane, r)

`o` counts texels of output channels, (h, w) the pixels and r the reduction. A family says what `lhs` and `rhs` read;
this package makes stages over a padded domain of that, declares the knobs, and schedules the stages:

    work group    wg_w x wg_o [x split_k] work-items, each with a register tile of tile_o x tile_h x tile_w float4
    padded domain the register tile never needs a bounds check: indices are clamped to the last valid one, what is
    computed
                  beyond the edge is never stored (only the final store is guarded)
    local         the work group's share of lhs and rhs is staged in local memory, `local` texels of the reduction at a time
    arrangement   of the group's elements: "blocked", neighbouring pixels and channels belong to one work-item, which shares what their windows have
                  in common; "striped", they belong to neighbouring work-items, so that those of a warp read side by
                  side
    split_k       the reduction is split over work-items, which add up their partial sums in local memory (paper, Section 5.3:
                  its answer to operators with few outputs and a long reduction)
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tvm import te, tirx

Expr: TypeAlias = "tirx.Expr | int"


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """What a family hands over.

    extents: (o, h, w) exact, in texels and pixels.
    reduce: name -> extent; the first one is the axis that `split_k` and `local` cut.
    lhs, rhs: expressions over (o, h, w, lane, *r) and (o, lane, *r); indices handed in are always inside the exact
    extents.
    is_batched: whether each row h has a right side of its own: then rhs is one over (o, lane, *r, h), and a tile has
    one row.
    lhs_varies: with the output channel: not at all, with the texel `o` that it is in (groups of whole texels), or with
    its lane too
        (depthwise); where it varies it is not worth staging in local memory.
    vector: whether the four lanes of a texel are neighbours in memory on both sides, so that one access loads them.
    lhs_vector: whether the lanes of an input texel are neighbours in memory; else they are loaded one by one.
    rhs_vector: what are neighbours in memory on the right: the lanes of a texel; steps of the last reduction axis,
    which are then loaded together
        into registers as those of lhs are; or neither.
    lhs_neighbours: what are neighbours in memory on the left, beside the lanes of a texel: those of pixels, or of steps
    of the first reduction axis.
    texel: lanes of an input texel, which is loaded whole even where the last reduction axis takes fewer of them (an
    image of three channels).
    columns: of the right side in memory, where they do not fill their last texel.
    output: indices of the output buffer -> (o, h, w, lane).
    output_shape: of the buffer that the sum is written to, in single precision.
    is_image: whether the data lies in an image, where reads outside give zero.
    lhs_of_image: lhs where the data lies in an image, if that still has a condition: outside of its rows and columns
    alone an image gives zero.
    is_padded: whether taps may lie outside of the data. Where none does, an image is read inside alone, which takes no
    sampler.
    stride: pixels of the data between the windows of neighbours in a row.
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


def round_up(extent: int, tile: Any) -> Any:
    """Return the smallest multiple of `tile` that is at least `extent`; an array of them for an array of tiles."""
    return -(-extent // tile) * tile
