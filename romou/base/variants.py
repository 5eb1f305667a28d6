"""Boda's variants of convolutions and matrix products, each a part of a contraction's knob space.

The restriction of a space, the docs and benchmarks/bench_variants.py read the table `VARIANTS`.

Source: Moskewicz, Jannesari and Keutzer, Boda-RTC, 2016, and A Metaprogramming and Autotuning Framework, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from romou.base.knob import Choice

# Keys of `VARIANTS`.
VariantName: TypeAlias = Literal[
    "conv",
    "conv_simd",
    "conv_simd_buffered",
    "tconv",
    "k1conv",
    "k1conv_simd",
    "SGEMM",
    "SGEMM_buffered",
    "texture",
    "texture_tconv",
]


class Windows(str, Enum):
    """Operators that have a variant, by their window. Matrix products have none."""

    ANY = "any window"
    POINT = "windows of one element"
    LARGER = "windows of several elements"
    NONE = "matrix products"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of Boda's.

    title: the variant in Boda.
    windows: the operators that have it.
    choices: knob -> the choices that it leaves. Other knobs keep all of theirs.
    images: the value of the target option `-images` that it implies. None: the target's own.
    """

    title: str
    windows: Windows
    choices: Mapping[str, Sequence[Choice]]
    images: str | None = None

    def is_of(self, window: Sequence[int] | None) -> bool:
        """Return whether an operator with a window of these sides has the variant. None: a matrix product."""
        if window is None or self.windows == Windows.NONE:
            return window is None and self.windows == Windows.NONE
        is_point = math.prod(window) == 1
        return self.windows == Windows.ANY or is_point == (self.windows == Windows.POINT)


# Beyond Boda: sums split among work-items, a second copy of staged operands, and tensor cores.
_PLAIN: dict[str, Sequence[Choice]] = {
    "split_k": (1,),
    "local_buffers": (1,),
    "multiply_add": ("mad", "fma", "plain"),
}
_UNSTAGED: dict[str, Sequence[Choice]] = {"local": (0,)}
_STAGED: dict[str, Sequence[Choice]] = {"local": (1, 2, 4, 8, 16)}
_BUFFERS: dict[str, Sequence[Choice]] = {"data": ("buffer",), "weight": ("buffer",)}
_IMAGE: dict[str, Sequence[Choice]] = {"data": ("image",)}

VARIANTS: Mapping[str, Variant] = {
    "conv": Variant(
        title="implicit SGEMM: elements are read as they are needed, one by one",
        windows=Windows.ANY,
        choices={**_BUFFERS, **_UNSTAGED, "vector_width": (1,), "unroll": ("lanes",), **_PLAIN},
        images="never",
    ),
    "conv_simd": Variant(
        title="the same with vector loads, without local memory: for the Snapdragon 820",
        windows=Windows.ANY,
        choices={**_BUFFERS, **_UNSTAGED, "vector_width": (4,), **_PLAIN},
        images="never",
    ),
    "conv_simd_buffered": Variant(
        title="the same with output buffers in local memory, from which the group stores: for the Snapdragon 820",
        windows=Windows.ANY,
        choices={**_BUFFERS, **_UNSTAGED, "vector_width": (4,), "store": ("group",), **_PLAIN},
        images="never",
    ),
    "tconv": Variant(
        title="a group loads whole tiles of the input, borders of the window included; the window is unrolled",
        windows=Windows.LARGER,
        choices={**_BUFFERS, **_STAGED, "unroll": ("window", "iteration"), **_PLAIN},
        images="never",
    ),
    "k1conv": Variant(
        title="a matrix product of a transformed input; here channels are packed by four in any case",
        windows=Windows.POINT,
        choices={**_BUFFERS, **_STAGED, **_PLAIN},
        images="never",
    ),
    "k1conv_simd": Variant(
        title="the same with vector loads, without local memory",
        windows=Windows.POINT,
        choices={**_BUFFERS, **_UNSTAGED, "vector_width": (4,), **_PLAIN},
        images="never",
    ),
    "SGEMM": Variant(title="matrix products", windows=Windows.NONE, choices=_PLAIN),
    "SGEMM_buffered": Variant(
        title="matrix products without local memory but for output buffers, for the Snapdragon 820",
        windows=Windows.NONE,
        choices={**_BUFFERS, **_UNSTAGED, "store": ("group",), **_PLAIN},
        images="never",
    ),
    "texture": Variant(
        title="data is read from a texture, which caches it",
        windows=Windows.ANY,
        choices={**_IMAGE, **_UNSTAGED, **_PLAIN},
        images="prefer",
    ),
    "texture_tconv": Variant(
        title="tiles of the input are loaded from a texture",
        windows=Windows.ANY,
        choices={**_IMAGE, **_STAGED, **_PLAIN},
        images="prefer",
    ),
}
