#!/usr/bin/env python3
"""Measures what more trials bring: whole networks after several numbers of trials, with several seeds.

    python benchmarks/bench_gain.py squeezenet1_0 --trials 32,128                                                 on the first OpenCL device
    python benchmarks/bench_gain.py mobilenet_v3_large densenet121 --target cuda --seeds 3 --json gain.json       128, 200 and 1000 trials, with torchvision
    python benchmarks/bench_gain.py densenet121 --work-dir records --trials 1000                                  continues a search with --work-dir records
    python benchmarks/bench_gain.py --join gain0.json --join gain1.json                                           one table of several runs

A MODEL is a bundled network, an ONNX file, a network of torch_networks.py, or a model of torchvision. A search with a
seed starts with empty records, unless --work-dir has some, and goes on from one number of trials to the next. "default"
and the tuned times are of whole models, timed alternately ("gain" is their ratio) each time that the search pauses, on
the clock of `summary()`. Seconds are those of `romou.tune` with that number of trials: the import, the search until
then, and the compilation, choice and check of one result. A later model keeps the kernels of an earlier one where these
are faster in the model.

Processes may run at the same time on one device: they wait for each other wherever they time. A process that is ended
is continued with the same --work-dir and --json: points that the JSON file has are not measured again.
"""  # noqa: E501

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import onnx
from rich.console import Console

from bench_models import EXPORTED, onnx_model
from bench_tuning import find
from romou.api.tune import searching
from romou.base.errors import RomouError
from romou.base.files import replacing
from romou.compiler.compilation import import_model
from romou.driver.choice.finish import finish
from romou.driver.choice.kept import choice_of
from romou.driver.options import TuneOptions
from romou.driver.search.course import Course
from romou.runtime.module.timed import ratio
from romou.tools.report.table import number, table_of_numbers


