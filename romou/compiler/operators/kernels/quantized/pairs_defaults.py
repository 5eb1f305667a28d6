"""Default configs of products with several rows of activations whose codes become pairs of fp16 numbers.

Fitted to times of 44 kernels of 4 rows and 6 kernels of 64 rows on an NVIDIA H100 through Vulkan: 4096 x 4096, int4 in
blocks of 32, weights rotated beyond the second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.kernels.quantized.kernel import OF_BLOCK, PAIRS, QuantizedTiles
from romou.compiler.operators.kernels.quantized.row_classes import MOST_FEW
from romou.compiler.operators.kernels.quantized.template import PLAIN_ITEM_DATA
from tvm_patches.quantized_matrix import QuantizedProduct

_KNOBS = ("group_rows", "item_rows", "item_data", "item_chunks")
# Tiles for 2 to 8 rows of activations and for more. Parts of a sum and staged activations follow the sizes.
_FEW, _MORE = (8, 4, 4, 2), (64, 4, 8, 1)
_FEW_PARTS, _MORE_PARTS = (16, 8, 4, 2, 1), (1, 2, 4)
_FEW_STAGED, _MORE_STAGED = (2048, 1024, 512, 256, 0), 256


def pairs_config(work: QuantizedProduct, space: Space, limits: Limits) -> Config | None:
    """Return the default config with pairs for several rows of activations, or None if no such config is valid."""
    if PAIRS not in space.knobs["unpack"]:
        return None
    is_few = work.m <= MOST_FEW
    usable = [config for config in (_few if is_few else _more)(work, space) if space.is_valid(config)]
    if is_few:
        return next(iter(usable), None)

    def is_busy(config: Config) -> bool:
        return 10 * int(QuantizedTiles(work, config).groups) * int(config["group_parts"]) >= 9 * limits.cores

    return next(filter(is_busy, usable), usable[-1] if usable else None)


def _few(work: QuantizedProduct, space: Space) -> Iterator[Config]:
    """Yield configs for 2 to 8 rows: the most parts of a sum first, with as many staged activations as fit."""
    tile = _tile(space, _FEW, work.m)
    for parts in _FEW_PARTS:
        for staged in _FEW_STAGED:
            yield tile.replace(group_parts=parts, staged_data=staged)


def _more(work: QuantizedProduct, space: Space) -> Iterator[Config]:
    """Yield configs for more rows: sums are split only if there are fewer groups than cores."""
    tile = _tile(space, _MORE, work.m)
    for parts in _MORE_PARTS:
        yield tile.replace(group_parts=parts, staged_data=_MORE_STAGED)


def _tile(space: Space, tile: tuple[int, ...], m: int) -> Config:
    knobs = dict(zip(_KNOBS, tile, strict=True))
    knobs["item_data"] = next(data for data in PLAIN_ITEM_DATA if data >= min(m, knobs["item_data"]))
    return space.default(**knobs, unpack=PAIRS, zero_point=OF_BLOCK)
