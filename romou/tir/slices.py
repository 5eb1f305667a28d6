"""Functions that read or write parts of larger tensors, so that concatenations and slices of channels cost nothing (`layout/share_buffers.py`).

A part is a range along axis 1 of a packed tensor (n, channels / 4, h, w, 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import tvm
from tvm import tirx
from tvm.ir import TensorLoad, TensorRegion
from tvm_ffi.structural import structural_map

AXIS = 1
# Attribute of a function whose parameters are parts of larger tensors.
_PARTS = "romou.tir.slices"


@dataclass(frozen=True)
class Part:
    """position: of a parameter.   extent: its own.   whole: of the tensor that it is a part of.   first: where it begins there."""

    position: int
    extent: int
    whole: int
    first: int


def with_parts(func: tirx.PrimFunc, parts: Sequence[Part]) -> tirx.PrimFunc:
    """`func`, scheduled or not, on larger tensors; it remembers its parts.

    data[n, o, y, x, lane]      ->      data[n, o + first, y, x, lane], where axis 1 of data has the extent `whole`
    """
    for part in parts:
        func = _moved(func, part)
    return func.with_attr(_PARTS, [list(astuple(part)) for part in parts]) if parts else func


def parts_of(func: tirx.PrimFunc) -> list[Part]:
    """Return the buffer slices of a function that `with_parts` made; none of any other."""
    return [Part(*map(int, numbers)) for numbers in func.attrs[_PARTS]] if func.attrs and _PARTS in func.attrs else []


def alone(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """What `with_parts` was given, if no pass has changed the function since; any other function as it is."""
    parts = parts_of(func)
    for part in parts:
        func = _moved(func, part, is_back=True)
    return func.without_attr(_PARTS) if parts else func


def _moved(func: tirx.PrimFunc, part: Part, *, is_back: bool = False) -> tirx.PrimFunc:
    """With the accesses to one parameter moved, or moved back."""
    old, extent = func.params[part.position], part.extent if is_back else part.whole
    shape = [tirx.const(extent, d.ty) if axis == AXIS else d for axis, d in enumerate(old.shape)]
    new = tirx.decl_buffer(shape, old.dtype, old.name, scope=str(old.scope()), layout=None if old.layout is None else "default")

    def placed(indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        index = indices[AXIS]
        return [*indices[:AXIS], index.a if is_back else tirx.Add(index, tirx.const(part.first, index.ty)), *indices[AXIS + 1 :]]

    def load(access: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(new, placed(access.indices)) if access.source.same_as(old) else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(new, access.value, placed(access.indices)) if access.buffer.same_as(old) else access

    def region(access: TensorRegion) -> TensorRegion:
        if not access.source.same_as(old):
            return access
        lows = placed([side.min for side in access.region])
        return TensorRegion(new, [tvm.ir.Range.from_min_extent(low, side.extent) for low, side in zip(lows, access.region, strict=True)], access.ty)

    body = structural_map(func.body, [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)])
    return tirx.PrimFunc([new if p.same_as(old) else p for p in func.params], body, func.ret_type, func.attrs)
