#!/usr/bin/env python3
"""Prints whole networks' times that others published for phones, beside what `romou check` estimates.

    python benchmarks/published_networks.py
    python benchmarks/published_networks.py resnet18 --gpu "Adreno 640" --precision float32

The figures are those of other engines, so their kernels are not Romou's: scale and order count, not single networks.
None of them was fitted to. No device is needed.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Literal, TypeAlias

import click
import numpy as np
import onnx
from rich.console import Console
from scipy import stats

import classifiers
from romou import models
from romou.compiler.compilation import Compilation
from romou.compiler.operators.costs.estimate import estimable
from romou.devices.hardware import HardwareSpec
from romou.devices.targets import Target
from romou.driver.options import CheckOptions
from romou.tools.inspection.check_report import CheckedLayer, checked_layers
from romou.tools.report.table import print_table, table_of_numbers

Precision: TypeAlias = Literal["float32", "float16"]

DATA = Path(__file__).parent / "data" / "published_networks.csv"
# An estimate is near a published time within this factor.
_NEAR = 1.5
# GPU of the figures -> device file, and facts in which the GPU differs from it. Rates grow with clock and cores.
GPUS: dict[str, tuple[str, dict[str, float]]] = {
    "Adreno 640": ("adreno640", {}),
    "Adreno 630": ("adreno630", {}),
    "Adreno 540": ("adreno530", {"clock_mhz": 710}),
    "Adreno 616": ("adreno618", {}),
    "Mali-G76 MP10": ("mali_g76", {"clock_mhz": 720, "shader_cores": 10}),
    # 64 bits of LPDDR5X at 10.6 Gb/s
    "Adreno 840": ("adreno840", {"clock_mhz": 1200, "dram_bandwidth_gbps": 84.8}),
    "Mali-G77 MP11": ("mali_g77", {"clock_mhz": 800, "shader_cores": 11}),
}
_RATES = ("l1_texture_bandwidth_gbps", "l1_buffer_bandwidth_gbps", "l2_bandwidth_gbps")
# These grow with the channels of the memory, taken to be in proportion to the cores.
_SHARED = ("dram_bandwidth_gbps", "l2_cache_bytes")


@dataclasses.dataclass(frozen=True)
class Published:
    """A published time."""

    source: str
    gpu: str
    network: str
    ms: float


def published(names: Sequence[str] = (), gpus: Sequence[str] = ()) -> list[Published]:
    """Return the published times of some networks and GPUs, of all if none is given."""
    with DATA.open(encoding="utf-8") as file:
        figures = [Published(**{**row, "ms": float(row["ms"])}) for row in csv.DictReader(file)]  # type: ignore[arg-type]
    return [each for each in figures if each.network in (names or [each.network]) and each.gpu in (gpus or [each.gpu])]


def spec_of(gpu: str) -> HardwareSpec:
    """Return the facts of a GPU: those of its device file, scaled if it has another clock or other cores."""
    spec, own = estimable(target_of(gpu)).spec, GPUS[gpu][1]
    assert spec.clock_mhz is not None, "targets of GPUS can be estimated"
    assert spec.shader_cores is not None, "targets of GPUS can be estimated"
    cores = own.get("shader_cores", spec.shader_cores) / spec.shader_cores
    clock = own.get("clock_mhz", spec.clock_mhz) / spec.clock_mhz
    factors = {**dict.fromkeys(_RATES, cores * clock), **dict.fromkeys(_SHARED, cores)}
    scaled = {name: getattr(spec, name) * factor for name, factor in factors.items() if getattr(spec, name)}
    return dataclasses.replace(spec, **{**scaled, **own})


def target_of(gpu: str) -> Target:
    """Return the target of the device file that stands for a GPU."""
    return Target(f"opencl -device={GPUS[gpu][0]}")


def layers_of(network: str, gpus: Iterable[str], precision: Precision) -> dict[str, tuple[CheckedLayer, ...]]:
    """Return GPU -> layers of a network with default kernels, as `romou check` estimates them."""
    graph = classifiers.network(network) if network in classifiers.names() else models.load(network)
    return layers_of_graph(graph, gpus, precision)


def layers_of_graph(
    graph: onnx.ModelProto, gpus: Iterable[str], precision: Precision
) -> dict[str, tuple[CheckedLayer, ...]]:
    """Return GPU -> layers of a graph, as `layers_of`."""
    imported = CheckOptions(precision=precision).imported(graph)
    return {gpu: checked_layers(Compilation.of(imported, target_of(gpu)).lowered(), {}, spec_of(gpu)) for gpu in gpus}


def estimates(network: str, gpus: Iterable[str], precision: Precision) -> dict[str, float]:
    """Return GPU -> milliseconds of a network with default kernels, as `romou check` adds them up."""
    return {gpu: sum_ms(layers) for gpu, layers in layers_of(network, gpus, precision).items()}


def sum_ms(layers: Iterable[CheckedLayer]) -> float:
    """Return the sum of the layers' estimates in milliseconds."""
    return sum(layer.ms for layer in layers if layer.ms is not None)


