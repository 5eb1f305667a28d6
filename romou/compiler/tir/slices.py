"""Functions that read or write slices of larger tensors.

They replace copies for concatenations and slices of channels (`romou/compiler/graph/share_buffers.py`).

A slice is a range along axis 1 of a packed tensor (n, channels / 4, h, w, 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import tvm
from tvm import tirx
from tvm.ir import TensorLoad, TensorRegion
from tvm_ffi.structural import structural_map

from romou.compiler.tir.traversal import with_fields

AXIS = 1
# Attribute of a function whose parameters are slices of larger tensors.
_SLICES = "romou.tir.slices"


@dataclass(frozen=True)
class Slice:
    """A parameter that is a slice of a larger tensor.

    position: of the parameter.
    extent: of the slice along the axis.
    whole: extent of the larger tensor.
    first: start of the slice in the larger tensor.
    """

    position: int
    extent: int
    whole: int
    first: int


def with_slices(func: tirx.PrimFunc, slices: Sequence[Slice]) -> tirx.PrimFunc:
    """Return `func`, scheduled or not, on larger tensors. An attribute keeps the slices.

    data[n, o, y, x, lane]      ->      data[n, o + first, y, x, lane], with extent `whole` of axis 1 of data
    """
    for slice_ in slices:
        func = _moved(func, slice_)
    return func.with_attr(_SLICES, [list(astuple(slice_)) for slice_ in slices]) if slices else func


def slices_of(func: tirx.PrimFunc) -> list[Slice]:
    """Return the buffer slices of a function of `with_slices`, none of other functions."""
    return (
        [Slice(*map(int, numbers)) for numbers in func.attrs[_SLICES]] if func.attrs and _SLICES in func.attrs else []
    )


def without_slices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function before `with_slices`, if no pass has changed it since.

    Other functions are returned as they are.
    """
    slices = slices_of(func)
    for slice_ in slices:
        func = _moved(func, slice_, is_back=True)
    return func.without_attr(_SLICES) if slices else func


def _moved(func: tirx.PrimFunc, slice_: Slice, *, is_back: bool = False) -> tirx.PrimFunc:
    """Return the function with the accesses of one parameter moved, or moved back."""
    old, extent = func.params[slice_.position], slice_.extent if is_back else slice_.whole
    shape = [tirx.const(extent, d.ty) if axis == AXIS else d for axis, d in enumerate(old.shape)]
    new = tirx.decl_buffer(
        shape, old.dtype, old.name, scope=str(old.scope()), layout=None if old.layout is None else "default"
    )

    def placed(indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        index = indices[AXIS]
        return [
            *indices[:AXIS],
            index.a if is_back else tirx.Add(index, tirx.const(slice_.first, index.ty)),
            *indices[AXIS + 1 :],
        ]

    def load(access: TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(new, placed(access.indices)) if access.source.same_as(old) else access

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(new, access.value, placed(access.indices)) if access.buffer.same_as(old) else access

    def region(access: TensorRegion) -> TensorRegion:
        if not access.source.same_as(old):
            return access
        lows = placed([side.min for side in access.region])
        return TensorRegion(
            new,
            [tvm.ir.Range.from_min_extent(low, side.extent) for low, side in zip(lows, access.region, strict=True)],
            access.ty,
        )

    body = structural_map(func.body, [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)])
    return with_fields(func, params=[new if p.same_as(old) else p for p in func.params], body=body)
