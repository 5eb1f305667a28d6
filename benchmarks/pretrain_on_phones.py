#!/usr/bin/env python3
"""Trains the cost model of Adreno 660 on AutoTVM's measurements of phones, and judges it on layers left out.

    python benchmarks/pretrain_on_phones.py adreno_autotvm.jsonl.gz

writes romou/compiler/operators/costs/pretrained_models/opencl_adreno660.ubj.gz, which searches for this GPU start
from: nine of ten recorded layers are its own. docs/evidence/validation.md describes the data, which is not part of
Romou. With --folds, --networks or --devices, nothing is written: the layers are divided into groups, and a model that
was trained on the others judges each group.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
from rich.console import Console
from scipy import stats

from phone_judged import Judgement
from phone_tasks import PhoneTask, load_tasks
from pretrained_file import of_types, save
from romou.base.errors import RecordError
from romou.compiler.operators.costs.features import TYPES, TaskFeatures, aligned, kernel_types
from romou.compiler.operators.costs.pretrained import PretrainedModel, Trees, model_path
from romou.tools.report.table import table_of_numbers
from romou.tuner.search.cost_model import boosted
from romou.tuner.search.transfer import is_enough, levelled

# Fewest timed configs of a layer that is judged.
_LEAST_TIMED = 10
# Standard deviation of the labels, about that of -log(seconds) in a layer.
_SPREAD = 0.87
# A kernel that takes twice as long weighs less by two to this power.
_FASTER = 0.75
# XGBoost's parameters and rounds, and the labels, were chosen by the layers of these networks only, each judged by a
# model of all other networks.
_CHOSEN_BY = ("inception", "vgg", "resnet")
_TREES: tuple[Mapping[str, Any], int] = (
    {
        "max_depth": 12,
        "eta": 0.05,
        "min_child_weight": 5,
        "subsample": 0.7,
        "colsample_bynode": 0.3,
        "num_parallel_tree": 3,
        "max_bin": 64,
    },
    100,
)
# The same for trees of one type of kernels, and the fewest layers of a type that has trees.
_OF_TYPE = ({**_TREES[0], "eta": 0.1, "num_parallel_tree": 2}, 50)
_LEAST_OF_TYPE = 8
# Field of a judgement -> decimals in the table.
_DIGITS = {"correlation": 2, "first": 2, "ten": 3, "trials": 0}


# Network -> sides of its layers' data, with and without padding. The networks of 224 pixels share theirs.
_NETWORKS = {
    "inception": (299, 149, 147, 73, 71, 35, 17, 8),
    "yolo": (416, 417, 208, 209, 104, 105, 52, 53, 26, 27, 13),
    "deeplab": (513, 257, 129, 65, 33),
    "detectors": (1200, 800, 600, 400, 300, 200, 150, 100, 75),
}
# Channels in, channels out and side of MobileNet's pointwise layers.
_MOBILENET = {
    (32, 64, 112),
    (64, 128, 56),
    (128, 128, 56),
    (128, 256, 28),
    (256, 256, 28),
    (256, 512, 14),
    (512, 512, 14),
    (512, 1024, 7),
    (1024, 1024, 7),
}


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
        known = features.model_rows(rows[:, :-1], task.columns, task.usage, task.loops)
        times = [float(time) if ran else None for time, ran in zip(task.time_s, task.is_timed, strict=True)]
        return cls(task, features.model_columns, known.astype(np.float32), rows[:, -1], times)

    def of_kernels(self, chosen: np.ndarray) -> Layer:
        """Return the layer for training with some of its kernels only. The others count as failed."""
        times = [time if of_chosen else None for time, of_chosen in zip(self.times_s, chosen, strict=True)]
        return replace(self, times_s=times)

    @property
    def has_ranks(self) -> bool:
        """Whether enough kernels ran, so that ranks mean something."""
        return bool(self.task.is_timed.sum() >= _LEAST_TIMED)

    @property
    def network(self) -> str:
        """The network that the layer is from, by the sides of its data: each network halves another side.

        The sides 224 to 7 are VGG's if the window is 3x3 at stride 1 and the data is large or the channels double,
        MobileNet's if the layer is depthwise or a pointwise layer of it, else ResNet's.
        """
        work: Any = self.task.recorded.work  # type: ignore[union-attr]
        side, channels = work.in_hw[0], (work.in_channels, work.out_channels)
        of_side = next((name for name, sides in _NETWORKS.items() if side in sides), "")
        if of_side:
            return of_side
        if self.task.recorded.is_depthwise or (work.stride == (1, 1) and (*channels, side) in _MOBILENET):
            return "mobilenet"
        is_plain = work.kernel == (3, 3) and work.stride == (1, 1)
        is_vgg = side >= 112 or channels[1] == 2 * channels[0] or channels[0] == 512 or (channels[0], side) == (256, 56)
        return "vgg" if is_plain and is_vgg else "resnet"

    def fold(self, folds: int) -> int:
        """Return the layer's group. The same layer in other types and on other GPUs is in the same group."""
        operator = self.task.recorded.task
        assert operator is not None, "tasks without a template are left out"
        layer = operator.name.removesuffix(f"_{self.task.recorded.dtype}")
        return int(hashlib.sha256(layer.encode()).hexdigest(), 16) % folds


