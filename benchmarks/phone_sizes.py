"""Recorded times by the number of sums of a work-item, and by the size of a work group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console

from phone_judged import Judged
from romou.tools.report.table import table_of_numbers

# First numbers of the ranges, and the first number beyond.
_SUMS, _GROUPS, _BEYOND = (1, 2, 3, 4, 5, 7, 8, 9, 14, 15, 16, 17, 32, 33), (1, 16, 32, 48, 64, 128, 256, 512), 1025
# Fewest timed configs of a task in a range.
_LEAST_TIMED = 6
_QUARTILES = (0.25, 0.5, 0.75)


def sized(tasks: Sequence[Judged], out: Console) -> None:
    """Print how good the best config is with each number of sums of a work-item, and with each size of a group."""
    products = [j for j in tasks if not j.task.recorded.is_depthwise]
    _print("float4 sums of a work-item", products, _sums_of, _SUMS, out)
    _print("work-items of a group", tasks, lambda j: np.asarray(j.task.usage.work_group_size), _GROUPS, out)


def _print(
    name: str, tasks: Sequence[Judged], size_of: Callable[[Judged], np.ndarray], lows: Sequence[int], out: Console
) -> None:
    columns = ("tasks", "its best over the best", "quartiles", "tasks with a best config")
    table = table_of_numbers(name, columns, title=f"Recorded times by {name} (medians of tasks)")
    for low, high in zip(lows, [*lows[1:], _BEYOND], strict=True):
        pairs = [(j, (size_of(j) >= low) & (size_of(j) < high)) for j in tasks]
        bests = [
            np.nanmin(j.task.time_s[inside]) / np.nanmin(j.task.time_s)
            for j, inside in pairs
            if (j.task.is_timed & inside).sum() >= _LEAST_TIMED
        ]
        first, middle, last = np.quantile(bests, _QUARTILES) if bests else [np.nan] * 3
        best_in = sum(bool((j.is_near_best & inside).any()) for j, inside in pairs)
        label = str(low) if high == low + 1 else f"{low} to {high - 1}"
        table.add_row(label, str(len(bests)), f"{middle:.2f}x", f"{first:.2f} to {last:.2f}", str(best_in))
    out.print(table)


def _sums_of(judged: Judged) -> np.ndarray:
    columns = judged.task.columns
    sums: np.ndarray = columns["tile_o"] * columns["tile_h"] * columns["tile_w"]
    return sums
