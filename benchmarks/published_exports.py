#!/usr/bin/env python3
"""Judges `romou check`'s word on whether a phone's GPU is worth it by which models an app library gave to the GPU.

    python benchmarks/published_exports.py                     43 models; needs torch, torchvision and ultralytics
    python benchmarks/published_exports.py blazeface style     these need none of them

React Native ExecuTorch measured 49 models for Vulkan on two phones, made the GPU the default for 44, and left the CPU
(XNNPACK) the default for five (pull request 1479 of software-mansion/react-native-executorch, 2026-09-18). The CPU's
two rates in fp32 are fitted to the times of a Pixel 10 that its documentation has; int8 and the two phones' CPUs differ
from it as they do in the models with times of both (comments of 2026-09-09 and 2026-09-22 on its pull request 1363).
Which side was faster is not fitted. Not judged, because no package has their graphs: RF-DETR (3), SDXS, MediaPipe's
selfie segmentation (2, given to the CPU). No device is needed.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean
from typing import Any, Literal

import click
import numpy as np
import onnx
from rich.console import Console

from classifiers import Graph
from published_cpus import Estimate, estimate, fitted, judgement
from published_networks import Precision, layers_of_graph
from romou.tools.inspection.worth import FASTER, SLOWER, PhoneCpu
from romou.tools.report.table import print_table, table_of_numbers

Type = Literal["fp32", "int8"]
TYPES: tuple[Type, ...] = ("fp32", "int8")
ADRENO, MALI = "Adreno 840", "Mali-G77 MP11"
# Milliseconds of XNNPACK on a Pixel 10: (model, type of its arithmetic) -> milliseconds.
PIXEL_10: dict[tuple[str, Type], float] = {
    ("efficientnet_v2_s", "fp32"): 100,
    ("efficientnet_v2_s", "int8"): 38,
    ("ssdlite320", "fp32"): 18,
    ("yolo26n_512", "fp32"): 38,
    ("yolo26s_512", "fp32"): 72,
    ("yolo26m_512", "fp32"): 177,
    ("yolo26l_512", "fp32"): 216,
    ("yolo26x_512", "fp32"): 434,
    ("style", "fp32"): 1025,
    ("style", "int8"): 430,
}
# The same on the phones with the two GPUs: Galaxy S26 Ultra, Galaxy S20+.
PHONES: dict[str, dict[tuple[str, Type], float]] = {
    ADRENO: {("efficientnet_v2_s", "fp32"): 73.94, ("efficientnet_v2_s", "int8"): 53.47},
    MALI: {
        ("efficientnet_v2_s", "fp32"): 286.22,
        ("efficientnet_v2_s", "int8"): 188.14,
        ("style", "int8"): 797.98,
    },
}


@dataclass(frozen=True)
class Export:
    """A model that was measured on the GPU.

    group: models of one family, which are printed together.
    graph: makes it, with any weights.
    count: exports that share the graph.
    cpu: the type of the CPU's export that the GPU's would replace.
    slower: GPUs on which it was said to be slower than the CPU. It is faster on all others that were measured.
    gpus: those with a word on it.
    """

    group: str
    graph: Callable[[], onnx.ModelProto]
    count: int = 1
    cpu: Type = "fp32"
    gpu: Precision = "float16"
    slower: tuple[str, ...] = ()
    gpus: tuple[str, ...] = (ADRENO, MALI)


def _exported(network: Any, side: int) -> onnx.ModelProto:
    """Return a PyTorch module for pictures of side x side as an ONNX graph."""
    import torch

    file = io.BytesIO()
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(network.eval(), (torch.zeros(1, 3, side, side),), file, opset_version=17, dynamo=False)
    return onnx.load_from_string(file.getvalue())


def _style() -> onnx.ModelProto:
    """Fast style transfer (Johnson et al. 2016): three convolutions, five residual blocks, two enlargements."""
    g = Graph(640)

    def normed(x: str, channels: int, window: int, stride: int = 1, then: str = "Relu") -> str:
        side = window // 2
        padded = g.add("Pad", x, g.constant(np.array([0, 0, side, side] * 2, np.int64)), mode="reflect")
        y = g.conv(padded, channels, window, stride, then="", pads=False)
        y = g.add("InstanceNormalization", y, g.weight(channels), g.weight(channels))
        return g.add(then, y) if then else y

    x = normed(normed(normed("image", 32, 9), 64, 3, 2), 128, 3, 2)
    for _ in range(5):
        x = g.add("Add", x, normed(normed(x, 128, 3), 128, 3, then=""))
    for channels in (64, 32):
        scales = g.constant(np.array([1, 1, 2, 2], np.float32))
        x = normed(g.add("Resize", x, "", scales, mode="nearest"), channels, 3)
    return g.model(normed(x, 3, 9, then=""), (1, 3, 640, 640))


def _blazeface() -> onnx.ModelProto:
    """BlazeFace (Bazarevsky et al. 2019), table 4: windows of 5, residuals, two heads."""
    g = Graph(128)

    def block(x: str, outputs: int, inner: int = 0, stride: int = 1) -> str:
        y = g.conv(g.depthwise(x, 5, stride, then=""), inner or outputs, then="Relu" if inner else "")
        if inner:
            y = g.conv(g.depthwise(y, 5, then=""), outputs, then="")
        x = x if stride == 1 else g.pool(x, 2, 2, pads=False)
        x = x if g.channels[x] == outputs else g.conv(x, outputs, then="")
        return g.add("Relu", g.add("Add", x, y))

    x = block(block(g.conv("image", 24, 5, 2), 24), 24)
    x = block(block(block(x, 48, stride=2), 48), 48)
    first = block(block(block(x, 96, 24, 2), 96, 24), 96, 24)
    last = block(block(block(first, 96, 24, 2), 96, 24), 96, 24)
    heads = [g.conv(first, 2 * 17, then=""), g.conv(last, 6 * 17, then="")]
    return g.model(g.concat(*(g.add("Flatten", head) for head in heads)), (1, 34 * 16 * 16 + 102 * 8 * 8))


def _efficientnet() -> onnx.ModelProto:
    from torchvision.models import efficientnet_v2_s

    return _exported(efficientnet_v2_s(weights=None), 384)


def _lraspp() -> onnx.ModelProto:
    import torch
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)["out"]

    return _exported(Logits(), 520)


def _ssdlite() -> onnx.ModelProto:
    import torch
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(self.network.head(list(self.network.backbone(x).values())).values())

    return _exported(Heads(), 320)


def _yolo(definition: str, side: int) -> onnx.ModelProto:
    from ultralytics import YOLO

    network = YOLO(f"{definition}.yaml").model.fuse(verbose=False)
    for part in network.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "onnx"
    return _exported(network, side)


def _yolos(kind: str, sizes: str) -> Iterator[tuple[str, Export]]:
    for size in sizes:
        for side in (384, 512, 640):
            name = f"yolo26{size}{kind}"
            yield f"{name}_{side}", Export("YOLO26", lambda name=name, side=side: _yolo(name, side))  # type: ignore[misc]


EXPORTS: dict[str, Export] = {
    "style": Export("style transfer", _style, count=4, cpu="int8"),
    **dict(_yolos("", "nsmlx")),
    **dict(_yolos("-seg", "nsmlx")),
    **dict(_yolos("-pose", "n")),
    "fastsam_s": Export("FastSAM", lambda: _yolo("yolov8s-seg", 640)),
    "fastsam_x": Export("FastSAM", lambda: _yolo("yolov8x-seg", 640)),
    "blazeface": Export("BlazeFace", _blazeface),
    "efficientnet_v2_s": Export(
        "EfficientNetV2-S", _efficientnet, cpu="int8", gpu="float32", slower=(ADRENO,), gpus=(ADRENO,)
    ),
    "lraspp": Export("LR-ASPP", _lraspp, cpu="int8", slower=(ADRENO,), gpus=(ADRENO,)),
    "ssdlite320": Export("SSDLite320", _ssdlite, slower=(ADRENO, MALI)),
}


def estimates(names: tuple[str, ...]) -> dict[str, Estimate]:
    """Return what `romou check` says of each export on both GPUs."""
    found = {}
    for name in names:
        export = EXPORTS[name]
        layers = layers_of_graph(export.graph(), (ADRENO, MALI), export.gpu)
        found[name] = estimate(layers, float_bytes=4 if export.gpu == "float32" else 2)
    return found


def cpus(known: Mapping[str, Estimate]) -> dict[tuple[str, Type], PhoneCpu]:
    """Return (GPU, type) -> the CPU beside it, with rates fitted to the Pixel 10's times, scaled to type and phone."""
    pixel = {name: ms for (name, each), ms in PIXEL_10.items() if each == "fp32" and name in known}
    cpu = fitted("Pixel 10", pixel, known)
    made: dict[tuple[str, Type], PhoneCpu] = {}
    for gpu, times in PHONES.items():
        for of_type in TYPES:
            both = [ms / PIXEL_10[key] for key, ms in times.items() if key[1] == of_type]
            int8 = [ms / PIXEL_10[name, "fp32"] for (name, each), ms in PIXEL_10.items() if each == of_type]
            factor = geometric_mean(both) * (geometric_mean(int8) if of_type == "int8" else 1.0)
            made[gpu, of_type] = PhoneCpu(f"{gpu}, {of_type}", cpu.gflops / factor, cpu.gbps / factor)
    return made


