"""Instructions of products with quantized weights under Mesa's compilers, of default configs. Nothing is executed.

python benchmarks/bench_quantized.py
python benchmarks/bench_quantized.py --gpu a630 --json result.json
python benchmarks/bench_quantized.py --norms          RMSNorm and the product that reads it, apart and as one kernel
python benchmarks/bench_quantized.py --norms --times opencl         the same, timed on a device
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console
from tvm import te, tirx, topi

import romou
from bench_mobile_static import Result, best_of, mark
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.families import family_of
from romou.compiler.operators.kernels.quantized.integer_kernel import DOT, FLOAT
from romou.compiler.operators.kernels.quantized.integer_matrix import IntegerProduct
from romou.compiler.operators.workload import Conv2d
from romou.compiler.scheduling.rewrites import join
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, mobile_gpu
from romou.devices.targets import Target
from romou.driver.model import tuned_model
from romou.driver.site import TimingSite
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.table import table_of_numbers
from tvm_patches.quantized_matrix import QuantizedProduct

COMPARED = ("a630", "a740", "g76", "g610")
# Name -> rows of activations, bits and block of a weight of 4096 x 4096. NF4 has a table of numbers.
PRODUCTS = {
    "int4, block 32, 1 row": (1, 4, 32),
    "int4, block 128, 1 row": (1, 4, 128),
    "int8, block 32, 1 row": (1, 8, 32),
    "int4, block 32, 4 rows": (4, 4, 32),
    "int4, block 32, 64 rows": (64, 4, 32),
    "nf4, block 64, 1 row": (1, 4, 64),
    "nf4, block 64, 64 rows": (64, 4, 64),
}
_SIDE = 4096
# Name -> rows of 8-bit activations, and how bytes are multiplied.
INTEGER_PRODUCTS = {
    f"8-bit integers, {rows} row{'s' * (rows > 1)}, {multiply}": (rows, multiply)
    for rows in (1, 64)
    for multiply in (DOT, FLOAT)
}
_SAME = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
_SHAPES: dict[str, dict[str, Any]] = {
    "1x1 256x28x28 -> 256": {"in_channels": 256, "in_hw": (28, 28), "out_channels": 256, "kernel": (1, 1)},
    "3x3 64x56x56 -> 64": {"in_channels": 64, "in_hw": (56, 56), "out_channels": 64, **_SAME},
    "depthwise 3x3 256x28x28": {"in_channels": 256, "in_hw": (28, 28), "out_channels": 256, "groups": 256, **_SAME},
}
_TYPES: dict[str, dict[str, Any]] = {
    # Integers in floats, so that no algorithm with transforms takes part.
    "floats": {},
    "weight of bytes": {"weight_type": "int8"},
    "both of bytes": {"weight_type": "int8", "data_type": "uint8", "data_zero": 128},
}
# Name -> a convolution of integers.
CONVOLUTIONS = {
    f"{shape}, {kind}": Conv2d(has_integers=True, **numbers, **types)
    for shape, numbers in _SHAPES.items()
    for kind, types in _TYPES.items()
}
NAMES = (*PRODUCTS, *INTEGER_PRODUCTS, *CONVOLUTIONS)
# K and N of products of one normalized row, in 4 bits and blocks of 32.
NORMALIZED = ((512, 1536), (896, 4864), (2048, 2048), (2048, 8192), (4096, 4096))
_ROUNDS, _EPSILON = 20, 1e-5


def counted(gpu: str, name: str) -> Result | str:
    """Return the default kernel's instructions for each multiply-add, or the reason why there are none."""
    target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
    if name in CONVOLUTIONS:
        work = CONVOLUTIONS[name]
        family = family_of(work)
        task, needed = task_of(family.function(work)), work.flops // 2
        config = task.default_config(target)
    elif name in INTEGER_PRODUCTS:
        rows, multiply = INTEGER_PRODUCTS[name]
        given = target.limits.dot_products
        task, needed = task_of(_integer_product(rows, is_signed=given != "mixed")), rows * _SIDE * _SIDE
        limits = replace(target.limits, dot_products=(given or "signed") if multiply == DOT else None)
        config = task.template.default_config(limits)
    else:
        rows, bits, block = PRODUCTS[name]
        func = _quantized_product(rows, bits, block, has_table=name.startswith("nf4"))
        task, needed = task_of(func), rows * _SIDE * _SIDE
        config = task.default_config(target)
    kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
    return best_of([kernels], gpu, needed, timeout_s=200.0)


def task_of(func: tirx.PrimFunc) -> TunableTask:
    task = TunableTask.of(func)
    assert task is not None, "the family takes its own definition"
    return task


def counted_norm(gpu: str, k: int, n: int) -> list[float] | str:
    """Return the million instructions of RMSNorm, of the product that reads it, and of both as one kernel."""
    target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
    data, gamma = (te.placeholder(shape, "float16", name) for shape, name in (((1, k), "x"), ((k,), "gamma")))
    norm = te.create_prim_func([data, gamma, topi.nn.rms_norm(data, gamma, [1], _EPSILON)])
    product = _quantized_product(1, 4, 32, has_table=False, k=k, n=n)
    totals = []
    for func in (norm, product, join(norm, product, 0)):
        task = task_of(func)
        config = task.default_config(target)
        kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
        result = best_of([kernels], gpu, k * n, timeout_s=200.0)
        if isinstance(result, str):
            return result
        totals.append(1e-6 * result.per_multiply_add * k * n)
    return totals


