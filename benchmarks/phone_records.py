"""Judges the estimate, the criteria and the default configs by measurements of real phones.

    python benchmarks/phone_records.py adreno_autotvm.jsonl.gz              every table
    python benchmarks/phone_records.py tuning.log --gpu adreno740           a log of AutoTVM, measured on an Adreno 740
    python benchmarks/phone_records.py FILE --template conv2d_nchwc --ablate
    python benchmarks/phone_records.py my_phone.json                        a recording of `romou phone record`

FILE is a log of AutoTVM or has one JSON line for each task, plain or gzipped, or it is a recording. Nothing is built or
measured.
docs/evidence/validation.md describes the method and the output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import click
import numpy as np
from rich.console import Console

from phone_drift import drift, supposed_estimates
from phone_judged import Judged, grouped, start_of
from phone_launches import launched, on_the_floor
from phone_sizes import sized
from phone_tasks import load_tasks, recorded_tasks, target_of
from romou.base.errors import UsageError
from romou.base.files import read_file
from romou.base.outcome import Outcome
from romou.compiler.operators.algorithms.algorithm import DIRECT
from romou.compiler.operators.costs.estimate import can_estimate
from romou.tools.report.table import table_of_numbers
from romou.tuner.records.autotvm import AutotvmTask, read_autotvm
from romou.tuner.records.recording import START

# Fewest timed configs of a task, so that ranks mean something.
_LEAST_TIMED = 10
# Fewest configs of a task in a file of AutoTVM, which has hundreds of small tasks.
_LEAST = 100
# Outcomes of configs that exceed a resource: work-items of a group, registers, memory.
_OF_RESOURCES = (Outcome.INVALID, Outcome.RUN_ERROR)
_QUARTILES = (0.25, 0.5, 0.75)


def expressed(tasks: Sequence[Judged], out: Console) -> None:
    """Print how many recorded kernels are configs of Romou's spaces, and why the others are not."""
    table = table_of_numbers("kernels of the recording", ("configs", "share"), title="Romou's configs among them")
    reasons = Counter(
        e if isinstance(e, str) else "(a config of Romou's space)" for j in tasks for e in j.task.equivalents
    )
    for reason, count in reasons.most_common():
        table.add_row(reason, str(count), f"{100 * count / reasons.total():.1f}%")
    out.print(table)


def estimated(tasks: Sequence[Judged], out: Console) -> None:
    """Print how well the estimate ranks the recorded configs."""
    ranks = ("rank correlation", "quartiles", "without drift", "drift", "at most")
    columns = ("tasks", "configs", *ranks, "first pick", "quartiles", "best of ten")
    table = table_of_numbers("GPU, template, type", columns, title="Estimate against recorded times (medians of tasks)")
    for name, members in grouped(tasks).items():
        qualities = np.array([j.quality(j.seconds) for j in members])
        low, middle, high = np.quantile(qualities, _QUARTILES, axis=0)
        table.add_row(
            name,
            str(len(members)),
            str(sum(len(j.task.time_s) for j in members)),
            f"{middle[0]:.2f}",
            f"{low[0]:.2f} to {high[0]:.2f}",
            *(f"{value:.2f}" for value in np.median([drift(j) for j in members], axis=0)),
            f"{middle[1]:.2f}x",
            f"{low[1]:.2f} to {high[1]:.2f}",
            f"{middle[2]:.2f}x",
        )
    out.print(table)


def scaled(tasks: Sequence[Judged], out: Console) -> None:
    """Print how far the estimate's seconds are from the recorded ones, which ranks do not show."""
    columns = ("tasks", "time of all configs", "quartiles", "of the best config", "quartiles")
    table = table_of_numbers("GPU, template, type", columns, title="Recorded time over the estimate (medians of tasks)")
    for name, members in grouped(tasks).items():
        rows = []
        for judged in members:
            ratios = np.where(judged.task.is_timed, judged.task.time_s, np.nan) / judged.seconds
            rows.append((np.nanmedian(ratios), ratios[int(np.nanargmin(judged.task.time_s))]))
        low, middle, high = np.quantile(np.array(rows), _QUARTILES, axis=0)
        cells = [(f"{middle[i]:.2f}x", f"{low[i]:.2f} to {high[i]:.2f}") for i in (0, 1)]
        table.add_row(name, str(len(members)), *cells[0], *cells[1])
    out.print(table)


