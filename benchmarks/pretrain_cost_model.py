#!/usr/bin/env python3
"""Trains the cost model of a device on spaces recorded on it. `romou tune` starts from this model on the device.

    python benchmarks/pretrain_cost_model.py

reads benchmarks/data/spaces_h200 and spaces_h200_more, recorded on an NVIDIA H200, and writes
romou/tuner/search/pretrained_models. Run it after a change of features, usage or estimate.
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
from simulation import SimulatedTask

SPACES = [Path(__file__).parent / "data" / name for name in ("spaces_h200", "spaces_h200_more")]


def train(tasks: Sequence[SimulatedTask], target: Target) -> PretrainedModel:
    """Return a model trained on all recorded configs of the tasks.

    target: the target of their device

    RecordError if too few configs were recorded.
    """
    data = TransferData()
    for task in tasks:
        recorded, configs = task.recorded, list(SimulatedTask.of_recording(task.recorded).space(target))
        space, features = recorded.space(), TaskFeatures(task.template, task.limits(target), target.spec)
        data.add(features, configs, [recorded.configs[space.index_of(c)].time_s for c in configs])
    trees = train_on(data)
    if trees is None:
        raise RecordError(
            f"{len(tasks)} recordings hold too few configs to train a cost model on",
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
@click.option("--device", default="nvidia_h200", show_default=True, help="They were recorded on it.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File to write; default: the one that ships.",
)
def main(spaces: tuple[Path, ...], device: str, out: Path | None) -> None:
    """Train and write the model, as the file's docstring describes."""
    target = Target(f"opencl -device={device}")
    tasks = [
        SimulatedTask.of_recording(RecordedSpace.load(path))
        for folder in spaces
        for path in sorted(folder.glob("*.json.gz"))
    ]
    out = out or model_path(target.kind, target.spec.name)
    out.parent.mkdir(exist_ok=True)
    train(tasks, target).save(out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(tasks)} recordings")


if __name__ == "__main__":
    main()