def timed_norm(target: str, k: int, n: int) -> tuple[float, float]:
    """Return the microseconds of a model of RMSNorm and a product, with separate kernels and with one."""
    rng = np.random.default_rng(0)
    graph = onnx.parser.parse_graph(
        f"normalized (float[1, {k}] x) => (float[1, {n}] y) "
        f"{{ normal = RMSNormalization <axis = -1, epsilon = {_EPSILON}> (x, gamma) y = MatMul (normal, weight) }}"
    )
    arrays = {"gamma": np.ones(k, np.float32), "weight": rng.standard_normal((k, n)).astype(np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    quantized = romou.quantize(model, bits=4, block=32).model
    lowered = Compilation.of(import_model(quantized, None), Target(target)).lowered()
    assert lowered.functions.chains, "the product reads the norm"
    site = TimingSite(named=lowered.target, target=lowered.target)
    joined, apart = (lowered.joined_where(choice) for choice in (lambda _: True, lambda _: False))
    models = [tuned_model(each, site) for each in (apart, joined)]
    rounds = [[min(model.times(repeat=5)) for model in models] for _ in range(_ROUNDS)]
    apart_us, joined_us = (1e3 * min(times) for times in zip(*rounds, strict=True))
    return apart_us, joined_us


def print_norms(out: Console, gpus: Sequence[str], target: str | None) -> None:
    """Print instructions, or times on a device, of RMSNorm and a product, apart and as one kernel."""
    if target is not None:
        table = table_of_numbers("product of a normalized row", ("apart, us", "one kernel, us", "ratio"), title=target)
        for k, n in NORMALIZED:
            apart, joined = timed_norm(target, k, n)
            table.add_row(f"{k} -> {n}", f"{apart:.1f}", f"{joined:.1f}", f"{apart / joined:.2f}x")
        out.print(table)
        return
    columns = [f"{GPUS[gpu]}, {kernels}" for gpu in gpus for kernels in ("norm + product", "one kernel")]
    table = table_of_numbers("product of a normalized row", columns, title="Millions of instructions")
    for k, n in NORMALIZED:
        cells = []
        for gpu in gpus:
            totals = counted_norm(gpu, k, n)
            cells += (
                [totals, ""] if isinstance(totals, str) else ["{:.2f} + {:.2f}".format(*totals), f"{totals[2]:.2f}"]
            )
        table.add_row(f"{k} -> {n}", *cells)
    out.print(table)


def _integer_product(rows: int, *, is_signed: bool) -> tirx.PrimFunc:
    work = IntegerProduct(m=rows, k=_SIDE, n=_SIDE, is_signed=is_signed)
    operands = [
        te.placeholder(shape, dtype, name)
        for name, shape, dtype in (
            ("data", (rows, work.words), "uint32"),
            ("weight", (work.words, work.columns), "uint32"),
            ("corrections", (_SIDE,), "int32"),
        )
    ]
    return te.create_prim_func([*operands, work.define(*operands)])


def _quantized_product(
    rows: int, bits: int, block: int, *, has_table: bool, k: int = _SIDE, n: int = _SIDE
) -> tirx.PrimFunc:
    work = QuantizedProduct(m=rows, k=k, n=n, bits=bits, block=block, dtype="float16", has_table=has_table)
    operands = [
        te.placeholder(shape, dtype, name)
        for name, shape, dtype in (
            ("data", (rows, k), work.dtype),
            ("words", (work.chunks, n, 4), "uint32"),
            ("scales", (work.blocks, n), work.dtype),
            *([("table", (1 << bits,), "float32")] if has_table else []),
        )
    ]
    return te.create_prim_func([*operands, work.define(*operands)])


def _shown(result: Result | str) -> str:
    """Return the instructions of a kernel, and its spills if it has some, or the reason why there are none."""
    if isinstance(result, str):
        return result
    return (
        f"{mark(result)}{result.per_multiply_add:.2f}{f', {result.spills} spills' * bool(result.spills)}{result.vendor}"
    )


@click.command()
@click.option("--gpu", "gpus", multiple=True, type=click.Choice(list(GPUS)), help="a GPU; several are allowed")
@click.option("--product", "products", multiple=True, type=click.Choice(list(NAMES)), help="a product; default: all")
@click.option("--norms", "has_norms", is_flag=True, help="RMSNorm and a product, apart and as one kernel")
@click.option("--times", "timed", default=None, metavar="TARGET", help="with --norms: times on this device instead")
@click.option("--json", "path", type=click.Path(path_type=Path), help="file for the numbers")
def main(
    gpus: tuple[str, ...], products: tuple[str, ...], has_norms: bool, timed: str | None, path: Path | None
) -> None:
    """Print instructions of all work-items for each multiply-add, and spills."""
    out, results = Console(width=200), dict[str, dict[str, object]]()
    if has_norms:
        print_norms(out, gpus or COMPARED, timed)
        return
    columns = [GPUS[gpu] for gpu in gpus or COMPARED]
    for title, names in (
        ("products", PRODUCTS),
        ("integer products", INTEGER_PRODUCTS),
        ("convolutions", CONVOLUTIONS),
    ):
        table = table_of_numbers(title, columns, title=f"Instructions for each multiply-add, {title}")
        for name in (name for name in names if name in (products or NAMES)):
            counts = {gpu: counted(gpu, name) for gpu in gpus or COMPARED}
            table.add_row(name, *map(_shown, counts.values()))
            for gpu, result in counts.items():
                results.setdefault(gpu, {})[name] = result if isinstance(result, str) else asdict(result)
        if table.row_count:
            out.print(table)
    if path is not None:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
