"""Instructions of products with quantized weights under Mesa's compilers, of default configs in fp16. Nothing is executed.

python benchmarks/bench_quantized.py
python benchmarks/bench_quantized.py --gpu a630 --json result.json
"""  # noqa: E501

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from tvm import te

from bench_mobile_static import Result, best_of
from romou.compiler.task import TunableTask
from romou.devices.mobile_compilers import GPUS, mobile_gpu
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tools.report.table import table_of_numbers
from tvm_patches.quantized_matrix import QuantizedProduct

COMPARED = ("a630", "a740", "g76", "g610")
# Name -> rows of activations, bits and block of a weight of 4096 x 4096.
PRODUCTS = {
    "int4, block 32, 1 row": (1, 4, 32),
    "int4, block 128, 1 row": (1, 4, 128),
    "int8, block 32, 1 row": (1, 8, 32),
    "int4, block 32, 4 rows": (4, 4, 32),
    "int4, block 32, 64 rows": (64, 4, 32),
}
_SIDE = 4096


def counted(gpu: str, rows: int, bits: int, block: int) -> Result | str:
    """Return the default kernel's instructions for each multiply-add, or the reason why there are none."""
    work = QuantizedProduct(m=rows, k=_SIDE, n=_SIDE, bits=bits, block=block, dtype="float16")
    data, words, scales = (
        te.placeholder(shape, dtype, name)
        for name, shape, dtype in (
            ("data", (rows, _SIDE), work.dtype),
            ("words", (work.chunks, _SIDE, 4), "uint32"),
            ("scales", (work.blocks, _SIDE), work.dtype),
        )
    )
    task = TunableTask.of(te.create_prim_func([data, words, scales, work.define(data, words, scales)]))
    assert task is not None, "the family takes its own definition"
    target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
    config = task.default_config(target)
    kernels = inspect_function(task.schedule(config, target)["main"], target, config=config)
    return best_of([kernels], gpu, rows * _SIDE * _SIDE, timeout_s=200.0)


@click.command()
@click.option("--gpu", "gpus", multiple=True, type=click.Choice(list(GPUS)), help="a GPU; several are allowed")
@click.option("--product", "products", multiple=True, type=click.Choice(list(PRODUCTS)), help="a product; default: all")
@click.option("--json", "path", type=click.Path(path_type=Path), help="file for the numbers")
def main(gpus: tuple[str, ...], products: tuple[str, ...], path: Path | None) -> None:
    """Print instructions of a work-item for each weight and row of activations, registers and spills."""
    out, results = Console(width=160), dict[str, dict[str, object]]()
    for gpu in gpus or COMPARED:
        table = table_of_numbers("product", ("instructions", "registers", "spills"), "config", title=GPUS[gpu])
        for name in products or PRODUCTS:
            result = counted(gpu, *PRODUCTS[name])
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
