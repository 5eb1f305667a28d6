"""The lists of operators in scripts/data, as workloads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from romou.schedules.workload import Conv2d

from romou.operators import conv

DATA = Path(__file__).parent / "data"


def conv43(dtype: str = "float32") -> list[Conv2d]:
    """The 43 convolutions of scripts/data/conv43.csv."""
    with (DATA / "conv43.csv").open(encoding="utf-8") as file:
        return [_square({key: int(value) for key, value in row.items()}, dtype) for row in csv.DictReader(file)]


def paper_operators() -> list[Conv2d]:
    """The operators of scripts/data/paper_ops.csv."""
    with (DATA / "paper_ops.csv").open(encoding="utf-8") as file:
        return [_of_row({key: int(value) for key, value in row.items() if key not in ("op", "models")}) for row in csv.DictReader(file)]


def _square(n: Mapping[str, int], dtype: str) -> Conv2d:
    work = conv(
        n["in_channels"],
        (n["in_hw"],) * 2,
        n["out_channels"],
        (n["kernel"],) * 2,
        dtype,
        stride=(n["stride"],) * 2,
        padding=(n["pad"],) * 4,
        batch=n["batch"],
    )
    assert work.out_hw == (n["out_hw"],) * 2, f"{work.name}: the list says {n['out_hw']} output pixels"
    assert work.flops == n["flops"], f"{work.name}: the list says {n['flops']} operations"
    return work


def _of_row(n: Mapping[str, int]) -> Conv2d:
    return conv(
        n["in_channels"],
        (n["in_h"], n["in_w"]),
        n["out_channels"],
        (n["kernel_h"], n["kernel_w"]),
        stride=(n["stride"],) * 2,
        padding=(n["pad_top"], n["pad_left"], n["pad_bottom"], n["pad_right"]),
        groups=n["groups"],
    )