def train(layers: Sequence[Layer]) -> PretrainedModel:
    """Return a model that corrects the estimate of the layers' kernels. RecordError if there are too few.

    Types of kernels with several layers have trees of their own beside those of all layers.

    A label is the normal quantile of the kernel's rank among the layer's kernels that ran, higher for faster ones.
    Ranks suffer less than times from a clock that changes, and from kernels that are a hundred times slower. Quantiles
    set the few fastest kernels further apart than ranks do.
    """
    chosen = [layer for layer in layers if is_enough(layer.times_s)]
    if not chosen:
        raise RecordError("the file holds too few measurements of sums of products to train on")
    columns = tuple(dict.fromkeys(name for layer in chosen for name in layer.columns if name not in TYPES))
    types: dict[int, list[Layer]] = defaultdict(list)
    for layer in chosen:
        types[int(kernel_types(layer.rows, layer.columns)[0])].append(layer)
    own = {kind: _trees(same, columns, _OF_TYPE) for kind, same in types.items() if len(same) >= _LEAST_OF_TYPE}
    return of_types(_trees(chosen, columns, _TREES), own)


def _trees(layers: Sequence[Layer], columns: tuple[str, ...], how: tuple[Mapping[str, Any], int]) -> Trees:
    groups = []
    for layer in layers:
        times = np.array([np.nan if time is None else time for time in layer.times_s])
        ran = np.isfinite(times)
        labels = _SPREAD * stats.norm.ppf((stats.rankdata(-times[ran]) - 0.5) / ran.sum())
        faster = (np.nanmin(times) / times[ran]) ** _FASTER
        weight = faster / faster.sum()
        expected = levelled(layer.expected[ran], labels, weight)
        groups.append((aligned(layer.rows[ran], layer.columns, columns), labels, expected, weight))
    rows, labels, expected, weight = (np.concatenate(arrays) for arrays in zip(*groups, strict=True))
    # The mean is 1, which XGBoost's limits for leaves assume.
    weight *= len(weight) / weight.sum()
    return Trees(boosted(rows, labels, expected, how, weight=weight), columns)


# Layers to judge, and layers to train on.
Split: TypeAlias = tuple[Sequence[Layer], Sequence[Layer]]


def by_layer(layers: Sequence[Layer], folds: int) -> Iterator[Split]:
    """Yield groups of layers to judge, with the other layers."""
    for fold in range(folds):
        held = [layer for layer in layers if layer.fold(folds) == fold]
        yield held, [layer for layer in layers if layer.fold(folds) != fold]


def by_name(layers: Sequence[Layer], name_of: Callable[[Layer], str]) -> Iterator[Split]:
    """Yield the layers of each name, a network's or a GPU's, with the layers of the other names."""
    names = [name_of(layer) for layer in layers]
    for each in dict.fromkeys(names):
        pairs = list(zip(layers, names, strict=True))
        yield [layer for layer, name in pairs if name == each], [layer for layer, name in pairs if name != each]


def choosing(layer: Layer) -> str:
    """Return the name of the group of networks that chose the parameters, or of the others."""
    return "networks that chose" if layer.network in _CHOSEN_BY else "networks that did not choose"


