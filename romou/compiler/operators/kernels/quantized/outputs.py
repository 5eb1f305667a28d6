"""The buffers of products with packed weights, and stores of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from romou.compiler.scheduling.blocks import axes_of, replace_loads
from romou.compiler.tir.expressions import is_multiple
from romou.compiler.tir.traversal import substitute


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The buffers of a product, and the block that makes the output of its result.

    product: the buffer of the sums, which the epilogue loads at its own place.
    epilogue: None if the sums are the output.
    """

    data: tirx.Buffer
    weight: tirx.Buffer
    product: tirx.Buffer
    epilogue: s_tir.SBlock | None

    def stored(self, place: Sequence[tirx.Expr], total: tirx.Expr) -> tirx.Stmt:
        """Return the statement that stores a sum at a place of the output, after the epilogue."""
        if self.epilogue is None:
            return tirx.BufferStore(self.product, total, list(place))
        store = self.epilogue.body
        value = replace_loads(store.value, self.product, lambda _: total)
        value = substitute(value, dict(zip(axes_of(self.epilogue), place, strict=True)))
        return tirx.BufferStore(store.buffer, value, list(place))


def checks(place: Sequence[tirx.Expr], extents: Sequence[Any], tiles: Sequence[int]) -> list[tirx.Expr]:
    """Return the conditions for a place inside of the output, for each axis that a group's tile does not divide."""
    parts = zip(place, extents, tiles, strict=True)
    return [at < extent for at, extent, tile in parts if not is_multiple(extent, tile)]