def points_of(tasks: Sequence[Judged]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return GPU -> estimates and times of the timed configs, each over the best of its task."""
    points: dict[str, list[np.ndarray]] = {}
    for judged in sorted(tasks, key=lambda j: j.group):
        ours, theirs = (values[judged.task.is_timed] for values in (judged.seconds, judged.task.time_s))
        points.setdefault(judged.group[0], []).append(np.array([ours / ours.min(), theirs / theirs.min()]))
    return {gpu: tuple(np.concatenate(pairs, axis=1)) for gpu, pairs in points.items()}


def ablated(tasks: Sequence[Judged], out: Console) -> None:
    """Print how well each term of the estimate ranks configs, and the other terms without it."""
    columns = ("rank correlation", "first pick", "best of ten", "without it", "first pick", "best of ten")
    table = table_of_numbers("term", columns, title="Terms of the estimate (medians of tasks)")
    names = list(tasks[0].parts)

    def medians(score: Callable[[Judged], np.ndarray]) -> list[str]:
        middle = np.median([j.quality(score(j)) for j in tasks], axis=0)
        return [f"{middle[0]:.2f}", *(f"{slowdown:.2f}x" for slowdown in middle[1:3])]

    for name in names:
        others = [other for other in names if other != name]
        table.add_row(name, *medians(lambda j, n=name: j.parts[n]), *medians(lambda j, o=others: _norm(j, o)))  # type: ignore[misc]
    table.add_row("all terms", *medians(lambda j: _norm(j, names)), "", "", "")
    table.add_row("the estimate", *medians(lambda j: j.seconds), "", "", "")
    out.print(table)


def _norm(judged: Judged, names: Iterable[str]) -> np.ndarray:
    cycles: np.ndarray = np.sqrt(sum(judged.parts[name] ** 2 for name in names))
    return cycles


def pruned(tasks: Sequence[Judged], out: Console, is_guessed: bool) -> None:
    """Print the shares of the best, the timed and the failed configs that the criteria exclude."""
    facts = "unknown facts from the nearest GPU" if is_guessed else "facts of the GPU's file"
    columns = ("tasks", "a best config is kept", "ran", "rejected", "resource errors", "rejected", "other", "rejected")
    title = f"Criteria against recorded outcomes, without the place of tensors ({facts})"
    table = table_of_numbers("GPU, template, type", columns, title=title)
    for name, members in grouped(tasks).items():
        kept = sum(bool((j.is_near_best & ~j.is_rejected(is_guessed)).any()) for j in members)
        kinds = [_counted(members, kind, is_guessed) for kind in _KINDS.values()]
        cells = [cell for total, rejected in kinds for cell in (str(total), _share(rejected, total))]
        table.add_row(name, str(len(members)), _share(kept, len(members)), *cells)
    out.print(table)
    title = f"Share that each criterion excludes ({facts})"
    table = table_of_numbers("criterion", ("best configs", *_KINDS), title=title)
    for criterion in tasks[0].excluded[is_guessed]:
        cells = []
        for kind in (lambda j: j.is_near_best, *_KINDS.values()):
            masks = [j.excluded[is_guessed].get(criterion, np.zeros(len(kind(j)), bool))[kind(j)] for j in tasks]
            cells.append(_share(sum(int(mask.sum()) for mask in masks), sum(len(mask) for mask in masks)))
        table.add_row(criterion, *cells)
    out.print(table)


def _is_of_resources(judged: Judged) -> np.ndarray:
    return np.isin(judged.task.outcomes.astype(str), [str(outcome) for outcome in _OF_RESOURCES])


# Kind of configs -> which configs of a task are of the kind.
_KINDS: dict[str, Callable[[Judged], np.ndarray]] = {
    "ran": lambda j: j.task.is_timed,
    "resource errors": _is_of_resources,
    "other failures": lambda j: ~j.task.is_timed & ~_is_of_resources(j),
}


def _counted(tasks: Sequence[Judged], kind: Callable[[Judged], np.ndarray], is_guessed: bool) -> tuple[int, int]:
    """Return how many configs are of a kind, and how many of these are excluded."""
    pairs = [(kind(j), j.is_rejected(is_guessed)) for j in tasks]
    return sum(int(mask.sum()) for mask, _ in pairs), sum(int((mask & rejected).sum()) for mask, rejected in pairs)


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.0f}%" if total else "-"


def defaults(tasks: Sequence[Judged], out: Console) -> None:
    """Print the recorded time of the config that is nearest to Romou's default."""
    nearest = ("the default itself", "factors of two away", "over the best", "quartiles", "better configs")
    columns = ("tasks", *nearest, "float4 sums", "of the best")
    title = "The recorded config nearest to Romou's default (medians of tasks)"
    table = table_of_numbers("GPU, template, type", columns, title=title)
    for name, members in grouped(tasks).items():
        rows = np.array([nearest_to_default(j) for j in members])
        low, middle, high = np.quantile(rows, _QUARTILES, axis=0)
        table.add_row(
            name,
            str(len(members)),
            str(int((rows[:, 0] == 0).sum())),
            f"{middle[0]:.1f}",
            f"{middle[1]:.2f}x",
            f"{low[1]:.2f} to {high[1]:.2f}",
            f"{100 * middle[2]:.0f}%",
            *(f"{sums:.0f}" for sums in middle[3:]),
        )
    out.print(table)


def nearest_to_default(judged: Judged) -> tuple[float, ...]:
    """Return the factors of two between the default config and the nearest timed config, its slowdown and rank.

    Tiles and groups count, each side by itself. The rank is the share of timed configs that are faster. The number of
    float4 sums of a work-item follows, of the default and of the best recorded config.
    """
    task = judged.task
    default, columns = start_of(task), task.columns
    sides = ("tile_o", "tile_h", "tile_w", "wg_o", "wg_h", "wg_w")
    away = sum(np.abs(np.log2(columns[name] / default[name])) for name in sides)
    times = np.where(task.is_timed, task.time_s, np.inf)
    best = {name: column[int(np.argmin(times))] for name, column in columns.items()}
    # Of equally near configs, the median one.
    nearest = np.flatnonzero((away == away[task.is_timed].min()) & task.is_timed)
    index = nearest[np.argsort(times[nearest])[len(nearest) // 2]]
    faster = (times < times[index]).sum() / task.is_timed.sum()
    tiles = [math.prod(int(config[name]) for name in ("tile_o", "tile_h", "tile_w")) for config in (default, best)]
    return float(away[index]), float(times[index] / times.min()), float(faster), *map(float, tiles)


def algorithms(recorded: Sequence[AutotvmTask], out: Console) -> None:
    """Print how often Romou chooses the faster of Winograd's algorithm and direct sums, if both were recorded."""
    best: dict[tuple[str, str, str, str], dict[bool, float]] = {}
    tasks: dict[tuple[str, str, str, str], AutotvmTask] = {}
    for each in recorded:
        times = [m.time_s for m in each.measurements if m.time_s is not None]
        if times and each.reads_images and each.work is not None:
            key = each.gpu, "NHWC" if each.layout == "NHWC" else "NCHW", each.sums, str(each.work)
            is_winograd, times_of = each.algorithm != DIRECT, best.setdefault(key, {})
            tasks[key] = each if is_winograd else tasks.get(key, each)
            times_of[is_winograd] = min([*times, times_of.get(is_winograd, math.inf)])
    columns = (
        "layers",
        "Winograd is faster",
        "Romou is right",
        "its choice / best",
        "direct / best",
        "Winograd / best",
    )
    table = table_of_numbers("GPU, sums", columns, title="Winograd's algorithm or direct sums")
    groups: dict[str, list[tuple[dict[bool, float], bool]]] = {}
    for key, times_of in best.items():
        task = tasks[key].task
        if len(times_of) == 2 and task is not None and tasks[key].algorithm in tasks[key].algorithms:
            chosen = task.default_config(target_of(key[0])).get("algorithm", DIRECT) != DIRECT
            name = f"{key[0]}, {tasks[key].dtype}, sums {key[2]}"
            groups.setdefault(name, []).append((times_of, chosen))
    if not groups:
        return
    for name, pairs in sorted(groups.items()):
        ratios = [
            [times_of[which] / min(times_of.values()) for times_of, chosen in pairs for which in [pick(chosen)]]
            for pick in (bool, lambda _: False, lambda _: True)
        ]
        table.add_row(
            name,
            str(len(pairs)),
            str(sum(times_of[True] < times_of[False] for times_of, _ in pairs)),
            str(sum(times_of[chosen] <= times_of[not chosen] for times_of, chosen in pairs)),
            *(f"{geometric_mean(each):.2f}x" for each in ratios),
        )
    out.print(table)


# Panels in a row are this wide and high, in inches.
_INCHES = 4.0


def draw(points: Mapping[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Write a picture of the points of each GPU.

    points: GPU -> estimates and times of all configs, each over the best of its task
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES * len(points), _INCHES), layout="constrained", dpi=90)
    panels = np.ravel(figure.subplots(1, len(points), sharey=True, squeeze=False))
    for panel, (gpu, (estimates, times)) in zip(panels, points.items(), strict=True):
        panel.hexbin(estimates, times, gridsize=60, xscale="log", yscale="log", bins="log", cmap="Blues", linewidths=0)
        most = float(max(estimates.max(), times.max()))
        panel.plot((1, most), (1, most), color="0.6", linewidth=1)
        panel.set(title=f"{gpu}, {len(times)} configs", xlabel="estimate over the task's lowest")
    panels[0].set_ylabel("recorded time over the task's best")
    figure.savefig(path)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--template", default=None, help="Only tasks of this template, without its suffix, as conv2d_nchwc.")
@click.option("--gpu", default=None, help="Only tasks of this GPU. It is the GPU of a log that does not name one.")
@click.option(
    "--least", type=int, default=None, help="Fewest recorded configs of a task. [default: 100, of a recording 10]"
)
@click.option("--ablate", is_flag=True, help="Also judge each term of the estimate.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw estimates and times, as PNG.")
@click.option("--drifts", is_flag=True, help="Also print what the clock's drift leaves of an estimate's correlation.")
def main(
    file: Path,
    template: str | None,
    gpu: str | None,
    least: int | None,
    ablate: bool,
    plot: Path | None,
    drifts: bool,
) -> None:
    """Print the tables."""
    out = Console(width=180)
    is_romou = read_file(file).startswith(START)
    least = least or (_LEAST_TIMED if is_romou else _LEAST)
    loaded = (
        recorded_tasks(file, template, least=least)
        if is_romou
        else load_tasks(file, gpu, template, least=least, default_gpu=gpu or "")
    )
    tasks = [Judged(task) for task in loaded]
    tasks = [j for j in tasks if j.task.is_timed.sum() >= _LEAST_TIMED and can_estimate(j.task.target.spec)]
    if not tasks:
        text = f"{file}: no task of a GPU with an estimate has {least} configs, {_LEAST_TIMED} of them timed"
        raise UsageError(text)
    out.print(f"{len(tasks)} tasks of at least {least} configs, {sum(len(j.task.time_s) for j in tasks)} configs")
    for target in sorted({str(j.task.target) for j in tasks}):
        out.print(f"target: {target}", markup=False)
    expressed(tasks, out)
    estimated(tasks, out)
    if drifts:
        supposed_estimates(tasks, out)
    scaled(tasks, out)
    launched(tasks, out)
    on_the_floor(tasks, out)
    if plot is not None:
        draw(points_of(tasks), plot)
    if ablate:
        ablated(tasks, out)
    for is_guessed in (False, True):
        pruned(tasks, out, is_guessed)
    defaults(tasks, out)
    sized(tasks, out)
    if not is_romou:
        algorithms([task for task in read_autotvm(file, gpu or "") if gpu in (None, task.gpu)], out)


if __name__ == "__main__":
    main()
