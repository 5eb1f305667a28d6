#!/usr/bin/env python3
"""Compares kernels that take a size at run time with static kernels of that size.

    python benchmarks/bench_run_time_sizes.py --backend cuda                  a product and an attention of up to 512 rows
    python benchmarks/bench_run_time_sizes.py --backend cuda --classes 32,64,128,256,512
    python benchmarks/bench_run_time_sizes.py --backend opencl --most 128 --sizes 16,100 --width 64 --rounds 3

Both are compiled for the same device: the run-time kernels once, at the bound, the static kernels for each size, with
default configs. With --classes, there are run-time kernels for each class of sizes up to a bound. With --trials all are
tuned, which gives the same ratio if the fastest config of a size is the bound's.
A time is the sum of a run's kernels by the device's clock. Static and run-time kernels are timed alternately. The ratio
is the median of those of the pairs.
"""  # noqa: E501

from __future__ import annotations

import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

import romou

ROWS = "rows"
HEADS = 8


def product(width: int) -> onnx.ModelProto:
    """Return a product of `rows` with a square weight, and a bias."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((width, width)), "b": rng.standard_normal(width)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    return _model(nodes, {"x": [ROWS, width]}, [ROWS, width], weights)


def attention(width: int) -> onnx.ModelProto:
    """Return softmax(Q K^T / 8) V of eight heads, each of an eighth of the width."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["m"]),
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    shape = [HEADS, ROWS, width // HEADS]
    return _model(nodes, dict.fromkeys("qkv", shape), shape, {"c": np.array(0.125)})


def _model(
    nodes: list[Any], inputs: dict[str, list[Any]], output: list[Any], weights: dict[str, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [onnx.numpy_helper.from_array(np.asarray(value, "float32"), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def made(proto: onnx.ModelProto, rows: int | list[range], target: str, precision: str, trials: int) -> romou.TunedModel:
    """Return the model with default configs, or tuned ones."""
    options: dict[str, Any] = {"dims": {ROWS: rows}, "target": target, "precision": precision}
    return romou.tune(proto, trials=trials, **options) if trials else romou.compile(proto, verify=False, **options)


def inputs_of(model: romou.TunedModel, rows: int) -> dict[str, np.ndarray]:
    """Return random inputs of that many rows."""
    rng = np.random.default_rng(rows)
    axis = 1 if "q" in model.inputs else 0
    shapes = {name: (*shape[:axis], rows, *shape[axis + 1 :]) for name, (shape, _) in model.inputs.items()}
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def compared(static: romou.TunedModel, free: romou.TunedModel, rows: int, rounds: int, repeat: int) -> dict[str, Any]:
    """Return times of both models in ms and their ratio. RuntimeError if their outputs differ."""
    inputs = inputs_of(static, rows)
    right, mine = static.run(inputs)[0], free.run(inputs)[0]
    error = float(np.linalg.norm(mine - right) / np.linalg.norm(right))
    if not error < 1e-2:
        raise RuntimeError(f"with {rows} rows the outputs differ by {error:.1e}")
    pairs = [
        tuple(sum(call.ms for call in model.profile(inputs, repeat=repeat).calls) for model in (static, free))
        for _ in range(rounds)
    ]
    return {
        "rows": rows,
        "kernels": len(static.profile(inputs, repeat=1).calls),
        "static_ms": statistics.median(one for one, _ in pairs),
        "run_time_ms": statistics.median(two for _, two in pairs),
        "ratio": statistics.median(two / one for one, two in pairs),
        "error": error,
    }


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--backend", "target", default="cuda", show_default=True, help="a target: cuda, opencl, vulkan")
@click.option("--most", default=512, show_default=True, help="bound of the size")
@click.option("--classes", default="", help="bounds of classes of sizes, 32,128,512  [default: one, --most]")
@click.option("--sizes", default="16,64,100,200,256,384,500,512", show_default=True)
@click.option("--width", default=1024, show_default=True, help="columns of the product, and of all heads together")
@click.option("--precision", default="float32", show_default=True)
@click.option("--trials", default=0, show_default=True, help="candidates for each kernel; 0: default configs")
@click.option("--rounds", default=11, show_default=True, help="pairs of measurements")
@click.option("--repeat", default=10, show_default=True, help="launches of each kernel in a measurement")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path))
def main(
    target: str,
    most: int,
    classes: str,
    sizes: str,
    width: int,
    precision: str,
    trials: int,
    rounds: int,
    repeat: int,
    output: Path | None,
) -> None:
    results = []
    bounds = [int(bound) for bound in (classes or str(most)).split(",")]
    ranges = [range(low + 1, high + 1) for low, high in itertools.pairwise((0, *bounds))]
    for name, proto in (("product", product(width)), ("attention", attention(width))):
        started = time.monotonic()
        free = made(proto, ranges, target, precision, trials)
        click.echo(f"{name}: {len(ranges)} classes in {time.monotonic() - started:.1f} s", err=True)
        click.echo(f"{name}: {free.summary().run_time}", err=True)
        for rows in map(int, sizes.split(",")):
            static = made(proto, rows, target, precision, trials)
            results.append({"operator": name, **compared(static, free, rows, rounds, repeat)})
            static.release()
        free.release()
    title = f"{target}: run-time sizes up to {', '.join(map(str, bounds))} against static kernels"
    table = Table(title=title, title_justify="left")
    columns = ("operator", "rows", "kernels", "static ms", "run-time ms", "ratio")
    for column in columns:
        table.add_column(column, justify="left" if column == "operator" else "right")
    for each in results:
        cells = (f"{each['static_ms']:.4f}", f"{each['run_time_ms']:.4f}", f"{each['ratio']:.2f}")
        table.add_row(each["operator"], str(each["rows"]), str(each["kernels"]), *cells)
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
