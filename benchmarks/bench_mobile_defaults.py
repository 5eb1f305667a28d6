"""Counts the instructions and the spills of default configs of 45 layers of mobile networks under Mesa's compilers.

    python benchmarks/bench_mobile_defaults.py                                    five GPUs, fp32 and fp16
    python benchmarks/bench_mobile_defaults.py --gpu a660 --precision float32 --only 1x1 --json result.json
    python benchmarks/bench_mobile_defaults.py --against result.json              each number over that of the file
    python benchmarks/bench_mobile_defaults.py --candidates 16 --gpu a660         layers of whose first 16 configs none spills
    python benchmarks/bench_mobile_defaults.py --candidates 16 --every 3          the same of every third layer

They are machine instructions for each needed multiply-add, as in bench_mobile_layers, which executes some work groups in
Adreno's simulator. The convolutions have a bias and a ReLU. S stands for spills. A layer is clean if none of
its first configs spills. Those that spill are printed with the knobs that differ from the default config's.
"""  # noqa: E501

from __future__ import annotations

import csv
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import onnx
from onnx import TensorProto, helper
from rich.console import Console

import bench_mobile_layers as layers
import bench_mobile_static as static
from mobile_options import gpus_option, layers_option, precisions_option
from romou.devices.mobile_compilers import find_compilers, mesa_version, mobile_gpu
from romou.tools.report.table import table_of_numbers

CONVOLUTIONS = Path(__file__).parent / "data/mobile_layers.csv"
COMPARED = ("a630", "a660", "a740", "g76", "g610")
# Name -> batch, rows, reduction length and columns of a product of two computed matrices.
PRODUCTS = {
    "product 3x197x64 -> 197": (3, 197, 64, 197),
    "product 3x197x197 -> 64": (3, 197, 197, 64),
    "product 8x77x77 -> 64": (8, 77, 77, 64),
    "product 6x50x50 -> 64": (6, 50, 50, 64),
}


def mobile_layers() -> Iterator[tuple[str, onnx.ModelProto, int]]:
    """Yield name, model and needed multiply-adds of each layer."""
    with CONVOLUTIONS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _name_of(row), static.model_of(row), static.multiply_adds_of(row)
    for name, (batch, rows, length, columns) in PRODUCTS.items():
        shapes = {"x": (batch, rows, length), "w": (batch, length, columns), "y": (batch, rows, columns)}
        x, w, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape) for tensor, shape in shapes.items())
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x, w], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        yield name, model, batch * rows * length * columns


def _name_of(row: dict[str, str]) -> str:
    groups, stride = int(row["groups"]), int(row["stride"])
    kind = "" if groups == 1 else "depthwise " if groups == int(row["in_channels"]) else f"{groups} groups "
    size = f"{row['in_channels']}x{row['in_h']}x{row['in_w']} -> {row['out_channels']}"
    return f"{kind}{row['kernel_h']}x{row['kernel_w']} {size}{f' /{stride}' if stride > 1 else ''}"


def numbers_of(
    layers_of_table: Sequence[tuple[str, onnx.ModelProto, int]], gpu: str, precision: str, candidates: int
) -> dict[str, dict[str, Any] | None]:
    """Return the numbers of each layer's default config, and how many of the first configs of a search spill.

    None for a layer whose default config Mesa's compiler refuses.
    """
    device = mobile_gpu(gpu).devices[-1]
    built = [
        (layers.first_kernels(model, device, precision, candidates), needed) for _, model, needed in layers_of_table
    ]
    counted = layers.counts_of_all(built, gpu)
    return {name: _numbers(counts) for (name, *_), (counts, _) in zip(layers_of_table, counted, strict=True)}


def _numbers(counts: Sequence[layers.Count]) -> dict[str, Any] | None:
    if not counts:
        return None
    default = counts[0]
    return {
        "first": len(counts),
        "first_spilling": sum(bool(made.spills) for made in counts),
        "spilling": [
            {"place": place, "registers": made.registers, "config": dict(made.config)}
            for place, made in enumerate(counts)
            if made.spills
        ],
        "instructions": round(default.instructions, 3),
        "by_trips": round(default.by_trips, 3),
        "cycles": round(default.cycles, 3),
        "spills": default.spills,
        "registers": default.registers,
        "vendor": default.vendor,
        "config": dict(default.config),
    }


