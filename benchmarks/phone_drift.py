"""The limit that a phone's changing clock sets to the rank correlation of an estimate with recorded times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from scipy import stats

from phone_judged import Judged
from phone_tasks import drift_of
from romou.tools.report.table import table_of_numbers

# Rank correlations of a supposed estimate with the times without drift.
_STEADY = (0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)
# Draws of a supposed estimate of all tasks, and the quantiles of their medians.
_DRAWS, _QUANTILES = 200, (0.05, 0.5, 0.95)


def _steady_times(judged: Judged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the timed configs' times without drift, their recorded times, and their estimates."""
    times, seconds = (values[judged.task.is_timed] for values in (judged.task.time_s, judged.seconds))
    return times / drift_of(times, seconds), times, seconds


def drift(judged: Judged) -> tuple[float, float, float]:
    """Return the rank correlation without the drift of the phone's clock, how much drift there is, and its bound.

    The second number is the correlation of the errors of successive measurements, logarithms of time over estimate.
    Successive configs are different ones, so it is near 0 if the clock is steady. The third number is the rank
    correlation of the times without drift with the recorded times: an estimate of the former has no more.
    """
    without, times, seconds = _steady_times(judged)
    errors = np.log(times / seconds)
    steady, bound = (stats.spearmanr(without, values).statistic for values in (seconds, times))
    return float(steady), float(np.corrcoef(errors[1:], errors[:-1])[0, 1]), float(bound)


def supposed(without: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Return random scores with this expected rank correlation with the times `without` drift.

    They are normal: 2 sin(pi / 6 r) is the linear correlation of two normal variables with rank correlation r.
    """
    normal = stats.norm.ppf((stats.rankdata(without) - 0.5) / len(without))
    share = 2 * np.sin(np.pi / 6 * correlation)
    scores: np.ndarray = share * normal + np.sqrt(1 - share**2) * rng.standard_normal(len(normal))
    return scores


def supposed_estimates(tasks: Sequence[Judged], out: Console) -> None:
    """Print the rank correlation with recorded times that an estimate would have which is as good in each task.

    Medians of the tasks of a GPU but depthwise ones, and their range over random draws of such an estimate.
    """
    rng = np.random.default_rng(0)
    gpus = sorted({j.group[0] for j in tasks})
    table = table_of_numbers("without drift", gpus, title="With recorded times (median of tasks, 5% to 95% of draws)")
    pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {gpu: [] for gpu in gpus}
    for judged in tasks:
        if not judged.task.recorded.is_depthwise:
            pairs[judged.group[0]].append(_steady_times(judged)[:2])
    for correlation in _STEADY:
        cells = []
        for of_gpu in pairs.values():
            medians = [
                np.median([stats.spearmanr(supposed(w, correlation, rng), t).statistic for w, t in of_gpu])
                for _ in range(_DRAWS if of_gpu else 0)
            ]
            low, middle, high = np.quantile(medians, _QUANTILES) if medians else [np.nan] * 3
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        table.add_row(f"{correlation:.2f}", *cells)
    out.print(table)
