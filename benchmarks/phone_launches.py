"""Fits what an operator costs beside its estimate: launches, bytes through memory, and a slower kernel.

    time = launches x launch + bytes / bandwidth + slowdown x estimate

The times are those of the estimate's ten first picks, because a default config is picked by the estimate too. AutoTVM's
times include copies of the data into images, for 1x1 of the weights as well: launches and bytes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import optimize, stats

from phone_judged import Judged, grouped
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.costs.estimate import call_parts
from romou.compiler.tir.expressions import bytes_of
from romou.tools.report.table import table_of_numbers
from romou.tuner.records.autotvm import AutotvmTask

_PICKS = 10
_QUARTILES = (0.25, 0.5, 0.75)
# Configs within this factor of the fastest tenth differ by little more than noise.
_FLOOR = 1.15
# Fewest layers to fit to, and random halves of them.
_LEAST, _HALVES = 20, 3
# Where the fit begins: seconds of a launch, bytes a second, times the estimate.
_START = np.log([3e-5, 3e10, 1.0])


class Picked(NamedTuple):
    """The first picks of a task, geometric means: recorded and estimated seconds, and seconds of `call_parts`."""

    launches: int
    bytes: int
    estimated_s: float
    time_s: float
    called_s: float


def picked(judged: Judged) -> Picked:
    """Return what the estimate's first picks of a task took, and what they move and launch."""
    task, is_timed = judged.task, judged.task.is_timed
    data, weight, *_, output = (bytes_of(p.shape, str(p.dtype)) for p in task.template.func.params)
    copies = 0
    if isinstance(task.recorded, AutotvmTask):
        is_1x1 = np.prod(task.template.workload.kernel) == 1  # type: ignore[attr-defined]
        copies = data + weight * int(is_1x1)
    launches = 1 if not copies else 3 if copies > data else 2
    parts = call_parts(task.usage, task.target.spec, data + weight + output)
    assert parts is not None, "main leaves out GPUs without an estimate"
    moved = data + weight + output + 2 * copies
    called = launches * parts["launch"] + moved / (data + weight + output) * parts["memory"] + parts["kernel"]
    first = np.argsort(judged.seconds[is_timed], kind="stable")[:_PICKS]
    means = [
        float(np.exp(np.log(np.broadcast_to(values, len(task.time_s))[is_timed][first]).mean()))
        for values in (judged.seconds, task.time_s, called)
    ]
    return Picked(launches, moved, *means)


def launched(tasks: Sequence[Judged], out: Console) -> None:
    """Print the recorded times of first picks over the estimate and over the sum with launches, and fits of the sum."""
    direct = [j for j in tasks if getattr(j.task.recorded, "algorithm", DIRECT) == DIRECT]
    columns = ("tasks", "over the estimate", "quartiles", "over the sum", "quartiles")
    title = "Recorded time of the first picks over the estimate, and over the sum with launches and bytes"
    table = table_of_numbers("GPU, template, type", columns, title=title)
    for name, members in grouped(direct).items():
        rows = [(p.time_s / p.estimated_s, p.time_s / p.called_s) for p in map(picked, members)]
        low, middle, high = np.quantile(np.array(rows), _QUARTILES, axis=0)
        cells = [(f"{middle[i]:.2f}x", f"{low[i]:.2f} to {high[i]:.2f}") for i in (0, 1)]
        table.add_row(name, str(len(members)), *cells[0], *cells[1])
    out.print(table)
    fits = ("layers", "launch us", "GB/s", "slowdown", "error", "error of the other half", "error of the estimate")
    table = table_of_numbers("GPU, layers", fits, title="Fits of launches, bytes and slowdown (errors: rms of log)")
    for gpu in sorted({j.group[0] for j in direct}):
        picks = [picked(j) for j in direct if j.group[0] == gpu]
        if len(picks) < _LEAST:
            continue
        rng = np.random.default_rng(0)
        _add_fit(table, f"{gpu}, all", picks, [])
        for _ in range(_HALVES):
            order = rng.permutation(len(picks))
            half, rest = ([picks[i] for i in each] for each in np.array_split(order, 2))
            _add_fit(table, f"{gpu}, a half", half, rest)
    out.print(table)


def on_the_floor(tasks: Sequence[Judged], out: Console) -> None:
    """Print how many configs take little longer than the best, and how well the estimate ranks the slower ones.

    Launches and bytes are the same for all configs of a layer. If they take longest, times differ only by noise.
    """
    columns = ("tasks", f"within {_FLOOR}x of the fastest tenth", "rank correlation", "of the slowest third")
    table = table_of_numbers("layers", columns, title="Configs that launches and bytes make equal (medians of tasks)")
    for name, is_depthwise in (("depthwise", True), ("others", False)):
        rows = []
        for judged in (j for j in tasks if j.task.recorded.is_depthwise == is_depthwise):
            times, ours = (values[judged.task.is_timed] for values in (judged.task.time_s, judged.seconds))
            tenth, slow = np.quantile(times, (0.1, 0.67))
            pairs = ((ours, times), (ours[times > slow], times[times > slow]))
            rows.append(((times < _FLOOR * tenth).mean(), *(stats.spearmanr(*pair).statistic for pair in pairs)))
        if rows:
            share, whole, third = np.nanmedian(np.array(rows), axis=0)
            table.add_row(name, str(len(rows)), f"{share:.0%}", f"{whole:.2f}", f"{third:.2f}")
    out.print(table)


def _add_fit(table: Table, name: str, picks: Sequence[Picked], rest: Sequence[Picked]) -> None:
    fitted = optimize.least_squares(lambda costs: _errors(costs, picks), _START, loss="soft_l1", f_scale=0.2).x
    launch, rate, slowdown = np.exp(fitted)
    errors = [_rms(_errors(fitted, part)) if part else "-" for part in (picks, rest)]
    ratios = np.log([p.time_s / p.estimated_s for p in picks])
    cells = (f"{1e6 * launch:.0f}", f"{rate / 1e9:.0f}", f"{slowdown:.2f}", *errors, _rms(ratios - np.median(ratios)))
    table.add_row(name, str(len(picks)), *cells)


def _errors(costs: np.ndarray, picks: Sequence[Picked]) -> np.ndarray:
    launches, moved, estimated, times, _ = np.array(picks).T
    launch, rate, slowdown = np.exp(costs)
    errors: np.ndarray = np.log((launches * launch + moved / rate + slowdown * estimated) / times)
    return errors


def _rms(errors: np.ndarray) -> str:
    return f"{np.sqrt((errors**2).mean()):.2f}"
