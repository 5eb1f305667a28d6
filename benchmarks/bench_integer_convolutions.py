#!/usr/bin/env python3
"""Times a CNN with 8-bit weights and activations against its fp32 self and onnxruntime, alternately on the same cores.

    python benchmarks/bench_integer_convolutions.py
    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python benchmarks/bench_integer_convolutions.py --trials 64

onnxruntime.quantization makes the model: pairs of QuantizeLinear and DequantizeLinear around each operator. The network
is like MobileNet: depthwise and pointwise convolutions, with residuals.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import romou
from bench_integer_products import compared, session

WIDTHS = (32, 64, 128, 128, 256, 256, 512, 512)


class _Network:
    """A network of random weights, built node by node."""

    def __init__(self) -> None:
        self.rng, self.last, self.channels = np.random.default_rng(0), "x", 3
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, shape: Sequence[int], factor: float) -> str:
        values = (self.rng.standard_normal(shape) * factor).astype("float32")
        self.constants.append(numpy_helper.from_array(values, f"w{len(self.constants)}"))
        return self.constants[-1].name

    def add(self, operator: str, *more: str, **attributes: Any) -> None:
        output = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [self.last, *more], [output], name=output, **attributes))
        self.last = output

    def convolution(self, outputs: int, window: int, stride: int = 1, groups: int = 1) -> None:
        shape = outputs, self.channels // groups, window, window
        reads = self.constant(shape, 1.4 * np.prod(shape[1:]) ** -0.5), self.constant(shape[:1], 0.1)
        self.add("Conv", *reads, pads=[window // 2] * 4, strides=[stride] * 2, group=groups)
        self.channels = outputs


def network(size: int, widths: Sequence[int]) -> onnx.ModelProto:
    """Return a classifier of images in fp32. Where the width changes, the image is halved, else there is a residual."""
    net = _Network()
    net.convolution(widths[0], 3, 2)
    net.add("Relu")
    for width in widths[1:]:
        before, has_residual = net.last, width == net.channels
        net.convolution(net.channels, 3, 1 if has_residual else 2, net.channels)
        net.add("Relu")
        net.convolution(width, 1)
        if has_residual:
            net.add("Add", before)
        net.add("Relu")
    net.add("GlobalAveragePool")
    net.add("Flatten")
    net.add("Gemm", net.constant((net.channels, 10), net.channels**-0.5), net.constant((10,), 0.1))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, size, size]), (net.last, [1, 10]))
    ]
    graph = helper.make_graph(net.nodes, "classifier", values[:1], values[1:], net.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized(model: onnx.ModelProto, size: int, **given: Any) -> onnx.ModelProto:
    """Return the model with 8-bit weights and activations. given: options of onnxruntime's `quantize_static`."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self._images: Iterator[dict[str, np.ndarray]] = (images(size, seed) for seed in range(4))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._images, None)

    logging.disable(logging.WARNING)  # advice for float models, on each call
    with tempfile.TemporaryDirectory() as folder:
        source, goal = Path(folder) / "model.onnx", Path(folder) / "quantized.onnx"
        onnx.save(model, source)
        quantize_static(source, goal, Images(), **{"quant_format": QuantFormat.QDQ, "per_channel": True, **given})
        logging.disable(logging.NOTSET)
        return onnx.load(goal)


def images(size: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, size, size)).astype("float32")}


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--target", default="opencl", show_default=True)
@click.option("--size", default=224, show_default=True, help="side of the image, in pixels")
@click.option("--width", "widths", multiple=True, type=int, default=WIDTHS, help="channels of each block, in order")
@click.option("--trials", default=0, show_default=True, help="candidates of a search; 0: default schedules")
@click.option("--repeat", default=41, show_default=True, help="runs of each; their median counts")
def main(target: str, size: int, widths: tuple[int, ...], trials: int, repeat: int) -> None:
    plain = network(size, widths)
    model = quantized(plain, size)

    def compiled(proto: onnx.ModelProto) -> Any:
        given: Any = {"target": target}
        return romou.tune(proto, trials=trials, **given) if trials else romou.compile(proto, **given)

    integers, floats = compiled(model), compiled(plain)
    exact, peer = session(model, is_exact=True), session(plain, is_exact=True)
    inputs = images(size, 9)
    ways: dict[str, Callable[[], object]] = {
        "Romou": lambda: integers.run(inputs),
        "Romou, fp32 model": lambda: floats.run(inputs),
        "onnxruntime, exact": lambda: exact.run(None, inputs),
        "onnxruntime, fp32 model": lambda: peer.run(None, inputs),
    }
    compared(ways, repeat, f"{size} x {size}")


if __name__ == "__main__":
    main()
