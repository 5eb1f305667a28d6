"""Register tiles for phones: the fewest instructions without spills."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from romou.base.limits import Limits
from romou.base.preset import Registers
from romou.base.space import Config, Space
from romou.compiler.operators.contraction.form import Contraction, round_up
from romou.compiler.operators.contraction.knobs import FP32, MIXED
from romou.compiler.operators.contraction.occupancy import (
    candidates,
    computed,
    fit_group,
    min_work_items,
    split_sums,
    warp_of,
    work_items,
)
from romou.compiler.operators.contraction.registers import (
    estimated_registers,
    rolled_registers,
    window_row,
)
from romou.compiler.tir.primitives import LANES


def fit_tile(space: Space, contraction: Contraction, config: Config, limits: Limits) -> Config:
    """Return `config` with the register tile that takes fewest instructions and does not spill.

    A load costs about the same as a multiply-add of a texel. Padding beyond the ends of rows and channels counts, too.
    Devices without a register model keep the tile of `config`.
    """
    model = limits.preset.registers
    if model is None or limits.registers is None:
        return config
    rules = _TileRules(space, contraction, limits, model)
    config = next(candidates(space, config, rules.sides_if_spilling(config)), config)
    tiles = list(candidates(space, config, rules.sides))
    fitting = [tile for tile in tiles if rules.fits(tile) and rules.is_busy(tile)]
    if rules.fits(config) or not rules.loads_ahead:
        fitting = [config, *fitting]
    if not fitting:
        narrow = list(candidates(space, config, rules.narrow_sides))
        least = min(narrow, key=rules.registers, default=config)
        fitting = [tile for tile in (*tiles, *narrow) if rules.fits(tile) and rules.is_busy_if_split(tile)] or [least]
    best = min(fitting, key=rules.instructions)
    return config.replace(tile_o=best["tile_o"], tile_w=best["tile_w"])


@dataclass(frozen=True)
class _TileRules:
    """The rules that compare the tiles of a contraction."""

    space: Space
    contraction: Contraction
    limits: Limits
    model: Registers
    _grouped: dict[Config, Config] = field(default_factory=dict)

    @property
    def is_float(self) -> bool:
        return self.space.knobs["accumulate"] == (FP32,)

    @property
    def sides(self) -> dict[str, tuple[int, ...]]:
        """The tiles to compare.

        A single pixel, as in dense layers, gets its work-items by splitting its sums, and a larger tile splits them
        among more work-items. Compilers unroll the remaining loop if it is short, which takes registers for each
        output.
        """
        width, texels = self.contraction.extents[2], next(iter(self.contraction.reduce.values()))
        is_long = width == 1 < self.limits.busy_work_items and LANES * texels > self.model.max_unrolled_products
        return {"tile_o": (1, 2, 4) if is_long else (1, 2), "tile_w": (4, 7, 8) if width > 1 else (1,)}

    @property
    def narrow_sides(self) -> dict[str, tuple[int, ...]]:
        """The tiles to compare if none of `sides` fits."""
        return {"tile_o": (1, 2), "tile_w": (2, 1) if self.contraction.extents[2] == 1 else (2,)}

    @property
    def loads_ahead(self) -> bool:
        """Return whether the compiler loads ahead as far as the registers allow. Mali's keep the order of the text."""
        return self.limits.registers_of_all is not None

    def fits(self, tile: Config) -> bool:
        """Return whether a tile with its work group does not spill."""
        return self.registers(self.grouped(tile)) <= self.most_registers

    @property
    def most_registers(self) -> float:
        assert self.limits.registers is not None, "callers have looked"
        return self.model.max_fill * self.limits.registers

    def registers(self, tile: Config) -> int:
        texels, *window, _ = self.contraction.reduce.values()
        # In fp16 such a loop spills, so it counts as unrolled.
        is_rolled = (
            self.is_float
            and self.contraction.rhs_vector == "lanes"
            and math.prod(window) == 1
            and self.model.min_rolled_texels is not None
            and texels >= self.model.min_rolled_texels
        )
        if is_rolled:
            return rolled_registers(self.contraction, tile)
        return estimated_registers(self.contraction, tile, self.limits)

    def instructions(self, tile: Config) -> float:
        """Return the instructions for all outputs, padding and idle lanes included."""
        o, _, w = self.contraction.extents
        # A single pixel gets more work-items by splitting its sums.
        texels = (
            computed(self.contraction, self.grouped(tile), warp_of(self.limits))
            if w > 1
            else round_up(o, tile["tile_o"])
        )
        return float((1 + self._loads(tile)) * texels)

    def _loads(self, tile: Config) -> float:
        """Return the loads for each product of a texel and a number."""
        *_, lanes = self.contraction.reduce.values()
        is_depthwise = self.contraction.lhs_varies == "by lane"
        loaded = (
            window_row(self.contraction, tile["tile_w"]) if is_depthwise else lanes * tile["tile_o"] + tile["tile_w"]
        )
        return float(loaded / (lanes * tile["tile_o"] * tile["tile_w"]))

    def grouped(self, tile: Config) -> Config:
        """Return the tile with its work group, and with its sums split if they leave the device idle."""
        if tile not in self._grouped:
            group = fit_group(self.space, self.contraction, tile, warp_of(self.limits))
            self._grouped[tile] = split_sums(self.space, self.contraction, group, self.limits)
        return self._grouped[tile]

    def is_busy(self, tile: Config) -> bool:
        """Return whether the tile leaves enough work-items. A single pixel gets them by splitting its sums."""
        return self.contraction.extents[2] == 1 or self.fills(tile)

    def is_busy_if_split(self, tile: Config) -> bool:
        """Return whether the tile leaves enough work-items with its sums split among them."""
        return self.fills(self.grouped(tile))

    def fills(self, tile: Config) -> bool:
        """Return whether there are work-items enough."""
        return work_items(self.contraction, tile) >= min_work_items(self.limits, self.contraction, tile)

    def sides_if_spilling(self, config: Config) -> dict[str, tuple[Any, ...]]:
        """Return other sides if the default tile spills. `Registers.spilling_windows` says on which devices it does.

        Windows at a stride have little input in common. If a row ends inside a tile, each pixel has an index: beside
        sums of mixed precision between Winograd's transforms, or beside a weight that is loaded by scalars.
        """
        _, _, w = self.contraction.extents
        stride, spilling = self.contraction.stride, self.model.spilling_windows
        texels, *window, lanes = self.contraction.reduce.values()
        square: dict[str, tuple[Any, ...]] = {"tile_o": (2,), "tile_w": (2,)}
        if spilling == "none":
            return {}
        if self.contraction.is_batched and w % config["tile_w"] > 0:
            return self._narrow_sides(config)
        if stride == 1:
            return {}
        is_cut = stride == 2 and self.contraction.is_padded and w % config["tile_w"] > 0
        if self.contraction.lhs_varies == "by lane":
            taps, most = math.prod(self.contraction.reduce.values()), self.model.most_strided_taps
            is_guarded = spilling == "all" and is_cut and self._guards_channels(config)
            return {"tile_w": (2,)} if is_guarded or (most is not None and taps > most) else {}
        if math.prod(window) == 1 or not self.is_float:
            return square if math.prod(window) > 1 < texels and is_cut and spilling == "all" else {}
        if self.contraction.lhs_varies == "by texel":
            return {"tile_w": (2,)}
        if texels > 1:
            return square if spilling == "all" or is_cut else {}
        products = LANES * config["tile_o"] * config["tile_w"] * lanes * math.prod(window)
        if spilling == "all":
            # A row at a time, a large window of `image2d_t` is read ahead of its products.
            is_long = products > self.model.max_unrolled_constant_products
            tile: dict[str, tuple[Any, ...]] = {"tile_w": (2,), "unroll": ("window",)} if is_long else {}
            return square if stride > 2 or is_cut else tile
        return {"tile_w": (2,)} if stride == 2 and products <= self.model.max_unrolled_products else {}

    def _guards_channels(self, config: Config) -> bool:
        """Return whether the channels end inside a work group, and a row has several groups of several tiles.

        Work-items then keep the index of a channel that exists, of their own channel, and of their pixels in the row.
        """
        group = self.grouped(config)
        o, _, w = self.contraction.extents
        return bool(o % (group["tile_o"] * group["wg_o"]) > 0 and w > group["tile_w"] * group["wg_w"] > group["tile_w"])

    def _narrow_sides(self, config: Config) -> dict[str, tuple[int, ...]]:
        """Return the sides of a tile of a product if a row ends inside the default tile, whose pixels have an index
        each.

        The texels of a weight that is contiguous along the sum, or its single numbers, leave no registers for four
        indices. Pieces of sums in mixed precision are short.
        """
        *_, lanes = self.contraction.reduce.values()
        vector, is_mixed = self.contraction.rhs_vector, config["accumulate"] == MIXED
        if self.contraction.texel == LANES:
            # The tensor between Winograd's transforms has texels, an operand of a product has none.
            return {"tile_o": (2,), "tile_w": (2,)} if is_mixed else {}
        if vector == "none" or (vector == "reduction" and lanes > 1):
            if self.is_float:
                is_narrow = vector == "reduction" and self.model.spilling_windows == "all"
                return {"tile_w": (2,) if is_narrow else (3,)}
            if is_mixed and self.grouped(config)["split_k"] == 1:
                return {"tile_w": (3,)}
        return {}
