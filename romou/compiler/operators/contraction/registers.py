"""The registers that a work-item of a contraction needs, as a phone's compiler allocates them."""

from __future__ import annotations

import math

from romou.base.preset import Registers
from romou.base.space import Config
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.knobs import FP32
from romou.compiler.tir.primitives import LANES


def estimated_registers(contraction: Contraction, tile: Config, model: Registers) -> int:
    """Return the 32-bit registers of a work-item for its sums, its loads and addresses."""
    sums, tile_w = tile["tile_o"] * tile["tile_w"], tile["tile_w"]
    texels, *window, lanes = contraction.reduce.values()
    if contraction.lhs_varies == "by lane":
        loaded = window_row(contraction, tile_w)
        products = LANES * sums * math.prod(contraction.reduce.values())
        prefetched = float(products <= model.max_unrolled_products)
    elif math.prod(window) == 1 and LANES * sums * lanes * texels <= model.max_unrolled_constant_products:
        # The whole sum is unrolled.
        loads = texels * (tile_w + lanes * tile["tile_o"])
        return int(model.live_fraction * LANES * (sums + loads))
    else:
        loaded, prefetched = tile_w + LANES, _prefetched(contraction, tile, model)
    return int(LANES * (sums + loaded) + model.addresses + model.prefetched * prefetched)


def rolled_registers(contraction: Contraction, tile: Config) -> int:
    """Return the registers of a long sum without a window. Its loop stays rolled and loads one weight at a time."""
    *_, width = contraction.extents
    tile_w = tile["tile_w"]
    # If a row ends inside a tile, each pixel has an index.
    indices = tile_w * (width % tile_w > 0)
    return int(LANES * (tile["tile_o"] * tile_w + tile_w + 1) + 2 + indices)


def window_row(contraction: Contraction, tile_w: int) -> int:
    """Return the texels of one row of a depthwise window: weights, and the input span of a tile."""
    return 2 * list(contraction.reduce.values())[-1] + (tile_w - 1) * contraction.stride


def _prefetched(contraction: Contraction, tile: Config, model: Registers) -> float:
    """Return the loads that the compiler issues ahead, as a multiple of `model.prefetched`.

    It loads ahead for several taps of a window, and more if it unrolls all rows of the window.
    """
    *_, width = contraction.extents
    tile_w = tile["tile_w"]
    texels, *window, lanes = contraction.reduce.values()
    if math.prod(window) == 1:
        return 0
    is_whole_row = 1 < width <= tile_w
    # A sum over three channels has a single texel, so all weights are at constant addresses.
    is_constant = is_whole_row or (texels == 1 and contraction.inputs[0].dtype == FP32)
    products = LANES * tile["tile_o"] * tile_w * lanes * math.prod(window)
    is_unrolled = products <= (model.max_unrolled_constant_products if is_constant else model.max_unrolled_products)
    # The taps of a whole row read the same pixels, so only weights are loaded ahead.
    share = float((1 if is_unrolled or not is_whole_row else 1 / 2) + is_unrolled)
    if texels > 1:
        return share
    # With three channels, a whole row of the window is loaded at once.
    columns = window[-1]
    row = columns + (tile_w - 1) * contraction.stride + columns * lanes * tile["tile_o"]
    return max(share, float(LANES * (row - (tile_w + LANES)) / model.prefetched))
