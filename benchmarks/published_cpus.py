#!/usr/bin/env python3
"""Judges `romou check`'s word on whether a phone's GPU is worth it, by networks that others timed on CPU and GPU.

    python benchmarks/published_cpus.py
    python benchmarks/published_cpus.py resnet18 mobilenet_v2

Two rates of each CPU, of arithmetic and of operands' bytes, are fitted to its times. `romou.tools.inspection.worth` has
three of these CPUs. Which side was faster is not fitted. No device is needed.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
import numpy as np
from rich.console import Console
from scipy import optimize

from published_networks import layers_of, sum_ms
from romou.tools.inspection.check_report import CheckedLayer
from romou.tools.inspection.worth import FASTER, SLOWER, UNKNOWN, PhoneCpu, verdict
from romou.tools.report.table import print_table, table_of_numbers

DATA = Path(__file__).parent / "data" / "published_cpus.csv"
# Source, system on a chip, threads.
Group: TypeAlias = tuple[str, str, int]
# Whose rates TNN's CPUs have, so that no verdict on its pairs has seen their times.
_RATES_OF: dict[Group, Group] = {
    ("TNN", "Kirin 980", 1): ("ncnn", "Snapdragon 855+", 1),
    ("TNN", "Snapdragon 835", 1): ("ncnn", "Snapdragon 835", 1),
    ("TNN", "Snapdragon 845", 1): ("TNN", "Snapdragon 710", 1),
    ("TNN", "Snapdragon 710", 1): ("TNN", "Snapdragon 845", 1),
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A network's published times on a phone's CPU and on its GPU."""

    group: Group
    gpu: str
    network: str
    cpu_ms: float
    gpu_ms: float

    @property
    def word(self) -> str:
        """Return whether the GPU was "faster" or "slower"."""
        return FASTER if self.gpu_ms < self.cpu_ms else SLOWER


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A network by `romou check`: operations, bytes of operands in fp32, and GPU -> milliseconds."""

    flops: float
    fp32_bytes: float
    gpu_ms: Mapping[str, float]

    def cpu_ms(self, cpu: PhoneCpu) -> float:
        """Return the milliseconds on a CPU."""
        return cpu.ms(self.flops, self.fp32_bytes)


def pairs(names: Sequence[str] = ()) -> dict[Group, list[Pair]]:
    """Return the published pairs by their group, of some networks or of all if none is given."""
    groups: dict[Group, list[Pair]] = {}
    with DATA.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["network"] in (names or [row["network"]]):
                group = (row["source"], row["cpu"], int(row["threads"]))
                pair = Pair(group, row["gpu"], row["network"], float(row["cpu_ms"]), float(row["gpu_ms"]))
                groups.setdefault(group, []).append(pair)
    return groups


def estimated(groups: Mapping[Group, Sequence[Pair]]) -> dict[str, Estimate]:
    """Return network -> what `romou check` says of it on its pairs' GPUs."""
    gpus: dict[str, dict[str, None]] = {}
    for pair in (pair for group in groups.values() for pair in group):
        gpus.setdefault(pair.network, {})[pair.gpu] = None
    return {network: estimate(layers_of(network, own, "float16")) for network, own in gpus.items()}


def estimate(layers: Mapping[str, Sequence[CheckedLayer]], float_bytes: int = 2) -> Estimate:
    """Return an estimate from GPU -> layers, whose floats have `float_bytes`."""
    first = next(iter(layers.values()))
    flops = sum(layer.calls * layer.flops for layer in first)
    moved = sum(layer.calls * layer.bytes for layer in first) * 4 / float_bytes
    return Estimate(flops, moved, {gpu: sum_ms(of_gpu) for gpu, of_gpu in layers.items()})


def fitted(name: str, times: Mapping[str, float], known: Mapping[str, Estimate]) -> PhoneCpu:
    """Return a CPU with the two rates that are nearest to the networks' milliseconds, by the squares of logarithms."""

    def cpu(logarithms: np.ndarray) -> PhoneCpu:
        gflops, gbps = np.exp(logarithms)
        return PhoneCpu(name, float(gflops), float(gbps))

    def off(logarithms: np.ndarray) -> float:
        return float(np.mean([np.log(known[each].cpu_ms(cpu(logarithms)) / ms) ** 2 for each, ms in times.items()]))

    return cpu(optimize.minimize(off, (3.0, 2.0), method="Nelder-Mead").x)


def judgement(estimate: Estimate, gpu: str, cpu: PhoneCpu, was: str) -> str:
    """Return whether the estimates' verdict on a GPU that was "faster" or "slower" is "right", "wrong" or "unknown"."""
    said = verdict(estimate.gpu_ms[gpu], estimate.cpu_ms(cpu))
    return UNKNOWN if said == UNKNOWN else "right" if said == was else "wrong"


def print_tables(groups: Mapping[Group, Sequence[Pair]], known: Mapping[str, Estimate], out: Console) -> None:
    """Print the fitted rates of each group's CPU, and how often its verdicts are right."""
    cpus = {
        group: fitted(", ".join(map(str, group)), {pair.network: pair.cpu_ms for pair in own}, known)
        for group, own in groups.items()
    }
    columns = ("networks", "GFLOPS", "GB/s", "least", "most", "right", "wrong", "unknown")
    table = table_of_numbers("source, CPU, threads", columns, title="Rates, fitted over published time, and verdicts")
    total: Counter[str] = Counter()
    for group, own in groups.items():
        cpu = cpus[group]
        off = [known[pair.network].cpu_ms(cpu) / pair.cpu_ms for pair in own]
        judge = cpus.get(_RATES_OF.get(group, group), cpu)
        said = Counter(judgement(known[pair.network], pair.gpu, judge, pair.word) for pair in own)
        total += said
        rates = (f"{cpu.gflops:.1f}", f"{cpu.gbps:.1f}", f"{min(off):.2f}", f"{max(off):.2f}")
        table.add_row(cpu.name, str(len(own)), *rates, *(str(said[each]) for each in columns[-3:]))
    table.add_row("all", str(total.total()), "", "", "", "", *(str(total[each]) for each in columns[-3:]))
    print_table(table, out)


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Print the table, of NAMES only or of all networks."""
    groups = pairs(names)
    print_tables(groups, estimated(groups), Console())


if __name__ == "__main__":
    main()
