"""Constants of a model with sizes at run time: those at smaller sizes are corners of those at the largest sizes.

    size 3: mask [[0, -1, -1],      size 2: mask [[0, -1],      ->      mask[i, j] of a buffer of 3 rows of 3
                  [0,  0, -1],                    [0,  0]]
                  [0,  0,  0]]

So a kernel reads them from the constants of the largest sizes, whose strides are no sizes at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from romou.compiler.tir.calls import called_function
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.traversal import substitute, with_fields

# A function, and the position of its parameter
Parameter: TypeAlias = tuple[str, int]
# Parameter -> its shape at the largest sizes
ConstantShapes: TypeAlias = Mapping[Parameter, tuple[int, ...]]


def constant_shapes(whole: tvm.IRModule) -> ConstantShapes:
    """Return the shapes of the parameters that are constants in all calls of a model's functions."""
    shapes: dict[Parameter, set[tuple[int, ...] | None]] = {}
    for parameter, value in _tensors(whole["main"]):
        if parameter is not None:
            shapes.setdefault(parameter, set()).add(value.value.numpy().shape if _is_constant(value) else None)
    only = {parameter: next(iter(each)) for parameter, each in shapes.items() if len(each) == 1}
    return {parameter: shape for parameter, shape in only.items() if shape is not None}


def with_constant_shapes(functions: Mapping[str, tirx.PrimFunc], shapes: ConstantShapes) -> Mapping[str, tirx.PrimFunc]:
    """Return the functions of a model at other sizes, which read corners of constants of these shapes."""
    changed = dict(functions)
    for (name, place), shape in shapes.items():
        func = changed[name]
        old = func.params[place]
        if len(old.shape) == len(shape) and [*map(int, old.shape)] != [*shape]:
            new = tirx.decl_buffer(shape, old.dtype, old.name, scope=str(old.scope()))
            params = [*func.params[:place], new, *func.params[place + 1 :]]
            changed[name] = with_fields(func, params=params, body=substitute(func.body, {old: new}))
    return changed


def has_corners(whole: tvm.IRModule, smaller: tvm.IRModule, shapes: ConstantShapes) -> bool:
    """Return whether the constants for smaller sizes are corners of those for the largest ones.

    Constants beside `shapes` have to be the first elements: their readers read other tensors, too, or are no kernels.
    """
    pairs = [list(_tensors(each["main"])) for each in (whole, smaller)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for (parameter, mine), (_, other) in zip(*pairs, strict=True):
        if not _is_constant(mine) and not _is_constant(other):
            continue
        if not (_is_constant(mine) and _is_constant(other)) or len(mine.value.shape) != len(other.value.shape):
            return False
        large, small = mine.value.numpy(), other.value.numpy()
        corner = large[tuple(map(slice, small.shape))] if parameter in shapes else large.reshape(-1)[: small.size]
        if not np.array_equal(corner.reshape(-1), small.reshape(-1)):
            return False
    return True


def _tensors(main: relax.Function) -> Iterator[tuple[Parameter | None, Any]]:
    """Yield each argument of the calls of functions with its parameter, and constants elsewhere with None."""
    for value in (binding.value for binding in bindings_of(main)):
        if name := called_function(value):
            yield from (((name, place), each) for place, each in enumerate(value.args[1].fields))
        else:
            found: list[Any] = []
            relax.analysis.post_order_visit(value, found.append)
            yield from ((None, each) for each in found if _is_constant(each))


def _is_constant(value: Any) -> bool:
    """Return whether an expression is a tensor. A tensor of no elements has a constant dtype, too."""
    return isinstance(value, tvm.ir.GenericConst) and isinstance(value.value, tvm.runtime.Tensor)