class _Clock:
    """Seconds of a search, over all processes that went on with it.

    file: keeps them, beside the search's records.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.seconds = float(file.read_text(encoding="utf-8")) if file.exists() else 0.0
        self._last = 0.0

    def start(self) -> None:
        self._last = time.monotonic()

    def note(self, _trial: object = None) -> None:
        """Add the time since the last call to the seconds and to the file."""
        now = time.monotonic()
        self.seconds, self._last = self.seconds + now - self._last, now
        with replacing(self._file) as file:
            file.write_text(f"{self.seconds:.3f}", encoding="utf-8")


def paused(
    model: onnx.ModelProto | Path, trials: Sequence[int], records: Path, workers: int | None, **asked: Any
) -> Iterator[dict[str, Any]]:
    """Yield the results of a network after each number of `trials` of one search.

    The model is imported, and its default kernels are compiled, once.
    """
    started = time.monotonic()
    keywords = asked | {"work_dir": records, "progress": False, "measure": {"build_workers": workers}}
    clock = _Clock(records.with_name(f"{records.name}.seconds"))
    options = TuneOptions.from_dict(keywords | {"callback": clock.note})
    with searching(lambda: import_model(model, None, options.parsed_precision()), options, Course()) as (
        site,
        search,
        kernels,
    ):
        imported_s = time.monotonic() - started
        tuned = None
        for total in trials:
            clock.start()
            searched = search.run(kernels, Course(), trials=total)
            clock.note()
            # A search without pauses would have begun then.
            started = time.monotonic() - imported_s - clock.seconds
            tuned = finish(
                searched,
                site,
                Course(started=started),
                before=None if tuned is None else choice_of(tuned, searched.compilation),
            )
            summary = tuned.summary()
            yield {
                "total": total,
                "trials": sum(summary.outcomes.values()),
                "kernels": sum(row.trials > 0 for row in summary.rows),
                "default_ms": summary.default_ms,
                "tuned_ms": summary.tuned_ms,
                "noise": summary.noise,
                "error": summary.relative_l2_error,
                "seconds": time.monotonic() - started,
            }


def gain(point: dict[str, Any]) -> float:
    """Return how many times the tuned time the default time is."""
    return float(point["default_ms"]) / float(point["tuned_ms"])


def print_table(rows: Iterable[dict[str, Any]], out: Console) -> None:
    """Print a line for each network, medians over its seeds, and the geometric mean of all gains."""
    networks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        networks.setdefault(row["model"], []).append(row)
    trials = sorted({point["total"] for points in networks.values() for point in points})
    columns = ["kernels", "default ms"]
    for total in trials:
        columns += [f"{total}: ms", "gain", "of seeds", "s"]
    table = table_of_numbers("model", [*columns, "error"], title="medians over the seeds")
    gains: dict[int, list[float]] = {total: [] for total in trials}
    for name, every in networks.items():
        cells = [str(every[0]["kernels"]), number(_median(every, "default_ms"))]
        for total in trials:
            points = [point for point in every if point["total"] == total]
            if not points:
                cells += ["", "", "", ""]
                continue
            found = sorted(map(gain, points))
            gains[total].append(statistics.median(found))
            cells += [
                number(_median(points, "tuned_ms")),
                ratio(statistics.median(found)),
                f"{len(found)}: {found[0]:.2f} to {found[-1]:.2f}",
                f"{_median(points, 'seconds'):.0f}",
            ]
        table.add_row(name, *cells, f"{max(point['error'] for point in every):.1e}")
    means = [["", ratio(statistics.geometric_mean(found)), f"of {len(found)}", ""] for found in gains.values()]
    table.add_row("geometric mean", "", "", *(cell for cells in means for cell in cells), "")
    out.print(table)


def _median(points: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(float(point[key]) for point in points)


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise click.BadParameter("it has to be numbers such as 128,200,1000") from error


@click.command()
@click.argument("names", nargs=-1, metavar="MODEL...")
@click.option("--target", default="opencl", show_default=True)
@click.option("--precision", default="float32", show_default=True)
@click.option("--trials", callback=_numbers, default="128,200,1000", show_default=True, help="Over all kernels.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Searches of each network.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Build processes.")
@click.option("--work-dir", type=click.Path(path_type=Path), default=None, help="Folder of records to continue.")
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
@click.option("--join", multiple=True, type=click.Path(path_type=Path, exists=True), help="Read what --json wrote.")
def main(
    names: tuple[str, ...],
    target: str,
    precision: str,
    trials: list[int],
    seeds: int,
    first_seed: int,
    workers: int | None,
    work_dir: Path | None,
    output: Path | None,
    join: tuple[Path, ...],
) -> None:
    """Print a line after each search, and one table."""
    read = [*join, *([output] if work_dir is not None and output is not None and output.exists() else ())]
    rows = [row for path in read for row in json.loads(path.read_text(encoding="utf-8"))]
    done = {(row["model"], row["seed"], row["total"]) for row in rows}
    out = Console(width=80 + 42 * len(trials))
    with tempfile.TemporaryDirectory(prefix="romou-gain-") as folder:
        models = {Path(name).stem: onnx_model(name) if name in EXPORTED else find(name, Path(folder)) for name in names}
        for seed, (name, model) in itertools.product(range(first_seed, first_seed + seeds), models.items()):
            records = (work_dir or Path(folder) / "records") / f"{name}_{seed}"
            left = [total for total in trials if (name, seed, total) not in done]
            if not left:
                continue
            try:
                for point in paused(model, left, records, workers, target=target, precision=precision, seed=seed):
                    print(
                        f"{name}, seed {seed}, {point['total']} trials: {point['default_ms']:.3f} ->"
                        f" {point['tuned_ms']:.3f} ms, {gain(point):.2f}x; {point['seconds']:.0f} s",
                        flush=True,
                    )
                    rows.append({"model": name, "seed": seed} | point)
                    if output is not None:
                        with replacing(output) as file:
                            file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
            except RomouError as error:
                raise SystemExit(f"{name}: {error}") from error
    print_table(rows, out)


if __name__ == "__main__":
    main()
