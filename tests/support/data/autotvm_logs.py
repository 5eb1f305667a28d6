"""Logs of AutoTVM with made-up measurements of a convolution, 16x12x12 -> 32, on an Adreno GPU."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

TARGET = "opencl -keys=adreno,opencl,gpu -device=adreno -max_num_threads=256"
TEMPLATE = "conv2d_nchwc_acc32.image2d"
ARGUMENTS = [
    ["TENSOR", [1, 16, 12, 12], "float16"],
    ["TENSOR", [32, 16, 3, 3], "float16"],
    [1, 1],
    [1, 1, 1, 1],
    [1, 1],
    "float16",
]
# Work-items of a group beyond which the made-up phone runs out of registers.
_MOST_ITEMS = 96


def knobs_of(
    channels: tuple[int, int] = (1, 8), rows: tuple[int, int] = (1, 1), pixels: tuple[int, int] = (4, 2), **more: Any
) -> dict[str, Any]:
    """Return a config of AutoTVM: (vthreads, work-items) along each axis."""
    splits = {"tile_fc": [-1, *channels], "tile_y": [-1, *rows], "tile_x": [-1, *pixels]}
    reduction = {"tile_rcc": [-1, 1], "tile_ry": [-1, 1], "tile_rx": [-1, 1]}
    return {**splits, **reduction, "auto_unroll_max_step": 0, "unroll_explicit": 0, **more}


def log_line(
    knobs: dict[str, Any], times_s: list[float], error: int = 0, template: str = TEMPLATE, arguments: Any = None
) -> str:
    """Return a line as AutoTVM writes it."""
    entity = [[name, "sp" if isinstance(value, list) else "ot", value] for name, value in knobs.items()]
    data = {
        "input": [TARGET, template, arguments or ARGUMENTS, {}],
        "config": {"index": 7, "code_hash": None, "entity": entity},
        "result": [times_s, error, 1.5, 1_650_000_000.0],
        "version": 0.2,
        "tvm_version": "0.14.0",
    }
    return json.dumps(data)


def task_line(rows: list[tuple[dict[str, Any], float | None, int]], gpu: str = "adreno660") -> str:
    """Return a line of one task. Times are in microseconds."""
    names = list(rows[0][0])
    values = [[list(knobs.values()), time_us, error] for knobs, time_us, error in rows]
    return json.dumps({"gpu": gpu, "template": TEMPLATE, "args": ARGUMENTS, "knobs": names, "rows": values})


def write_log(path: Path) -> Path:
    """Write a log of 36 configs. Fewer loads for each product are faster, and large groups fail."""
    lines = []
    for v_o, v_w, items, rows, w in itertools.product((1, 2), (1, 3, 6), (2, 8, 16), (1, 3), (2,)):
        knobs = knobs_of((v_o, items), (1, rows), (v_w, w))
        time_s = 1e-3 * (1 / v_o + 1 / v_w) * (1 + 4 / (items * rows * w))
        is_right = items * rows * w < _MOST_ITEMS
        lines.append(
            log_line(knobs, [time_s, 1.01 * time_s, 1.02 * time_s] if is_right else [1e9], 0 if is_right else 4)
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
