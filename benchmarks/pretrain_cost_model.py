#!/usr/bin/env python3
"""Trains the cost model of a device on what was measured there. `romou tune` starts from this model on the device.

    python benchmarks/pretrain_cost_model.py

reads spaces that were recorded on an NVIDIA H200 through OpenCL, and what searches measured on an H100 through CUDA
(benchmarks/data), and writes romou/tuner/search/pretrained_models. Run it after a change of features, usage or
estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from romou.base.errors import RecordError
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search.cost_model import train_on
from romou.tuner.search.features import TaskFeatures
from romou.tuner.search.pretrained import PretrainedModel, model_path
from romou.tuner.search.transfer import TransferData
from searched_layers import SearchedLayer, load_layers
from simulation import SimulatedTask

DATA = Path(__file__).parent / "data"
SPACES = [DATA / name for name in ("spaces_h200", "spaces_h200_more")]
LAYERS = DATA / "searches_h100.jsonl.gz"


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
    return PretrainedModel(trees.booster, trees.columns)


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
    train(tasks, target, searched).save(out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(tasks)} recordings and {len(searched)} layers")


if __name__ == "__main__":
    main()
