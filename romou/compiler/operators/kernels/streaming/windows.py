"""Padding of a moving window without a branch.

0 <= y - 1 ? data[y - 1] : -inf
    ->  data[max(y - 1, 0)]             a maximum: the window also contains the element at the border
0 <= y - 1 ? data[y - 1] : 0
    ->  data[y - 1]                     a sum: images read as zero outside
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map

from romou.compiler.scheduling.blocks import Reduction, axes_of
from romou.compiler.tir.calls import is_conditional
from romou.compiler.tir.evaluate import evaluate
from romou.compiler.tir.expressions import conjuncts, extents_of
from romou.compiler.tir.primitives import image_axes
from romou.compiler.tir.traversal import nodes_in


def without_branches(reduction: Reduction) -> tirx.Expr:
    """Return the reduced term without branches for padding, wherever the result is proven to be the same."""
    axes = axes_of(reduction.block)
    is_extreme = reduction.operation in (tirx.Max, tirx.Min)

    def call(expr: tvm.ir.Call) -> tirx.Expr:
        if not is_conditional(expr):
            return expr
        condition, load, padding = expr.args
        if not (isinstance(load, TensorLoad) and isinstance(padding, tirx.FloatImm)):
            return expr
        if not all(isinstance(extent, int) for extent in (*axes.values(), *extents_of(load.source.shape))):
            # Nothing is proven at all sizes, so the branch stays.
            return tirx.if_then_else(condition, load, reduction.unbounded(reduction.start)) if is_extreme else expr
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
    """Clamp the indices of loads from buffers to the buffer's extents. Clamped loads are not used.

    data[y, x + 1]      ->      data[y, min(x + 1, 12)]
    """

    def load(access: TensorLoad) -> tirx.Expr:
        if image_axes(access.source):
            return access
        indices = [
            _below(index, extent, axes)
            for index, extent in zip(access.indices, extents_of(access.source.shape), strict=True)
        ]
        return tirx.BufferLoad(access.source, indices)

    return structural_map(term, (TensorLoad, load))


def _below(index: tirx.Expr, extent: Any, axes: Mapping[tirx.Var, Any]) -> tirx.Expr:
    variables = _axes_in(index, axes)
    if not variables:
        return index
    is_known = all(isinstance(each, int) for each in (extent, *(axes[var] for var in variables)))
    # An index that is read, as a resize's by scales of the caller, is known at run time only.
    if is_known and not nodes_in(index, TensorLoad) and np.max(evaluate(index, _grid_of(variables, axes))) < extent:
        return index
    return tirx.min(index, tirx.const(extent - 1, index.ty) if isinstance(extent, int) else extent - 1)


def _is_image_side(condition: tirx.Expr, load: TensorLoad, axes: Mapping[tirx.Var, int]) -> bool:
    """Return whether a condition is exactly that a load is inside an image, and fails only for columns and rows."""
    remaining = conjuncts(condition)
    for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
        variables = _axes_in(index, axes)
        conditions = _parts_of(variables, remaining)
        if not conditions:
            continue
        grid = _grid_of(variables, axes)
        position = np.asarray(evaluate(index, grid))
        inside = (position >= 0) & (position < int(extent))
        if axis not in image_axes(load.source) or not _holds_where(conditions, inside, grid):
            return False
        remaining = _others(remaining, conditions)
    return not remaining


def _at_border(condition: tirx.Expr, load: TensorLoad, axes: Mapping[tirx.Var, int], reduction: Reduction) -> tirx.Expr:
    """Clamp the indices of a load if each window contains the element at the border. Otherwise keep the condition."""
    guarded_load = tirx.if_then_else(condition, load, reduction.unbounded(reduction.start))
    remaining = conjuncts(condition)
    indices = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        variables = _axes_in(index, axes)
        conditions = _parts_of(variables, remaining)
        if not conditions:
            indices.append(index)
            continue
        windows = [any(var.same_as(axis.var) for axis in reduction.reduced) for var in variables]
        if sorted(windows) != [False, True]:
            return guarded_load
        # The grid's first axis is the output, its second the window's taps.
        grid = _grid_of(sorted(variables, key=lambda var: windows[variables.index(var)]), axes)
        position = evaluate(index, grid)
        inside = (position >= 0) & (position < int(extent))
        border = np.clip(position, 0, int(extent) - 1)
        is_read = ((border[:, :, None] == position[:, None, :]) & inside[:, None, :]).any(-1)
        if not (_holds_where(conditions, inside, grid) and is_read.all()):
            return guarded_load
        remaining = _others(remaining, conditions)
        low = tirx.max(index, tirx.const(0, index.ty)) if position.min() < 0 else index
        indices.append(tirx.min(low, extent - 1) if position.max() >= int(extent) else low)
    return guarded_load if remaining else tirx.BufferLoad(load.source, indices)


def _axes_in(index: tirx.Expr, axes: Mapping[tirx.Var, int]) -> list[tirx.Var]:
    variables = nodes_in(index, tirx.Var)
    return [var for var in axes if any(var.same_as(other) for other in variables)]


def _parts_of(variables: Sequence[tirx.Var], conditions: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """Return the conditions on no other variables."""
    return [
        condition
        for condition in conditions
        if all(any(var.same_as(other) for other in variables) for var in nodes_in(condition, tirx.Var))
    ]


def _others(conditions: Sequence[tirx.Expr], taken: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    return [condition for condition in conditions if not any(condition.same_as(other) for other in taken)]


def _grid_of(variables: Sequence[tirx.Var], axes: Mapping[tirx.Var, int]) -> dict[tirx.Var, np.ndarray]:
    """Return all values of each variable, along its own axis of an array."""
    return dict(zip(variables, np.ix_(*(np.arange(axes[var]) for var in variables)), strict=True))


def _holds_where(conditions: Sequence[tirx.Expr], inside: np.ndarray, grid: Mapping[tirx.Var, np.ndarray]) -> bool:
    """Return whether the conditions are equal to `inside` everywhere."""
    values = [np.broadcast_to(evaluate(condition, grid), inside.shape) for condition in conditions]
    return np.array_equal(np.logical_and.reduce(values), inside)
