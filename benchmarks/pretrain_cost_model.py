#!/usr/bin/env python3
"""Trains the cost model of a device on what was measured there. `romou tune` starts from this model on the device.

    python benchmarks/pretrain_cost_model.py

reads spaces that were recorded on an NVIDIA H200 through OpenCL, and what searches measured on an H100 through CUDA
(benchmarks/data), and writes romou/compiler/operators/costs/pretrained_models. Run it after a change of features,
usage or estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pretrained_file import save, with_winners
from romou.base.errors import RecordError
from romou.base.space import Config
from romou.compiler.operators.costs.features import TaskFeatures
from romou.compiler.operators.costs.pretrained import PretrainedModel, Winners, model_path, operator_of
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search.cost_model import train_on
from romou.tuner.search.transfer import TransferData
from searched_layers import SearchedLayer, load_layers
from simulation import SimulatedTask

DATA = Path(__file__).parent / "data"
SPACES = [DATA / name for name in ("spaces_h200", "spaces_h200_more")]
LAYERS = DATA / "searches_h100.jsonl.gz"
# A config is nearly as fast as another one that takes this much less time.
_NEARLY = 1.05
# Fewest layers that a winner serves which no earlier one does.
_LEAST_SERVED = 2
# Fewest layers of a family if the model's picks are default configs of others. With 35 dense layers, picks for others
# took longer than the configs of hand rules on an NVIDIA H200.
_LEAST_LAYERS = 50
# Kinds of targets on which those networks gain by the picks. Through OpenCL, which has no split floats on tensor cores,
# they gain nothing.
_KINDS = frozenset({"cuda", "vulkan"})


def train(tasks: Sequence[SimulatedTask], target: Target, layers: Sequence[SearchedLayer] = ()) -> PretrainedModel:
    """Return a model trained on all recorded configs of the tasks, and on what searches of layers measured.

    target: the target of the recordings
    layers: searched through CUDA, on a device of the same architecture

    RecordError if too few configs were measured.
    """
    data = TransferData()
    for task in tasks:
        recorded, configs = task.recorded, list(SimulatedTask.of_recording(task.recorded).space(target))
        space, features = recorded.space(), TaskFeatures(task.template, task.limits(target), target.spec)
        data.add(features, configs, [recorded.configs[space.index_of(c)].time_s for c in configs])
    searched = Target(f"cuda -device={target.spec.name}")
    for layer in layers:
        features = TaskFeatures(layer.task.template, layer.task.limits(searched), searched.spec)
        data.add(features, layer.configs, layer.times_s)
    trees = train_on(data)
    if trees is None:
        raise RecordError(
            f"{len(tasks)} recordings and {len(layers)} layers hold too few configs to train a cost model on",
            hint="benchmarks/record_spaces.py records spaces.",
        )
    return with_winners(trees, winners_of(layers))


def winners_of(layers: Sequence[SearchedLayer]) -> Winners:
    """Return a small set of configs. Nearly the fastest config of most layers is among them."""
    operators = [operator_of(layer.task.family, layer.workload["dtype"]) for layer in layers]
    known = frozenset(operator for operator, count in Counter(operators).items() if count >= _LEAST_LAYERS)
    good: dict[Config, set[int]] = {}
    for number, (layer, operator) in enumerate(zip(layers, operators, strict=True)):
        if operator not in known:
            continue
        least = min((time for time in layer.times_s if time is not None), default=0.0)
        for config, time in zip(layer.configs, layer.times_s, strict=True):
            if time is not None and time <= _NEARLY * least:
                good.setdefault(config, set()).add(number)
    chosen: list[dict[str, Any]] = []
    while good:
        best = max(good, key=lambda config: len(good[config]))
        served = good[best]
        if len(served) < _LEAST_SERVED:
            break
        chosen.append(dict(best))
        good = {config: numbers - served for config, numbers in good.items()}
    return Winners(tuple(chosen), _KINDS, known)


@click.command()
@click.option(
    "--spaces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    default=SPACES,
    help="Folders of recordings.",
)
@click.option(
    "--layers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    default=[LAYERS],
    help="What searches measured through CUDA (searched_layers.py).",
)
@click.option("--device", default="nvidia_h200", show_default=True, help="All were measured on its architecture.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File to write; default: the one that ships.",
)
def main(spaces: tuple[Path, ...], layers: tuple[Path, ...], device: str, out: Path | None) -> None:
    """Train and write the model, as the file's docstring describes."""
    target = Target(f"opencl -device={device}")
    tasks = [
        SimulatedTask.of_recording(RecordedSpace.load(path))
        for folder in spaces
        for path in sorted(folder.glob("*.json.gz"))
    ]
    out = out or model_path(target.kind, target.spec.name)
    out.parent.mkdir(exist_ok=True)
    searched = [layer for path in layers for layer in load_layers(path)]
    save(train(tasks, target, searched), out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(tasks)} recordings and {len(searched)} layers")


if __name__ == "__main__":
    main()
