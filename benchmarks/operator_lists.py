"""Lists of operators, mainly those of benchmarks/data.

`romou.compiler.typical` has the typical operators of each family.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from romou import models
from romou.compiler.operators.families.batch_matmul import BatchMatmul, matmul
from romou.compiler.operators.families.conv2d_transpose import Conv2dTranspose
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.compiler.single_operator import conv

DATA = Path(__file__).parent / "data"


def conv43(dtype: str = "float32") -> list[Conv2d]:
    """Return the 43 convolutions of benchmarks/data/conv43.csv."""
    with (DATA / "conv43.csv").open(encoding="utf-8") as file:
        return [_square({key: int(value) for key, value in row.items()}, dtype) for row in csv.DictReader(file)]


BATCHES = (1, 5, 20)


def boda_layers(dtype: str = "float32", *, has_fully_connected: bool = False) -> list[Conv2d]:
    """Return the distinct convolutions of AlexNet, NiN and GoogLeNet at batch 1, 5 and 20, which Boda-RTC times.

    The paper counts about 180; benchmarks/data/boda_layers.csv has 61 of each batch, and four fully connected layers,
    written as convolutions. With these, the layers of batch 5 with more than 1e8 operations are `conv43`.
    """
    with (DATA / "boda_layers.csv").open(encoding="utf-8") as file:
        rows = [{key: int(value) for key, value in row.items() if key != "networks"} for row in csv.DictReader(file)]
    rows = [row for row in rows if has_fully_connected or not row["is_fully_connected"]]
    return [_square({**row, "batch": batch}, dtype) for batch in BATCHES for row in rows]


def alexnet(batch: int, dtype: str = "float32") -> list[Conv2d]:
    """Return the five convolutions of AlexNet, without the two towers."""
    # (input channels, side, output channels, kernel, stride, padding)
    layers = (
        (3, 224, 96, 11, 4, 2),
        (96, 27, 256, 5, 1, 2),
        (256, 13, 384, 3, 1, 1),
        (384, 13, 384, 3, 1, 1),
        (384, 13, 256, 3, 1, 1),
    )
    return [
        conv(c, (side,) * 2, k, (r,) * 2, dtype, stride=(s,) * 2, padding=(p,) * 4, batch=batch)
        for c, side, k, r, s, p in layers
    ]


def square_products(dtype: str = "float32") -> list[Dense]:
    """Return square matrix products of the sizes of Boda's paper."""
    return [Dense(m=size, k=size, n=size, dtype=dtype) for size in (128, 256, 384, 512, 768, 1024, 1536, 2048)]


def paper_operators(dtype: str = "float32", file: str = "paper_ops.csv") -> list[Conv2d]:
    """Return the operators of benchmarks/data/paper_ops.csv, or of paper_ops_sample.csv."""
    with (DATA / file).open(encoding="utf-8") as rows:
        return [conv_of_row(row, dtype) for row in csv.DictReader(rows)]


CATEGORIES = ("1x1", "3x3", "depthwise", "other", "fully connected")
NETWORKS = ("squeezenet1_0", "mobilenetv1_100", "resnet18", "inception_v3")


def category(work: Conv2d) -> str:
    """Return the operator's category in the Romou paper (section 5.2), one of `CATEGORIES`."""
    if work.groups > 1:
        return "depthwise"
    if work.in_hw == (1, 1):
        return "fully connected"
    return {(1, 1): "1x1", (3, 3): "3x3"}.get(work.kernel, "other")


@functools.cache
def convolutions_of(network: str) -> tuple[Conv2d, ...]:
    """Return the convolutions of a bundled network, in order of execution (Romou paper, figure 14)."""
    # Shapes need no weights, which `models.load` would draw.
    graph = onnx.shape_inference.infer_shapes(onnx.load(str(Path(models.__file__).parent / f"{network}.onnx"))).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
    }
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    works = []
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        (_, channels, *size), (outputs, _, *kernel) = shapes[node.input[0]], weights[node.input[1]]
        how: dict[str, Any] = {
            "stride": tuple(attributes.get("strides", (1, 1))),
            "padding": tuple(attributes.get("pads", (0, 0, 0, 0))),
            "groups": attributes.get("group", 1),
        }
        works.append(conv(channels, tuple(size), outputs, tuple(kernel), **how))
    return tuple(works)


def attention() -> list[BatchMatmul]:
    """Return Q K^T and P V with heads in the axes of the layers around them.

    The layers are of BERT-base, ViT-B/16, and one token of a decoder. The last operator is a plain product.
    """
    scores: dict[str, Any] = {"lhs_axes": (0, 2, 1, 3), "rhs_axes": (0, 2, 3, 1)}
    mix: dict[str, Any] = {"rhs_axes": (0, 2, 1, 3), "out_axes": (0, 2, 1, 3)}
    return [
        *(matmul((1, 12), m, 64, n, **scores) for m, n in ((128, 128), (197, 197), (1, 512))),
        *(matmul((1, 12), m, k, 64, **mix) for m, k in ((128, 128), (197, 197), (1, 512))),
        matmul((), 512, 512, 512),
    ]


def transposed_convolutions() -> list[Conv2dTranspose]:
    """Return transposed convolutions of DCGAN, U-Net, an encoder's mirror and an enlargement.

    The enlargement is bilinear and works channel by channel.
    """
    two: dict[str, Any] = {"stride": (2, 2)}
    return [
        Conv2dTranspose(in_channels=256, in_hw=(16, 16), out_channels=128, kernel=(4, 4), padding=(1, 1, 1, 1), **two),
        Conv2dTranspose(in_channels=128, in_hw=(28, 28), out_channels=64, kernel=(2, 2), **two),
        Conv2dTranspose(
            in_channels=64,
            in_hw=(28, 28),
            out_channels=32,
            kernel=(3, 3),
            padding=(1, 1, 1, 1),
            output_padding=(1, 1),
            **two,
        ),
        Conv2dTranspose(
            in_channels=21, in_hw=(17, 17), out_channels=21, kernel=(4, 4), padding=(1, 1, 1, 1), groups=21, **two
        ),
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
    assert work.flops == n.get("flops", work.flops), f"{work.name}: the list says {n['flops']} operations"
    return work


def conv_of_row(row: Mapping[str, str], dtype: str = "float32") -> Conv2d:
    """Return the operator of a row of paper_ops.csv."""
    n = {key: int(value) for key, value in row.items() if key not in ("op", "models")}
    return conv(
        n["in_channels"],
        (n["in_h"], n["in_w"]),
        n["out_channels"],
        (n["kernel_h"], n["kernel_w"]),
        dtype,
        stride=(n["stride"],) * 2,
        padding=(n["pad_top"], n["pad_left"], n["pad_bottom"], n["pad_right"]),
        groups=n["groups"],
    )