def print_tables(known: Mapping[str, Estimate], out: Console) -> None:
    """Print the rates of each CPU, and how often the verdicts are right."""
    phones = cpus(known)
    rates = table_of_numbers("CPU beside", ("GFLOPS", "GB/s"), title="Rates of XNNPACK, fitted and scaled")
    for cpu in phones.values():
        rates.add_row(cpu.name, f"{cpu.gflops:.0f}", f"{cpu.gbps:.1f}")
    print_table(rates, out)
    columns = ("exports", "was", "CPU / GPU", "right", "wrong", "unknown")
    table = table_of_numbers("models, GPU", columns, title="Verdicts on exports")
    total: Counter[str] = Counter()
    for gpu in (ADRENO, MALI):
        for group, own in groupby((name for name in known if gpu in EXPORTS[name].gpus), lambda n: EXPORTS[n].group):
            said: Counter[str] = Counter()
            ratios = []
            for name in own:
                export, of = EXPORTS[name], known[name]
                cpu, was = phones[gpu, export.cpu], SLOWER if gpu in export.slower else FASTER
                said[judgement(of, gpu, cpu, was)] += export.count
                ratios.append(of.cpu_ms(cpu) / of.gpu_ms[gpu])
            total += said
            span = f"{min(ratios):.1f}" if len(ratios) == 1 else f"{min(ratios):.1f} to {max(ratios):.1f}"
            table.add_row(f"{group}, {gpu}", str(said.total()), was, span, *(str(said[each]) for each in columns[-3:]))
    table.add_row("all", str(total.total()), "", "", *(str(total[each]) for each in columns[-3:]))
    print_table(table, out)


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Print the tables, of NAMES only or of all exports."""
    print_tables(estimates(names or tuple(EXPORTS)), Console())


if __name__ == "__main__":
    main()
