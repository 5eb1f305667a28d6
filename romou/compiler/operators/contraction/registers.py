"""The registers that a work-item of a contraction needs, as a phone's compiler allocates them."""

from __future__ import annotations

import math

from romou.base.preset import Registers
from romou.base.space import Config
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.tir.primitives import LANES, MemoryKind

# Operations of a load with its address, and of an iteration, if a product of two numbers is one. Compilers count them
# before they unroll a loop.
_LOAD_COST, _ITERATION_COST = 8, 20


def estimated_registers(contraction: Contraction, tile: Config, model: Registers) -> int:
    """Return the 32-bit registers of a work-item for its sums, its loads and addresses.

    A compiler moves loads and their addresses ahead inside of a basic block. The first few loads take all of their
    registers, the others wait for free ones.
    """
    loads = _loads_of_block(contraction, tile, model)
    ahead = min(LANES * loads + model.addresses, model.loaded_ahead + model.load_ahead * loads)
    # Each pixel of a depthwise tile has its own input.
    pixels = 2 * tile["tile_w"] * (contraction.lhs_varies == "by lane")
    return int(LANES * tile["tile_o"] * tile["tile_w"] + ahead + pixels)


def _loads_of_block(contraction: Contraction, tile: Config, model: Registers) -> int:
    """Return the loads of an iteration that the compiler keeps as a loop. It unrolls the inner loops."""
    tile_o, tile_w = int(tile["tile_o"]), int(tile["tile_w"])
    texels, *window, lanes = contraction.reduce.values()
    products = LANES * tile_o * tile_w * math.prod(window) * lanes
    is_whole_row = 1 < contraction.extents[2] <= tile_w
    if contraction.lhs_varies == "by lane":
        # A depthwise window: its rows are `texels` and `window`, its columns `lanes`.
        rows, products = texels * math.prod(window), products * texels
        limit = model.max_unrolled_constant_products if is_whole_row else model.max_unrolled_products
        return window_row(contraction, tile_w) * (rows if products <= limit else 1)
    taps, columns = math.prod(window), window[-1] if window else 1
    weights = lanes * tile_o * (LANES if contraction.rhs_vector == "none" else 1)
    rows = taps // columns
    # Neighbouring windows share their input.
    inputs = tile_w if is_whole_row else (tile_w - 1) * contraction.stride + columns if columns > 1 else tile_w
    row = (inputs if contraction.lhs_vector else lanes * inputs) + columns * weights
    if taps > 1 and (texels == 1 or is_whole_row):
        # The only texel of three channels has constant addresses, and so have the columns of a whole row.
        if products <= model.max_unrolled_constant_products:
            return rows * row
        # A whole row keeps its pixels, and loads the weights of one texel of channels at a time.
        return tile_w + columns * lanes if is_whole_row else columns * (tile_w + weights)
    # Work-items that share a sum have a part of the loop each.
    texels = -(-texels // int(tile["split_k"]))
    operations = products + _LOAD_COST * rows * row + _ITERATION_COST * taps
    if texels * operations <= model.max_unrolled_operations:
        # Loads of images pass those of a buffer, which keep their order.
        return texels * rows * row * (1 + int(tile["data"] != tile["weight"]))
    return (rows if operations <= model.max_unrolled_operations else 1) * row


def rolled_registers(contraction: Contraction, tile: Config) -> int:
    """Return the registers of a long sum without a window. Its loop stays rolled and loads one weight at a time."""
    o, _, width = contraction.extents
    tile_o, tile_w = int(tile["tile_o"]), int(tile["tile_w"])
    # If a row ends inside a tile, each pixel has an index, or in a buffer a pointer of 64 bits.
    indices = tile_w * (width % tile_w > 0) * (2 if tile["data"] == MemoryKind.BUFFER else 1)
    indices += 2 * tile_o * (o % tile_o > 0 and tile["weight"] == MemoryKind.BUFFER)
    return int(LANES * (tile_o * tile_w + tile_w + 1) + 2 + indices)


def window_row(contraction: Contraction, tile_w: int) -> int:
    """Return the texels of one row of a depthwise window: weights, and the input span of a tile."""
    return 2 * list(contraction.reduce.values())[-1] + (tile_w - 1) * contraction.stride
