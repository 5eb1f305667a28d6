#!/usr/bin/env python3
"""Measures the search of a whole model.

It prints the seconds to its first trial, trials a second, and the time until it is within 5% of its final result.

    python benchmarks/bench_tuning.py squeezenet1_0                                                       1000 trials on the first OpenCL device
    python benchmarks/bench_tuning.py densenet121 --target "cuda -device=nvidia_h200" --trials 128        an architecture of torchvision, with random weights

MODEL is a bundled network, an ONNX file, or a model of torchvision, which has to be installed for that. The search
starts with empty records. Times are seconds from the call of `romou.tune`, which imports TVM. "ms" adds up the best
times of all kernels so far, times their calls.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import onnx

import romou
from romou import models
from romou.base.errors import RomouError, UsageError

if TYPE_CHECKING:
    # These would import TVM before the clock starts.
    from romou.runtime.module.summary import LayerRow
    from romou.tuner.search.trial import Trial

WITHIN = 1.05


def find(name: str, folder: Path) -> onnx.ModelProto | Path:
    """Return a bundled network, a file, or torchvision's model of that name, exported into `folder`."""
    if name in models.names():
        return models.load(name)
    if Path(name).is_file():
        return Path(name)
    try:
        import torch
        from torchvision.models import get_model

        network = get_model(name, weights=None).eval()
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{name} is no bundled network, no file, and torchvision does not give it: {error}",
            hint="Give an ONNX file.",
        ) from error
    path = folder / f"{name}.onnx"
    torch.onnx.export(network, (torch.zeros(1, 3, 224, 224),), str(path), dynamo=False)
    return path


@dataclass
class Course:
    """The finished trials of a search, each with the seconds from the start to its end."""

    started: float = field(default_factory=time.monotonic)
    trials: list[tuple[float, Trial]] = field(default_factory=list)

    def add(self, trial: Trial) -> None:
        """Add a trial that has just ended, and print the first and every hundredth one."""
        seconds = time.monotonic() - self.started
        self.trials.append((seconds, trial))
        if len(self.trials) % 100 == 1:
            print(f"  trial {len(self.trials)} ended after {seconds:.1f} s", flush=True)

    def sums(self, rows: tuple[LayerRow, ...]) -> list[tuple[int, float, float]]:
        """Return (trials, seconds, ms of all kernels in `rows`) after each trial.

        The list starts once all of them have a time.
        """
        calls: Counter[str] = Counter()
        for row in rows:
            calls[row.name] += row.calls if row.trials else 0
        wanted = +calls
        best: dict[str, float] = {}
        points = []
        for number, (seconds, trial) in enumerate(self.trials, 1):
            if trial.best_s is not None:
                best[trial.task] = trial.best_s
            if best.keys() >= wanted.keys():
                points.append((number, seconds, 1e3 * sum(best[name] * count for name, count in wanted.items())))
        return points


def measure(name: str, target: str, trials: int, seconds: float | None, seed: int) -> dict[str, object]:
    """Tune a model and return the numbers of the search."""
    with tempfile.TemporaryDirectory(prefix="romou-tuning-") as folder:
        model = find(name, Path(folder))
        course = Course()
        tuned = romou.tune(
            model,
            target=target,
            trials=trials,
            seconds=seconds,
            seed=seed,
            work_dir=Path(folder) / "records",
            callback=course.add,
            progress=True,
        )
        whole_s = time.monotonic() - course.started
    if not course.trials:
        raise UsageError(f"{name}: no trial was made", hint="Give more --trials or --seconds.")
    (first_s, _), (last_s, _) = course.trials[0], course.trials[-1]
    summary = tuned.summary()
    sums = course.sums(summary.rows)
    near = next((entry for entry in sums if entry[2] <= WITHIN * sums[-1][2]), None)
    return {
        "model": name,
        "device": summary.device,
        "cores": len(os.sched_getaffinity(0)),
        "first_trial_s": first_s,
        "trials": len(course.trials),
        "trials_s": last_s,
        "trials_per_s": len(course.trials) / last_s,
        "all_kernels": sums[0][:2] if sums else None,
        "within_5_percent": near[:2] if near else None,
        "sum_ms": sums[-1][2] if sums else None,
        "whole_s": whole_s,
        "default_ms": summary.default_ms,
        "tuned_ms": summary.tuned_ms,
        "error": summary.relative_l2_error,
    }


def _at(reached: object) -> str:
    trials, seconds = reached if isinstance(reached, tuple) else (0, 0.0)
    return f"{trials} trials, {seconds:.1f} s" if trials else "never"


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@click.option("--target", default="opencl", show_default=True)
@click.option(
    "--trials", type=click.IntRange(min=1), default=1000, show_default=True, help="Over all kernels of a model."
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Limit of a search.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(
    names: tuple[str, ...], target: str, trials: int, seconds: float | None, seed: int, output: Path | None
) -> None:
    """Print a few lines for each model."""
    rows = []
    for name in names:
        try:
            row = measure(name, target, trials, seconds, seed)
        except RomouError as error:
            raise SystemExit(f"{error}") from error
        rows.append(row)
        print(f"{name} on {row['device']}, {row['cores']} cores")
        print(
            f"  first trial after {row['first_trial_s']:.1f} s, {row['trials']} trials after {row['trials_s']:.1f} s:"
            f" {row['trials_per_s']:.2f} a second"
        )
        print(
            f"  every kernel has a time after {_at(row['all_kernels'])}; within 5% of the end after"
            f" {_at(row['within_5_percent'])}"
        )
        print(
            f"  default {row['default_ms']} ms, tuned {row['tuned_ms']} ms, error {row['error']}; {row['whole_s']:.1f}"
            " s in all",
            flush=True,
        )
        if output is not None:
            output.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