@click.command()
@gpus_option(COMPARED)
@precisions_option
@layers_option
@click.option("--candidates", default=1, show_default=True, help="First configs of a search, the default among them.")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, help="Only every so many-th layer.")
@click.option("--json", "written", type=click.Path(dir_okay=False, path_type=Path), help="Also write the numbers.")
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An earlier --json.")
def main(
    gpus: tuple[str, ...],
    precisions: tuple[str, ...],
    only: str,
    candidates: int,
    every: int,
    written: Path | None,
    against: Path | None,
) -> None:
    """Print a table with a column for each GPU and precision."""
    find_compilers()
    out = Console(width=180)
    earlier = {} if against is None else json.loads(against.read_text(encoding="utf-8"))
    columns = [f"{gpu} {precision[:1]}{precision[-2:]}" for precision in precisions for gpu in gpus]
    title = f"Mesa's compilers {mesa_version()} (not the vendors'), default configs: instructions per multiply-add"
    table = table_of_numbers("layer", columns, title=title)
    counted = [layer for layer in itertools.islice(mobile_layers(), 0, None, every) if only in layer[0]]
    numbers: dict[str, dict[str, Any]] = {name: {} for name, *_ in counted}
    for column, (precision, gpu) in zip(columns, ((p, g) for p in precisions for g in gpus), strict=True):
        for name, number in numbers_of(counted, gpu, precision, candidates).items():
            numbers[name][column] = number
    for name, own in numbers.items():
        table.add_row(name, *(_cell(own[column], earlier.get(name, {}).get(column)) for column in columns))
    out.print(table)
    for column in columns:
        made = [own[column] for own in numbers.values() if own[column] is not None]
        spilling = sum(bool(number["spills"]) for number in made)
        median = statistics.median(number["instructions"] for number in made)
        text = f"{column}: {len(made)} of {len(numbers)} layers, median {median:.2f}, {spilling} spill"
        if candidates > 1:
            spills = [number["first_spilling"] for number in made]
            text += (
                f"; of the first configs {sum(spills)} of {sum(number['first'] for number in made)} spill,"
                f" {spills.count(0)} of {len(made)} layers are clean"
            )
        ratios = [
            own[column]["instructions"] / before["instructions"]
            for name, own in numbers.items()
            if own[column] and (before := earlier.get(name, {}).get(column))
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            text += f"; over the earlier ones {mean:.3f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        off = sorted(number["instructions"] / number["by_trips"] - 1 for number in made)
        if mobile_gpu(column.split()[0]).vec4_registers is not None:
            ends = f"{off[0]:+.0%} to {off[-1]:+.0%}"
            text += f"; executed against trip counts: median {statistics.median(off):+.1%} ({ends})"
        out.print(text)
        for name, own in numbers.items():
            for line in spilling_lines(own[column]) if candidates > 1 and own[column] is not None else ():
                out.print(f"  {name}: {line}", markup=False, highlight=False)
    if written is not None:
        written.write_text(json.dumps(numbers, indent=1), encoding="utf-8")


def spilling_lines(number: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each of the first configs that spills."""
    for made in number["spilling"]:
        knobs = [f"{knob}={value}" for knob, value in made["config"].items() if number["config"].get(knob) != value]
        text = ", ".join(knobs) or "the default config"
        yield f"config {made['place']} of {number['first']} spills, {made['registers']} registers: {text}"


def _cell(now: dict[str, Any] | None, before: dict[str, Any] | None) -> str:
    if now is None:
        return "refused"
    text = f"{now['instructions']:.2f}{' S' if now['spills'] else ''}{now['vendor']}"
    if now["first"] > 1:
        text += f" ({now['first_spilling']} of {now['first']} spill)"
    if before is None:
        return text
    spilled = " S" if before["spills"] else ""
    return f"{before['instructions']:.2f}{spilled} > {text}"


if __name__ == "__main__":
    main()
