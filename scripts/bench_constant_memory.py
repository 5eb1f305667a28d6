"""Three layers with small weights under Mesa's compilers: the weight in a buffer, in an image, in `__constant` memory,
or passed by value.

    python scripts/bench_constant_memory.py                  Adreno 630 and Mali-G76, fp32
    python scripts/bench_constant_memory.py --gpu a740       another GPU

Static counts: nothing is executed. Kernels sum directly, a texel of four pixels for each of 64 work-items of a group;
the text is changed for the last two columns. Activations lie in images. What is passed by value lies where promoted
`__constant` arguments may: in registers that all lanes share.
"""

from __future__ import annotations

import math
import re

import bench_mobile_static as static
import click
from bench_mobile_layers import count_of, kernels_of
from rich.console import Console

from romou.base.errors import BuildError
from romou.base.space import Config
from romou.compiler.frontend import import_onnx
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.operators.template import ContractionTemplate
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES
from romou.devices.mobile_compilers import GPUS, compile_all, find_compilers, mesa_version, mobile_gpu
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from tvm_patches.quiet import quiet_stderr

# Name -> input channels, rows and columns, output channels, kernel size, stride, groups of a convolution.
LAYERS = {
    "depthwise 3x3 64x112x112": (64, 112, 64, 3, 1, 64),
    "3x3 3x224x224 -> 32 /2": (3, 224, 32, 3, 2, 1),
    "1x1 16x112x112 -> 16": (16, 112, 16, 1, 1, 1),
}
# What all kernels have in common.
SHAPE = {"data": "image", "output": "image", "tile_o": 1, "tile_w": 4, "wg_o": 4, "wg_w": 16}
PLACES = ("buffer", "image", "__constant", "by value")
TIMEOUT_S = 200.0


def moved(source: str, parameter: str, place: str, numbers: int) -> str:
    """Return a kernel whose weight is read from `place` instead of a buffer. ValueError where the text has no such
    parameter.
    """
    declared = rf"__global float4\* restrict {parameter}\b"
    kernel = source.index("__kernel")
    if not re.search(declared, source):
        raise ValueError(f"{parameter} is no buffer of vectors of floats")
    pointers = re.compile(rf"const __global (float4\* \w+ = {parameter} \+)")
    if place == "__constant":
        return pointers.sub(
            r"const __constant \1", re.sub(declared, f"__constant float4* restrict {parameter}", source)
        )
    body = pointers.sub(r"const \1", re.sub(declared, "const Weights weights", source[kernel:]))
    return (
        f"{source[:kernel]}typedef struct {{ float4 all[{-(-numbers // LANES)}]; }} Weights;\n#define {parameter}"
        f" weights.all\n{body}"
    )


def task_of(layer: tuple[int, ...], target: Target) -> tuple[TunableTask, int]:
    """Return a layer's task, and its needed multiply-adds."""
    channels, side, outputs, kernel, stride, groups = layer
    sizes = {
        "in_channels": channels,
        "in_h": side,
        "in_w": side,
        "out_channels": outputs,
        "out_h": side // stride,
        "out_w": side // stride,
    }
    pads = dict.fromkeys(("pad_top", "pad_left"), kernel // 2) | dict.fromkeys(
        ("pad_bottom", "pad_right"), kernel // 2 - (stride - 1)
    )
    row = {
        k: str(v)
        for k, v in {
            **sizes,
            **pads,
            "kernel_h": kernel,
            "kernel_w": kernel,
            "stride": stride,
            "groups": groups,
        }.items()
    }
    with quiet_stderr():
        tasks = extract_tasks(fuse_operators(pack_channels(import_onnx(static.model_of(row)).mod), target))[0]
    (task,) = (one.with_free_images() for one in tasks if one.template.sums_products)
    return task, static.multiply_adds_of(row)


@click.command()
@click.option(
    "--gpu", "gpus", type=click.Choice(list(GPUS)), multiple=True, default=list(static.COMPARED), show_default=True
)
def main(gpus: tuple[str, ...]) -> None:
    """Print a table for each GPU: instructions per multiply-add, on Mali cycles for 24 of them, S spills, r registers."""  # noqa: E501
    find_compilers()
    out = Console(width=160)
    for gpu in gpus:
        target = Target(f"opencl -device={mobile_gpu(gpu).devices[-1]}")
        table = table_of_numbers(
            "layer",
            PLACES,
            title=f"{GPUS[gpu]}, Mesa's compiler {mesa_version()} (not the vendor's), fp32: where the weight lies",
        )
        for name, layer in LAYERS.items():
            task, needed = task_of(layer, target)
            assert isinstance(task.template, ContractionTemplate), "a convolution"
            start = {**task.template.starts(task.limits(target))[0], **SHAPE}
            start |= {"algorithm": "direct"} if "algorithm" in start else {}
            kernels = {
                place: kernels_of(task, Config({**start, "weight": place}), target) for place in ("buffer", "image")
            }
            (in_buffer,), shape = kernels["buffer"], task.template.algorithms["direct"].weight_shape
            sources = {place: made[0].source for place, made in kernels.items()}
            sources |= {
                place: moved(in_buffer.source, f"{task.template.names['weight']}_ptr", place, math.prod(shape))
                for place in PLACES[2:]
            }
            made = compile_all([sources[place] for place in PLACES], gpu, timeout_s=TIMEOUT_S)
            lowered = [kernels.get(place, kernels["buffer"]) for place in PLACES]
            table.add_row(
                name,
                *(
                    "refused" if isinstance(m, BuildError) else str(count_of(k, m, needed))
                    for k, m in zip(lowered, made, strict=True)
                ),
            )
        out.print(table)


if __name__ == "__main__":
    main()