def judged(
    splits: Iterable[Split], group_of: Callable[[Layer], str] | None = None
) -> dict[str, list[tuple[Judgement, Judgement]]]:
    """Return GPU and type -> judgements of the estimate and of models that did not see the layer.

    splits: layers to judge, and layers to train on
    group_of: returns another group that a layer is counted in
    """
    tables: dict[str, list[tuple[Judgement, Judgement]]] = defaultdict(list)
    for held, others in splits:
        trees = train(others) if held else None
        for layer in held:
            if trees is not None and layer.has_ranks:
                groups = [group_of(layer)] if group_of is not None else []
                _judge(layer, trees(layer.rows, layer.columns, layer.expected), tables, *groups)
    return _sorted(tables)


def judged_by_own(layers: Sequence[Layer], folds: int) -> dict[str, list[tuple[Judgement, Judgement]]]:
    """Return the same for models that saw all other kernels, those of the layer included.

    Each fifth of a layer's kernels, for five folds, is predicted by a model of the others. No model of other layers
    only is expected to be better, so this bounds what the features can say.
    """
    generator = np.random.default_rng(0)
    parts = [generator.integers(0, folds, len(layer.times_s)) for layer in layers]
    predicted = [np.empty(len(part)) for part in parts]
    for fold in range(folds):
        seen = [layer.of_kernels(part != fold) for layer, part in zip(layers, parts, strict=True)]
        trees = train(seen)
        for layer, part, values in zip(layers, parts, predicted, strict=True):
            values[part == fold] = trees(layer.rows, layer.columns, layer.expected)[part == fold]
    tables: dict[str, list[tuple[Judgement, Judgement]]] = defaultdict(list)
    for layer, values in zip(layers, predicted, strict=True):
        if layer.has_ranks:
            _judge(layer, values, tables)
    return _sorted(tables)


def _judge(
    layer: Layer, learned: np.ndarray, tables: dict[str, list[tuple[Judgement, Judgement]]], *groups: str
) -> None:
    recorded, ran = layer.task.recorded, layer.task.is_timed
    times = layer.task.time_s[ran]
    kind = recorded.template.partition(".")[0]
    for key in (f"{recorded.gpu} {kind} {recorded.dtype}", *groups, "all"):
        tables[key].append((Judgement.of(layer.expected[ran], times), Judgement.of(learned[ran], times)))


def _sorted(
    tables: dict[str, list[tuple[Judgement, Judgement]]],
) -> dict[str, list[tuple[Judgement, Judgement]]]:
    return dict(sorted(tables.items(), key=lambda item: (item[0] == "all", item[0])))


def _print(tables: dict[str, list[tuple[Judgement, Judgement]]]) -> None:
    table = table_of_numbers("GPU, template, type", ("layers", *_DIGITS), title="Medians: estimate -> model")
    for name, pairs in tables.items():
        before, after = (np.median([pair[side] for pair in pairs], axis=0) for side in (0, 1))
        cells = [f"{a:.{n}f} -> {b:.{n}f}" for a, b, n in zip(before, after, _DIGITS.values(), strict=True)]
        table.add_row(name, str(len(pairs)), *cells)
    Console(width=120).print(table)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--gpu", default="", help="GPU of a log that does not name one, e.g. adreno660.")
@click.option("--least", default=100, show_default=True, help="Fewest configs of a layer.")
@click.option("--folds", default=0, show_default=True, help="Judge models on this many groups of layers.")
@click.option("--networks", "by", flag_value="networks", help="Judge models on networks that they did not see.")
@click.option("--devices", "by", flag_value="devices", help="Judge models on GPUs that they did not see.")
@click.option("--own", is_flag=True, help="With --folds, judge models that saw the layer's other kernels.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Default: the one that ships."
)
def main(file: Path, gpu: str, least: int, folds: int, by: str | None, own: bool, out: Path | None) -> None:
    """Train the cost model of Adreno 660, as the file's docstring describes."""
    layers = [Layer.of(task) for task in load_tasks(file, least=least, default_gpu=gpu)]
    if folds or by is not None:
        if by == "networks":
            _print(judged(by_name(layers, lambda layer: layer.network), choosing))
        elif by == "devices":
            _print(judged(by_name(layers, lambda layer: layer.task.recorded.gpu)))
        else:
            _print(judged_by_own(layers, folds) if own else judged(by_layer(layers, folds)))
        return
    out = out or model_path("opencl", "adreno660")
    save(train(layers), out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(layers)} layers")


if __name__ == "__main__":
    main()
