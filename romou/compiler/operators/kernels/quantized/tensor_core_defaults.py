"""Default configs of products with quantized weights on tensor cores.

Fitted to times of 16 to 61 configs of each of 12 products on an NVIDIA H100 through CUDA: int4 in blocks of 32 and 128,
1 to 2048 rows of activations, matrices of 2048 to 11008 numbers a side, weights rotated beyond the second-level cache.
Through OpenCL, whose groups have 48 KiB of local memory, 66 configs of each of three products of one row.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.kernels.quantized.kernel import OF_WEIGHT, SHIFT, QuantizedTiles
from romou.compiler.operators.kernels.quantized.template import MMA_ITEM_DATA
from romou.compiler.operators.kernels.tensor_cores import MMA, WGMMA
from tvm_patches.quantized_matrix import QuantizedProduct

_Tile: TypeAlias = tuple[str, int, int, int, int, int]
_KNOBS = ("tensor_cores", "group_rows", "group_parts", "item_rows", "item_data", "staged_data")
# Rows of activations up to which these tiles are taken. The first tile is taken that fills the cores.
_TILES: tuple[tuple[int, list[_Tile]], ...] = (
    (8, [(MMA, 16, 4, 2, 2, 512)]),
    (16, [(MMA, 16, 4, 2, 4, 256)]),
    (32, [(MMA, 32, 2, 2, 8, 256)]),
)
_LARGE_TILES: dict[str, list[_Tile]] = {
    WGMMA: [(WGMMA, 32, 1, 4, 32, 64), (WGMMA, 32, 1, 2, 16, 128), (WGMMA, 32, 1, 2, 8, 128)],
    MMA: [(MMA, 32, 1, 4, 16, 64), (MMA, 32, 2, 2, 8, 256)],
}
# Taken instead of a tile whose stages local memory does not hold, if it holds these.
_NARROWER: dict[_Tile, _Tile] = {(MMA, 16, 4, 2, 2, 512): (MMA, 8, 4, 2, 2, 512)}
_LEAST_STAGED = 32
# Powers of two are in every space. Other widths than those have to fill the device better by this factor, with tiles of
# 128 rows of the weight.
_WIDTHS, _LARGE_WIDTH, _BETTER = (2, 4, 8, 16, 32, 64), 16, 1.05
# Other widths of default configs are larger than the usual one.
_WIDE = 32
_LARGE_TILE = dict(zip((*_KNOBS, "item_chunks"), (MMA, 32, 1, 4, 32, 64, 1), strict=True))


def data_choices(work: QuantizedProduct, cores: int) -> list[int]:
    """Return rows of activations of a work-item: powers of two, and widths whose tiles fill the cores' rounds better.

    512 rows x 11008, 132 cores: 344 tiles of 128 x 128 are 3 rounds, 87% busy. 258 of 176 x 128 are 2 rounds, 95%.
    """
    fitting = [width for width in MMA_ITEM_DATA if width == MMA_ITEM_DATA[0] or 2 * width < work.m]
    usual = [width for width in fitting if width in _WIDTHS]

    def busy(width: int) -> float:
        return float(busy_share(work, QuantizedTiles(work, {**_LARGE_TILE, "item_data": width}), cores))

    most = max((busy(width) for width in usual if width >= _LARGE_WIDTH), default=1.0)
    return [width for width in fitting if width in usual or (width > _LARGE_WIDTH and busy(width) > _BETTER * most)]


def busy_share(work: QuantizedProduct, tiles: QuantizedTiles, cores: int) -> Any:
    """Return the share of the cores' rounds that makes results, if a core has one group at a time."""
    return work.m * work.n / (-(-tiles.groups // cores) * cores * tiles.outputs_of_group)


def tensor_core_config(work: QuantizedProduct, space: Space, limits: Limits) -> Config | None:
    """Return the default config on tensor cores, or None if the space has none."""
    choices = space.knobs.get("tensor_cores", ())
    if MMA not in choices:
        return None
    large = [*_tiles_that_fill(work, space, limits.cores), *_LARGE_TILES[WGMMA if WGMMA in choices else MMA]]
    tiles = next((tiles for most, tiles in _TILES if work.m <= most), large)
    usable = [config for tile in tiles if (config := _config(space, tile)) is not None]

    def groups(config: Config) -> int:
        return int(QuantizedTiles(work, config).groups)

    full = (config for config in usable if 10 * groups(config) >= 9 * limits.cores)
    return next(full, max(usable, key=groups, default=None))


def _tiles_that_fill(work: QuantizedProduct, space: Space, cores: int) -> list[_Tile]:
    """Return the tile that fills the cores' rounds best, if it is wider than the usual ones.

    Two warp groups have 128 rows of the weight. A core takes one such group at a time.
    """
    widths = [int(width) for width in space.knobs["item_data"] if int(width) > _WIDE and width not in _WIDTHS]
    if WGMMA not in space.knobs["tensor_cores"] or not widths:
        return []
    tiles = {width: QuantizedTiles(work, {**_LARGE_TILE, "item_data": width}) for width in widths}
    best = max(widths, key=lambda width: busy_share(work, tiles[width], cores))
    return [(WGMMA, 64, 1, 2, best, 64)]


def _config(space: Space, tile: _Tile) -> Config | None:
    """Return a tile as a config that stages as much of it as is valid."""
    whole, narrower = (_staged(space, each, each[-1]) for each in (tile, _NARROWER.get(tile, tile)))
    if whole is None and narrower is not None:
        return narrower
    choices = (tile[-1] >> halvings for halvings in range(tile[-1].bit_length()))
    configs = (_staged(space, tile, staged) for staged in choices if staged >= _LEAST_STAGED)
    return next((config for config in configs if config is not None), None)


def _staged(space: Space, tile: _Tile, staged: int) -> Config | None:
    """Return a tile as a config that stages `staged` numbers, or None if it is not valid."""
    knobs: dict[str, str | int] = dict(zip(_KNOBS, tile, strict=True))
    plain = space.default(**{**knobs, "staged_data": 0, "item_chunks": 1, "unpack": SHIFT, "zero_point": OF_WEIGHT})
    config = plain.replace(staged_data=staged)
    return config if space.is_valid(config) else None
