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

from phone_tasks import PhoneTask, load_tasks
from romou.base.errors import RecordError
from romou.tuner.search.cost_model import Trees, train_on
from romou.tuner.search.features import TaskFeatures
from romou.tuner.search.pretrained import PretrainedModel, model_path
from romou.tuner.search.transfer import TransferData, is_enough

# A pick within this factor of the best is as good as the best: the noise of a measurement.
_BEST = 1.02
_FEW = 10


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


@dataclass(frozen=True)
class Judgement:
    """How well scores order the kernels that ran.

    correlation: rank correlation with the times
    first, ten: time of the first pick, and of the best of the first ten, over the best
    trials: picks until one is within 2% of the best
    """

    correlation: float
    first: float
    ten: float
    trials: int

    @classmethod
    def of(cls, scores: np.ndarray, times_s: np.ndarray) -> Judgement:
        """Return the judgement of scores, higher for faster kernels."""
        from scipy.stats import spearmanr

        order = np.argsort(-scores, kind="stable")
        slower = times_s[order] / times_s.min()
        return cls(
            correlation=float(spearmanr(-scores, times_s).statistic),
            first=float(slower[0]),
            ten=float(slower[:_FEW].min()),
            trials=int(np.argmax(slower <= _BEST)) + 1,
        )


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
            if trees is None or ran.sum() < _FEW:
                continue
            learned = trees(layer.rows, layer.columns, layer.expected)
            times = layer.task.time_s[ran]
            pair = Judgement.of(layer.expected[ran], times), Judgement.of(learned[ran], times)
            kind = layer.task.recorded.template.partition(".")[0]
            for key in (f"{layer.task.recorded.gpu} {kind} {layer.task.recorded.dtype}", "all"):
                tables[key].append(pair)
    return dict(sorted(tables.items(), key=lambda item: (item[0] == "all", item[0])))


def _print(tables: dict[str, list[tuple[Judgement, Judgement]]]) -> None:
    click.echo(
        f"{'medians: estimate -> model':<46}{'layers':>7}{'correlation':>16}{'first':>16}{'ten':>16}{'trials':>12}"
    )
    for name, pairs in tables.items():
        cells = []
        for key, digits in (("correlation", 2), ("first", 2), ("ten", 3), ("trials", 0)):
            before, after = (float(np.median([getattr(pair[side], key) for pair in pairs])) for side in (0, 1))
            cells.append(f"{before:.{digits}f} -> {after:.{digits}f}")
        click.echo(f"{name:<46}{len(pairs):>7}{cells[0]:>16}{cells[1]:>16}{cells[2]:>16}{cells[3]:>16}")


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
