"""Instructions of products with quantized weights under Mesa's compilers, of default configs. Nothing is executed.

python benchmarks/bench_quantized.py
python benchmarks/bench_quantized.py --gpu a630 --json result.json
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from tvm import te, tirx

from bench_mobile_static import Result, best_of
from romou.compiler.operators.families.conv2d import FAMILY as CONV2D
from romou.compiler.operators.families.depthwise import FAMILY as DEPTHWISE
from romou.compiler.operators.quantized.integer_kernel import DOT, FLOAT
from romou.compiler.operators.quantized.integer_matrix import IntegerProduct
from romou.compiler.operators.workload import Conv2d
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, mobile_gpu
from romou.devices.targets import Target
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


def counted(gpu: str, name: str) -> Result | str:
    """Return the default kernel's instructions for each multiply-add, or the reason why there are none."""
    target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
    if name in CONVOLUTIONS:
        work = CONVOLUTIONS[name]
        family = DEPTHWISE if work.groups > 1 else CONV2D
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


def _quantized_product(rows: int, bits: int, block: int, *, has_table: bool) -> tirx.PrimFunc:
    work = QuantizedProduct(m=rows, k=_SIDE, n=_SIDE, bits=bits, block=block, dtype="float16", has_table=has_table)
    operands = [
        te.placeholder(shape, dtype, name)
        for name, shape, dtype in (
            ("data", (rows, _SIDE), work.dtype),
            ("words", (work.chunks, _SIDE, 4), "uint32"),
            ("scales", (work.blocks, _SIDE), work.dtype),
            *([("table", (1 << bits,), "float32")] if has_table else []),
        )
    ]
    return te.create_prim_func([*operands, work.define(*operands)])


@click.command()
@click.option("--gpu", "gpus", multiple=True, type=click.Choice(list(GPUS)), help="a GPU; several are allowed")
@click.option("--product", "products", multiple=True, type=click.Choice(list(NAMES)), help="a product; default: all")
@click.option("--json", "path", type=click.Path(path_type=Path), help="file for the numbers")
def main(gpus: tuple[str, ...], products: tuple[str, ...], path: Path | None) -> None:
    """Print instructions of a work-item for each weight and row of activations, registers and spills."""
    out, results = Console(width=160), dict[str, dict[str, object]]()
    for gpu in gpus or COMPARED:
        table = table_of_numbers("product", ("instructions", "registers", "spills"), "config", title=GPUS[gpu])
        for name in products or NAMES:
            result = counted(gpu, name)
            if isinstance(result, str):
                table.add_row(name, "-", "", "", result)
                continue
            config = " ".join(f"{knob}={value}" for knob, value in result.config.items())
            table.add_row(name, f"{result.per_multiply_add:.2f}", str(result.registers), str(result.spills), config)
            results.setdefault(gpu, {})[name] = asdict(result)
        out.print(table)
    if path is not None:
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