def print_figures(figures: Sequence[Published], estimated: Mapping[tuple[str, str], float], out: Console) -> None:
    """Print a table of each source, and one of all. estimated: (network, GPU) -> milliseconds."""
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for source in dict.fromkeys(each.source for each in figures):
        own = {(each.network, each.gpu): each.ms for each in figures if each.source == source}
        gpus = list(dict.fromkeys(gpu for _, gpu in own))
        columns = [column for gpu in gpus for column in (gpu, "estimate", "ratio")]
        table = table_of_numbers("network", columns, title=f"{source}: published and estimated ms")
        for network in sorted({network for network, _ in own}):
            cells: list[str] = []
            for gpu in gpus:
                ms, ours = own[network, gpu], estimated[network, gpu]
                ratios.setdefault((source, gpu), []).append((ms, ours))
                cells += [f"{ms:.1f}", f"{ours:.1f}", f"{ours / ms:.2f}"]
            table.add_row(network, *cells)
        print_table(table, out)
    columns = ["networks", "estimate / published", "least", "most", f"within {_NEAR}x", "rank correlation"]
    table = table_of_numbers("source, GPU", columns, title="Estimate over published time, geometric means")
    for (source, gpu), pairs in ratios.items():
        theirs, ours = np.array(pairs).T
        factors = ours / theirs
        is_near = np.abs(np.log(factors)) <= np.log(_NEAR)
        order = f"{stats.spearmanr(theirs, ours).statistic:.2f}" if len(pairs) > 1 else "-"
        shares = (f"{geometric_mean(factors):.2f}", f"{factors.min():.2f}", f"{factors.max():.2f}")
        table.add_row(f"{source}, {gpu}", str(len(pairs)), *shares, f"{is_near.sum()} of {len(pairs)}", order)
    print_table(table, out)


def print_sources(figures: Sequence[Published], out: Console) -> None:
    """Print how far two sources differ in the same network on the same GPU."""
    table = table_of_numbers("network, GPU", ("one", "other", "ratio"), title="The same network and GPU, two sources")
    known: dict[tuple[str, str], Published] = {}
    for each in figures:
        first = known.setdefault((each.network, each.gpu), each)
        if first is not each:
            texts = (f"{first.ms:.1f}", f"{each.ms:.1f}", f"{each.ms / first.ms:.2f}")
            table.add_row(f"{each.network}, {each.gpu}", *texts)
    if table.row_count:
        print_table(table, out)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--gpu", "gpus", multiple=True, type=click.Choice(list(GPUS)), help="Only this GPU. [default: all]")
@click.option(
    "--precision",
    type=click.Choice(("float32", "float16")),
    default="float16",
    show_default=True,
    help="Precision of Romou's kernels.",
)
def main(names: tuple[str, ...], gpus: tuple[str, ...], precision: Precision) -> None:
    """Print the tables, of NAMES only or of all networks."""
    figures, out = published(names, gpus), Console()
    wanted: dict[str, dict[str, None]] = {}
    for each in figures:
        wanted.setdefault(each.network, {})[each.gpu] = None
    estimated = {
        (network, gpu): ms for network, own in wanted.items() for gpu, ms in estimates(network, own, precision).items()
    }
    print_figures(figures, estimated, out)
    print_sources(figures, out)


if __name__ == "__main__":
    main()
