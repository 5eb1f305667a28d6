"""Named dimensions in a kernel's text: which dimension each loop, id and address is.

Source: "A Metaprogramming and Autotuning Framework", Section 3.3: each dimension of each ND-array has a name.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from romou.base.space import Config
from romou.compiler.operators.contraction import tensor_core
from romou.compiler.operators.contraction.form import Contraction, round_up
from romou.compiler.operators.contraction.knobs import GROUP, rows_of_items


def describe(c: Contraction, config: Config, buffers: Sequence[tirx.Buffer]) -> str:
    """Return lines that give each output dimension as a sum of group and work-item ids, then the layouts.

    buffers: the operands and the output, as `Contraction.layouts` lists them.
    """
    tiles = {axis: int(config[f"tile_{axis}"]) for axis in "ohw"}
    _, h, w = c.extents
    blocks = round_up(w, config["wg_w"] * tiles["w"]) // (config["wg_w"] * tiles["w"])
    # The grid's x counts blocks of pixels, row after row.
    rows = rows_of_items(config)
    has_rows = round_up(h, rows * tiles["h"]) > tiles["h"]
    row, column = f"group_x / {blocks}" if blocks > 1 else "group_x", f"group_x % {blocks}" if blocks > 1 else ""
    is_mma = tensor_core.is_mma(config)
    o_name, h_name, w_name = c.axes
    lines = {
        o_name: _sum_of("group_y", "local_y", tiles["o"], config["wg_o"], config, is_mma=is_mma),
        h_name: _sum_of(row, "local_z", tiles["h"], rows, config.replace(arrangement="blocked"), is_mma=is_mma)
        if has_rows
        else _own(tiles["h"]),
        w_name: _sum_of(
            column if has_rows else "group_x", "local_x", tiles["w"], config["wg_w"], config, is_mma=is_mma
        ),
    }
    reduced = ", ".join(f"{name} {extent}" for name, extent in c.reduce.items())
    split = [f"local_z: one of {config['split_k']} pieces of {next(iter(c.reduce))}"] * (config["split_k"] > 1)
    stored = ["summed by these, stored by the group in the order of memory"] * (config.get("store") == GROUP)
    named = [_layout(layout, buffer) for layout, buffer in zip(c.layouts, buffers, strict=False)]
    return "\n".join(
        [
            *(f"{name} = {text}" for name, text in lines.items() if name),
            f"sum over {reduced}",
            *split,
            *stored,
            *filter(None, named),
        ]
    )


def _sum_of(group: str, item: str, tile: int, items: int, config: Config, *, is_mma: bool) -> str:
    """Return an index as (group, work-item, own element), in the order in which `arrangement` deals them out."""
    if is_mma:
        # The work-items of a warp share the fragments of matrix instructions.
        return _tile_of(group, items * tile)
    if items == 1:
        return _tile_of(group, tile)
    if config["arrangement"] == "striped":
        own = f" + {_own(tile)} * {items}" if tile > 1 else ""
        return f"{group} * {items * tile} + {item}{own}" if group else f"{item}{own}"
    ids = f"{group} * {items} + {item}" if group else item
    return _tile_of(f"({ids})" if group and tile > 1 else ids, tile)


def _tile_of(index: str, tile: int) -> str:
    """Return the elements of a tile: `index * tile + (0 to tile - 1)`, or `index` for tiles of one element."""
    if not index:
        return _own(tile)
    return f"{index} * {tile} + {_own(tile)}" if tile > 1 else index


def _own(tile: int) -> str:
    return f"(0 to {tile - 1})" if tile > 1 else "0"


def _layout(layout: str, buffer: tirx.Buffer) -> str | None:
    """Return `data[n 1][ic 8][y 14][x 14][lane 4]`. None if a graph gave the buffer another rank."""
    names = layout.split(":")
    if len(names) != len(buffer.shape):
        return None
    return (
        f"{buffer.name}{''.join(f'[{name} {int(extent)}]' for name, extent in zip(names, buffer.shape, strict=True))}"
    )
