"""The lists of operators in scripts/data, as workloads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from romou.schedules.workload import BatchMatmul, Conv2d
from romou.tasks.operators import conv, conv_transpose, matmul

DATA = Path(__file__).parent / "data"


def conv43(dtype: str = "float32") -> list[Conv2d]:
    """The 43 convolutions of scripts/data/conv43.csv."""
    with (DATA / "conv43.csv").open(encoding="utf-8") as file:
        return [_square({key: int(value) for key, value in row.items()}, dtype) for row in csv.DictReader(file)]


def paper_operators() -> list[Conv2d]:
    """The operators of scripts/data/paper_ops.csv."""
    with (DATA / "paper_ops.csv").open(encoding="utf-8") as file:
        return [_of_row({key: int(value) for key, value in row.items() if key not in ("op", "models")}) for row in csv.DictReader(file)]


def attention() -> list[BatchMatmul]:
    """Q K^T and P V with heads where the layers before and after have them: BERT-base, ViT-B/16, one token of a decoder; and a plain product."""
    scores: dict[str, Any] = {"lhs_axes": (0, 2, 1, 3), "rhs_axes": (0, 2, 3, 1)}
    mix: dict[str, Any] = {"rhs_axes": (0, 2, 1, 3), "out_axes": (0, 2, 1, 3)}
    return [
        *(matmul((1, 12), m, 64, n, **scores) for m, n in ((128, 128), (197, 197), (1, 512))),
        *(matmul((1, 12), m, k, 64, **mix) for m, k in ((128, 128), (197, 197), (1, 512))),
        matmul((), 512, 512, 512),
    ]


def transposed_convolutions() -> list[Conv2d]:
    """Return transposed convolutions of DCGAN, U-Net, an encoder's mirror, and a bilinear enlargement channel by channel."""
    return [
        conv_transpose(256, (16, 16), 128, (4, 4), stride=(2, 2), padding=(1, 1, 1, 1)),
        conv_transpose(128, (28, 28), 64, (2, 2), stride=(2, 2)),
        conv_transpose(64, (28, 28), 32, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1), output_padding=(1, 1)),
        conv_transpose(21, (17, 17), 21, (4, 4), stride=(2, 2), padding=(1, 1, 1, 1), groups=21),
    ]


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
