"""Stores of the outputs of products with packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from romou.compiler.scheduling.blocks import axes_of, replace_loads, substitute
from romou.compiler.tir.expressions import is_multiple


def stored(
    product: tirx.Buffer, epilogue: s_tir.SBlock | None, place: Sequence[tirx.Expr], total: tirx.Expr
) -> tirx.Stmt:
    """Return the statement that stores a sum of `product` at a place of the output, behind the epilogue."""
    if epilogue is None:
        return tirx.BufferStore(product, total, list(place))
    store = epilogue.body

    def load(_: TensorLoad) -> tirx.Expr:
        return total

    value = replace_loads(store.value, product, load)
    value = substitute(value, dict(zip(axes_of(epilogue), place, strict=True)))
    return tirx.BufferStore(store.buffer, value, list(place))


def checks(place: Sequence[tirx.Expr], extents: Sequence[Any], tiles: Sequence[int]) -> list[tirx.Expr]:
    """Return the conditions for a place inside of the output, for each axis that a group's tile does not divide."""
    parts = zip(place, extents, tiles, strict=True)
    return [at < extent for at, extent, tile in parts if not is_multiple(extent, tile)]
