#!/usr/bin/env python3
"""Trains the cost model of Adreno GPUs on AutoTVM's measurements of phones, and judges it on layers left out.

    python benchmarks/pretrain_on_phones.py adreno_autotvm.jsonl.gz

writes romou/tuner/search/pretrained_models/opencl_adreno.ubj.gz, which every Adreno target starts from.
docs/validation.md describes the data, which is not part of Romou. With --folds, nothing is written: the layers are
divided into groups, and a model that was trained on the others judges each group.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from phone_judged import Judgement
from phone_tasks import PhoneTask, load_tasks
from romou.base.errors import RecordError
from romou.tools.report.table import table_of_numbers
from romou.tuner.search.cost_model import Trees, train_on
from romou.tuner.search.features import TaskFeatures
from romou.tuner.search.pretrained import PretrainedModel, model_path
from romou.tuner.search.transfer import TransferData, is_enough

# Fewest timed configs of a layer, so that ranks mean something.
_LEAST_TIMED = 10
# Field of a judgement -> decimals in the table.
_DIGITS = {"correlation": 2, "first": 2, "ten": 3, "trials": 0}


@dataclass(frozen=True)
class Layer:
    """The measured kernels of a task as training data: features, expected scores, and seconds (None: failed)."""

    task: PhoneTask
    columns: tuple[str, ...]
    rows: np.ndarray
    expected: np.ndarray
    times_s: Sequence[float | None]

    @classmethod
    def of(cls, task: PhoneTask) -> Layer:
        """Return the features of a task's kernels."""
        features = TaskFeatures(task.template, task.target.limits, task.target.spec)
        rows = features.of_kernels(task.columns, task.usage, len(task.time_s))
        times = [float(time) if ran else None for time, ran in zip(task.time_s, task.is_timed, strict=True)]
        return cls(task, features.columns, rows[:, :-1], rows[:, -1], times)

    def fold(self, folds: int) -> int:
        """Return the layer's group. The same layer in other types and on other GPUs is in the same group."""
        operator = self.task.recorded.task
        assert operator is not None, "tasks without a template are left out"
        layer = operator.name.removesuffix(f"_{self.task.recorded.dtype}")
        return int(hashlib.sha256(layer.encode()).hexdigest(), 16) % folds


def train(layers: Sequence[Layer]) -> Trees:
    """Return trees that correct the estimate of the layers' kernels. RecordError if there are too few."""
    data = TransferData()
    for layer in layers:
        if is_enough(layer.times_s):
            data.add_rows(layer.columns, layer.rows, layer.expected, layer.times_s)
    trees = train_on(data)
    if trees is None:
        raise RecordError("the file holds too few measurements of sums of products to train on")
    return trees


def judged(layers: Sequence[Layer], folds: int) -> dict[str, list[tuple[Judgement, Judgement]]]:
    """Return GPU and type -> judgements of the estimate and of models that did not see the layer."""
    tables: dict[str, list[tuple[Judgement, Judgement]]] = defaultdict(list)
    for fold in range(folds):
        held = [layer for layer in layers if layer.fold(folds) == fold]
        trees = train([layer for layer in layers if layer.fold(folds) != fold]) if held else None
        for layer in held:
            ran = layer.task.is_timed
            if trees is None or ran.sum() < _LEAST_TIMED:
                continue
            learned = trees(layer.rows, layer.columns, layer.expected)
            times = layer.task.time_s[ran]
            pair = Judgement.of(layer.expected[ran], times), Judgement.of(learned[ran], times)
            kind = layer.task.recorded.template.partition(".")[0]
            for key in (f"{layer.task.recorded.gpu} {kind} {layer.task.recorded.dtype}", "all"):
                tables[key].append(pair)
    return dict(sorted(tables.items(), key=lambda item: (item[0] == "all", item[0])))


def _print(tables: dict[str, list[tuple[Judgement, Judgement]]]) -> None:
    table = table_of_numbers("GPU, template, type", ("layers", *_DIGITS), title="Medians: estimate -> model")
    for name, pairs in tables.items():
        before, after = (np.median([pair[side] for pair in pairs], axis=0) for side in (0, 1))
        cells = [f"{a:.{n}f} -> {b:.{n}f}" for a, b, n in zip(before, after, _DIGITS.values(), strict=True)]
        table.add_row(name, str(len(pairs)), *cells)
    Console().print(table)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", default="", help="GPU of a log that does not name one, e.g. adreno660.")
@click.option("--least", default=100, show_default=True, help="Fewest configs of a layer.")
@click.option("--folds", default=0, show_default=True, help="Judge models on this many groups of layers.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Default: the one that ships."
)
def main(file: Path, gpu: str, least: int, folds: int, out: Path | None) -> None:
    """Train the cost model of Adreno GPUs, as the file's docstring describes."""
    layers = [Layer.of(task) for task in load_tasks(file, least=least, default_gpu=gpu)]
    if folds:
        _print(judged(layers, folds))
        return
    out = out or model_path("opencl", "adreno")
    trees = train(layers)
    PretrainedModel(trees.booster, trees.columns).save(out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(layers)} layers")


if __name__ == "__main__":
    main()
