"""The registers that a work-item of a contraction needs, as a phone's compiler allocates them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from romou.base.limits import Limits
from romou.base.preset import Registers
from romou.base.space import Config
from romou.compiler.operators.contraction.form import Contraction
from romou.compiler.operators.contraction.knobs import FP32, MIXED
from romou.compiler.tir.primitives import LANES, MemoryKind

# Operations of a load with its address, and of an iteration, if a product of two numbers is one. Compilers count them
# before they unroll a loop.
_LOAD_COST, _ITERATION_COST = 8, 20
# Operations of a load of a vector with its coordinates, if a product of vectors is one.
_VECTOR_LOAD_COST = 3


def kept_loops(contraction: Contraction, tile: Config, limits: Limits) -> int:
    """Return the outer loops of a sum that a phone's compiler must not unroll, as it would load ahead for all of them.

    1 is the loop over texels, 2 also the one over rows of a window. The kernel's text keeps them (`keep_loops`).
    """
    model = limits.preset.registers
    if model is None or limits.registers is None or not limits.is_mobile:
        return 0
    is_mali, is_winograd = limits.registers_of_all is None, contraction.is_batched and contraction.texel == LANES
    if is_winograd:
        # Between Winograd's transforms, a loop that stays takes 10 to 15% fewer instructions on Mali.
        return int(is_mali and tile["accumulate"] == FP32)
    if contraction.lhs_varies == "by lane" and is_mali and tile["accumulate"] == MIXED:
        return 2 * int(math.prod(contraction.reduce.values()) > model.max_mixed_taps)
    # Other depthwise windows fit, and products of single numbers have loops that stay (`advancing_pointers.py`).
    if contraction.lhs_varies == "by lane" or contraction.is_batched or not contraction.vector:
        return 0
    if is_mali:
        return int(_unrolls_windows(contraction, tile, model))
    return _kept(contraction, tile, limits)


def estimated_registers(contraction: Contraction, tile: Config, limits: Limits) -> int:
    """Return the 32-bit registers of a work-item for its sums, its loads and addresses.

    A compiler moves loads and their addresses ahead inside of a basic block.
    """
    model = limits.preset.registers
    assert model is not None, "callers have looked"
    return _registers(contraction, tile, model, _loads_of_block(contraction, tile, limits))


def _registers(contraction: Contraction, tile: Config, model: Registers, loads: int) -> int:
    """Return the registers with a number of loads in a basic block.

    The first few loads take all of their registers, the others wait for free ones.
    """
    ahead = min(LANES * loads + model.addresses, model.loaded_ahead + model.load_ahead * loads)
    # Each pixel of a depthwise tile has its own input.
    pixels = _rows(tile) * tile["tile_w"]
    own = 2 * pixels * (contraction.lhs_varies == "by lane")
    return int(LANES * tile["tile_o"] * pixels + ahead + own)


def _loads_of_block(contraction: Contraction, tile: Config, limits: Limits) -> int:
    """Return the loads of an iteration that the compiler keeps as a loop. It unrolls the inner loops."""
    model, tile_o, tile_w = limits.preset.registers, int(tile["tile_o"]), int(tile["tile_w"])
    assert model is not None, "callers have looked"
    texels, *window, lanes = contraction.reduce.values()
    taps, columns = math.prod(window), window[-1] if window else 1
    products = _products(contraction, tile)
    if contraction.lhs_varies == "by lane":
        # A depthwise window: its rows are `texels` and `window`, its columns `lanes`.
        limit = (
            model.max_unrolled_constant_products if _is_whole_row(contraction, tile) else model.max_unrolled_products
        )
        return _rows(tile) * window_row(contraction, tile_w) * (texels * taps if products * texels <= limit else 1)
    steps = _Steps.of(contraction, tile)
    if taps > 1 and (texels == 1 or _is_whole_row(contraction, tile)):
        # The only texel of three channels has constant addresses, and so have the columns of a whole row.
        if products <= model.max_unrolled_constant_products:
            return steps.rows * steps.loads
        # A whole row keeps its pixels, and loads the weights of one texel of channels at a time.
        weights = lanes * tile_o * (LANES if contraction.rhs_vector == "none" else 1)
        pixels = _rows(tile) * tile_w
        return pixels + columns * lanes if _is_whole_row(contraction, tile) else columns * (pixels + weights)
    kept = kept_loops(contraction, tile, limits)
    if not kept and steps.texels * steps.operations <= model.max_unrolled_operations:
        # Loads of images pass those of a buffer, which keep their order.
        return steps.texels * steps.rows * steps.loads * (1 + int(tile["data"] != tile["weight"]))
    return (steps.rows if steps.operations <= model.max_unrolled_operations and kept < 2 else 1) * steps.loads


@dataclass(frozen=True)
class _Steps:
    """The loops of a sum that is no depthwise window.

    texels: iterations of the outer loop of a work-item.
    rows: rows of the window.
    loads: loads of one of them.
    operations: operations of an iteration of the outer loop.
    """

    texels: int
    rows: int
    loads: int
    operations: int

    @classmethod
    def of(cls, contraction: Contraction, tile: Config) -> _Steps:
        tile_o, tile_w = int(tile["tile_o"]), int(tile["tile_w"])
        texels, *window, lanes = contraction.reduce.values()
        taps, columns = math.prod(window), window[-1] if window else 1
        weights = lanes * tile_o * (LANES if contraction.rhs_vector == "none" else 1)
        # Neighbouring windows share their input.
        inputs = (tile_w - 1) * contraction.stride + columns if columns > 1 else tile_w
        if _is_whole_row(contraction, tile):
            inputs = tile_w
        # Rows of a tile share no data.
        inputs *= _rows(tile)
        own_weights = int(contraction.of_own_taps(tile, columns * weights))
        loads = (inputs if contraction.lhs_vector else lanes * inputs) + own_weights
        rows = taps // columns
        # Work-items that share a sum have a part of the loop each.
        return cls(
            -(-texels // int(tile["split_k"])),
            rows,
            loads,
            _products(contraction, tile) + _LOAD_COST * rows * loads + _ITERATION_COST * taps,
        )


def _kept(contraction: Contraction, tile: Config, limits: Limits) -> int:
    """Return the outer loops whose loads do not fit into the registers, if a compiler may unroll them."""
    model, steps = limits.preset.registers, _Steps.of(contraction, tile)
    assert model is not None, "callers have looked"
    assert limits.registers is not None, "callers have looked"
    most = model.max_fill * limits.registers
    rows = steps.rows * steps.loads
    if (
        steps.rows > 1
        and steps.operations <= model.max_seen_iteration
        and _registers(contraction, tile, model, rows) > most
    ):
        return 2
    is_short = 1 < steps.texels <= model.max_unrolled_iterations
    is_short = is_short and steps.texels * steps.operations <= model.max_seen_operations
    return int(is_short and _registers(contraction, tile, model, steps.texels * rows) > most)


def _unrolls_windows(contraction: Contraction, tile: Config, model: Registers) -> bool:
    """Return whether Mali's compiler may unroll the windows of several texels. Their loads then come first."""
    _, *window, lanes = contraction.reduce.values()
    steps, taps = _Steps.of(contraction, tile), math.prod(window)
    loads = taps * (_rows(tile) * tile["tile_w"] + lanes * tile["tile_o"])
    vectors = _products(contraction, tile) // LANES + _VECTOR_LOAD_COST * loads
    is_short = 1 < steps.texels <= model.max_unrolled_iterations
    return taps > 1 and is_short and steps.texels * vectors <= model.max_unrolled_vectors


def _products(contraction: Contraction, tile: Config) -> int:
    """Return the products of a texel of a work-item's sum, or of a row of a depthwise window."""
    _, *window, lanes = contraction.reduce.values()
    texels = contraction.of_own_taps(tile, tile["tile_o"] * math.prod(window))
    return int(LANES * texels * _rows(tile) * tile["tile_w"] * lanes)


def _rows(tile: Config) -> int:
    return int(tile.get("tile_h", 1))


def _is_whole_row(contraction: Contraction, tile: Config) -> bool:
    return bool(1 < contraction.extents[2] <= tile["tile_w"])


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
