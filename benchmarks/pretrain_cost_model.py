#!/usr/bin/env python3
"""Trains the cost model of a device on spaces recorded on it. `romou tune` starts from this model on the device.

    python benchmarks/pretrain_cost_model.py

reads benchmarks/data/spaces_h200 and spaces_h200_more, recorded on an NVIDIA H200, and writes
romou/tuner/search/pretrained_models. Run it after a change of features, usage or estimate.
"""

from __future__ import annotations

from pathlib import Path

import click

from romou.devices.targets import Target
from romou.tuner.records import RecordedSpace
from romou.tuner.search.pretrained import PretrainedModel, file_of
from romou.tuner.search.simulation import SimulatedTask

SPACES = [Path(__file__).parent / "data" / name for name in ("spaces_h200", "spaces_h200_more")]


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
    out = out or file_of(target)
    out.parent.mkdir(exist_ok=True)
    PretrainedModel.of_recordings(tasks, target).save(out)
    click.echo(f"{out}: {out.stat().st_size} bytes, out of {len(tasks)} recordings")


if __name__ == "__main__":
    main()
