#!/usr/bin/env python3
"""Times an encoder with linear layers of 8-bit integers against onnxruntime, run alternately on the same cores.

    python benchmarks/bench_integer_products.py
    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python benchmarks/bench_integer_products.py --trials 64

onnxruntime.quantization makes the model: DynamicQuantizeLinear, MatMulInteger, Cast, Mul. onnxruntime's own sums of bytes
are timed twice: as it is set up by default, where sums of two products saturate at 16 bits on some CPUs, and exact.
"""  # noqa: E501

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import romou
from romou.tools.report.table import table_of_numbers

# Columns of the weights of a layer: (inputs, outputs) as multiples of the width, and the activation.
LAYERS = ((1, 1, "Relu"), (1, 1, ""), (1, 4, "Gelu"), (4, 1, ""))


def encoder(rows: int, width: int, layers: int) -> onnx.ModelProto:
    """Return linear layers of random weights, in fp32."""
    rng, nodes, constants, last = np.random.default_rng(0), [], [], "x"
    for index, (inputs, outputs, activation) in enumerate(LAYERS * layers):
        weight = rng.standard_normal((inputs * width, outputs * width)) / np.sqrt(inputs * width)
        constants.append(numpy_helper.from_array(weight.astype("float32"), f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"y{index}"], name=f"linear{index}"))
        last = f"y{index}"
        if activation:
            nodes.append(helper.make_node(activation, [last], [last := f"a{index}"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width]) for name in ("x", last))
    graph = helper.make_graph(nodes, "encoder", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with weights of 8 bits, one scale for each output."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # advice for float models, on each call
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8)
        logging.disable(logging.NOTSET)
        return onnx.load(path)


def session(model: onnx.ModelProto, *, is_exact: bool) -> Any:
    """Return a session of onnxruntime whose threads do not spin while another runtime is timed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", str(int(is_exact)))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compared(ways: Mapping[str, Callable[[], object]], repeat: int, title: str) -> None:
    """Print what ways to run a model take, in turns, beside "Romou"."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run(), run()
    for _ in range(repeat):
        for name, run in ways.items():
            begun = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begun))
    table = table_of_numbers("runtime", ("ms", "least ms", "Romou's time / its time"), title=title)
    for name, each in times.items():
        ratio = statistics.median(own / other for own, other in zip(times["Romou"], each, strict=True))
        table.add_row(name, f"{statistics.median(each):.1f}", f"{min(each):.1f}", f"{ratio:.2f}")
    Console().print(table)


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--target", default="opencl", show_default=True)
@click.option("--rows", default=128, show_default=True, help="rows of activations")
@click.option("--width", default=512, show_default=True, help="columns of activations")
@click.option("--layers", default=2, show_default=True)
@click.option("--trials", default=0, show_default=True, help="candidates of a search; 0: default schedules")
@click.option("--repeat", default=41, show_default=True, help="runs of each; their median counts")
def main(target: str, rows: int, width: int, layers: int, trials: int, repeat: int) -> None:
    plain = encoder(rows, width, layers)
    model = quantized(plain)
    given: Any = {"target": target}
    tuned: Any = romou.tune(model, trials=trials, **given) if trials else romou.compile(model, **given)
    exact, fast, floats = session(model, is_exact=True), session(model, is_exact=False), session(plain, is_exact=True)
    inputs = {"x": np.random.default_rng(1).standard_normal((rows, width)).astype("float32")}
    ways: dict[str, Callable[[], object]] = {
        "Romou": lambda: tuned.run(inputs),
        "onnxruntime, exact": lambda: exact.run(None, inputs),
        "onnxruntime, default": lambda: fast.run(None, inputs),
        "onnxruntime, fp32 model": lambda: floats.run(None, inputs),
    }
    compared(ways, repeat, f"{layers} layers, {rows} x {width}")


if __name__ == "__main__":
    main()
