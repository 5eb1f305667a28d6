"""What a window that moves over its input reads beyond the border, without a branch.

0 <= y - 1 ? data[y - 1] : -inf
    ->  data[max(y - 1, 0)]      a maximum: the number at the border lies in the window, too
0 <= y - 1 ? data[y - 1] : 0         ->      data[y - 1]              a sum: images give zero outside
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map

from romou.compiler.scheduling.blocks import Reduction
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.expressions import conjuncts
from romou.compiler.tir.primitives import image_axes
from romou.compiler.tir.traversal import nodes_in


def without_branches(reduction: Reduction) -> tirx.Expr:
    """Return what is reduced, with the branches for padding left out where that is proven to give the same numbers."""
    axes = {axis.var: int(axis.dom.extent) for axis in reduction.block.iter_vars}
    is_extreme = reduction.operation in (tirx.Max, tirx.Min)

    def call(expr: tvm.ir.Call) -> tirx.Expr:
        if not is_conditional(expr):
            return expr
        condition, load, padding = expr.args
        if not (isinstance(load, TensorLoad) and isinstance(padding, tirx.FloatImm)):
            return expr
        if is_extreme:
            return _at_border(condition, load, axes, reduction)
        is_zero_outside = (
            reduction.operation is tirx.Add and padding.value == 0 and _is_image_side(condition, load, axes)
        )
        return load if is_zero_outside else expr

    return (
        structural_map(reduction.term, (tvm.ir.Call, call))
        if isinstance(reduction.term, tvm.ir.Call)
        else reduction.term
    )


def kept_inside(term: tirx.Expr, axes: Mapping[tirx.Var, int]) -> tirx.Expr:
    """Return a term whose loads from buffers stay below the extents for all values of some axes; numbers that are read
    in another's place are not used.

    data[y, x + 1]      ->      data[y, min(x + 1, 12)]
    """

    def load(access: TensorLoad) -> tirx.Expr:
        if image_axes(access.source):
            return access
        indices = [
            _below(index, int(extent), axes) for index, extent in zip(access.indices, access.source.shape, strict=True)
        ]
        return tirx.BufferLoad(access.source, indices)

    return structural_map(term, (TensorLoad, load))


def _below(index: tirx.Expr, extent: int, axes: Mapping[tirx.Var, int]) -> tirx.Expr:
    own = _axes_in(index, axes)
    return (
        tirx.min(index, tirx.const(extent - 1, index.ty))
        if own and np.max(evaluate(index, _grid_of(own, axes))) >= extent
        else index
    )


def _is_image_side(condition: tirx.Expr, load: TensorLoad, axes: Mapping[tirx.Var, int]) -> bool:
    """Whether a condition holds just where a load from an image lies inside of it, and can fail only for its columns
    and rows.
    """
    parts = conjuncts(condition)
    for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
        own = _axes_in(index, axes)
        mine = _parts_of(own, parts)
        if not mine:
            continue
        grid = _grid_of(own, axes)
        place = np.asarray(evaluate(index, grid))
        if axis not in image_axes(load.source) or not _holds_where(mine, (place >= 0) & (place < int(extent)), grid):
            return False
        parts = _others(parts, mine)
    return not parts


def _at_border(condition: tirx.Expr, load: TensorLoad, axes: Mapping[tirx.Var, int], reduction: Reduction) -> tirx.Expr:
    """The load with its indices kept inside of the tensor, where each window holds what is then read; else as it was,
    under its condition.
    """
    kept = tirx.if_then_else(condition, load, reduction.unbounded(reduction.start))
    parts = conjuncts(condition)
    indices = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        own = _axes_in(index, axes)
        mine = _parts_of(own, parts)
        if not mine:
            indices.append(index)
            continue
        windows = [any(var.same_as(axis.var) for axis in reduction.reduced) for var in own]
        if sorted(windows) != [False, True]:
            return kept
        # The output along the first axis of the grid, the window's taps along the second.
        grid = _grid_of(sorted(own, key=lambda var: windows[own.index(var)]), axes)
        place = evaluate(index, grid)
        inside = (place >= 0) & (place < int(extent))
        border = np.clip(place, 0, int(extent) - 1)
        is_read = ((border[:, :, None] == place[:, None, :]) & inside[:, None, :]).any(-1)
        if not (_holds_where(mine, inside, grid) and is_read.all()):
            return kept
        parts = _others(parts, mine)
        low = tirx.max(index, tirx.const(0, index.ty)) if place.min() < 0 else index
        indices.append(tirx.min(low, extent - 1) if place.max() >= int(extent) else low)
    return kept if parts else tirx.BufferLoad(load.source, indices)


def _axes_in(index: tirx.Expr, axes: Mapping[tirx.Var, int]) -> list[tirx.Var]:
    found = nodes_in(index, tirx.Var)
    return [var for var in axes if any(var.same_as(other) for other in found)]


def _parts_of(own: Sequence[tirx.Var], parts: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """Return the conditions that look at no other variables."""
    return [part for part in parts if all(any(var.same_as(other) for other in own) for var in nodes_in(part, tirx.Var))]


def _others(parts: Sequence[tirx.Expr], taken: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    return [part for part in parts if not any(part.same_as(one) for one in taken)]


def _grid_of(own: Sequence[tirx.Var], axes: Mapping[tirx.Var, int]) -> dict[tirx.Var, np.ndarray]:
    """All values of each axis, along an axis of its own."""
    return dict(zip(own, np.ix_(*(np.arange(axes[var]) for var in own)), strict=True))


def _holds_where(parts: Sequence[tirx.Expr], inside: np.ndarray, grid: Mapping[tirx.Var, np.ndarray]) -> bool:
    """Whether all conditions together hold just there."""
    return np.array_equal(
        np.logical_and.reduce([np.broadcast_to(evaluate(part, grid), inside.shape) for part in parts]), inside
    )
