"""Compares Romou's kernels with TVM's under Mesa's compilers for Adreno 630 and Mali-G76: a table for each GPU.

Nothing is executed on a GPU.

    python benchmarks/bench_mobile_static.py                              the 20 convolutions of benchmarks/data/paper_ops_sample.csv
    python benchmarks/bench_mobile_static.py --only conv3x3 --candidates 16 --json result.json
    python benchmarks/bench_mobile_static.py --precision float16          the same in fp16
    python benchmarks/bench_mobile_static.py --places                     seven layers with default configs: only buffers against images

docs/evidence/benchmarks.md describes the method and the output.
"""  # noqa: E501

from __future__ import annotations

import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table
from tvm import tirx
from tvm.relax.backend.adreno import pipeline as adreno_graph
from tvm.relax.backend.gpu_generic import pipeline as generic_graph
from tvm.s_tir.backend.adreno.pipeline import default_tir_pipeline as adreno_tir
from tvm.tirx import compilation_pipeline

import romou
from mobile_options import by_vendor, gpus_option
from paper_figures import ratios_by_category
from romou.base.errors import BuildError, RomouError
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph import pack_channels
from romou.compiler.graph.extract import extract_tasks
from romou.compiler.graph.place_images import SCOPE
from romou.compiler.importing import import_onnx
from romou.compiler.operators.analysis.executed import Executed, executed_instructions, trip_loops
from romou.compiler.pipeline import fuse_operators
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import set_image
from romou.devices.backends.launch import launch_size, thread_extents
from romou.devices.mobile_compilers import (
    GPUS,
    KernelStatistics,
    compile_all,
    find_compilers,
    mesa_version,
    mobile_gpu,
)
from romou.devices.targets import Target
from romou.tools.inspection.execute import count_kernel
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.report.table import table_of_numbers
from tvm_patches.quiet import quiet_stderr

SAMPLE = Path(__file__).parent / "data/paper_ops_sample.csv"
TARGET = Target("opencl -device=adreno640")
KERNELS = ("Romou", "TVM image", "TVM buffer")
# By Romou's estimate. More than this spills, and Mesa's Mali compiler takes minutes for spills. It fits kernels into 64
# registers even if the estimate is 100.
MOST_REGISTERS = {name: 181 if mobile_gpu(name).vec4_registers else 100 for name in GPUS}
COMPARED = ("a630", "g76")
# Lanes that run together.
WAVE = {name: mobile_gpu(name).wave for name in GPUS}
# Name -> input channels, rows and columns, output channels, kernel size, stride, groups of a convolution.
LAYERS = {
    "3x3 64x56x56 -> 64": (64, 56, 64, 3, 1, 1),
    "3x3 64x56x56 -> 128 /2": (64, 56, 128, 3, 2, 1),
    "1x1 256x14x14 -> 256": (256, 14, 256, 1, 1, 1),
    "depthwise 3x3 64x112x112": (64, 112, 64, 3, 1, 64),
    "3x3 512x7x7 -> 512": (512, 7, 512, 3, 1, 1),
}
# Name -> rows, columns, and the reduction length of a matrix product. With one row it is a dense layer.
PRODUCTS = {"dense 4096 -> 1000": (1, 1000, 4096), "matmul 512^3": (512, 512, 512)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The kernels of one function under one compiler.

    per_multiply_add: instructions per needed multiply-add, see docs/evidence/benchmarks.md
    is_exact: False for "~"
    vendor: see `by_vendor`
    """

    per_multiply_add: float
    is_exact: bool
    spills: int
    private_memory_bytes: int
    registers: int
    occupancy: float
    config: dict[str, Any]
    vendor: str = ""

    @property
    def is_without_spills(self) -> bool:
        """Absence of spilled registers and of arrays in private memory."""
        return not self.spills and not self.private_memory_bytes


def model_of(row: Mapping[str, str]) -> onnx.ModelProto:
    """Return the convolution with a bias and a ReLU.

    All its weights are 0.5: integers would exclude Winograd, whose transforms round.
    """
    n = {k: int(v) for k, v in row.items() if k not in ("op", "models")}
    weight = np.full(
        (n["out_channels"], n["in_channels"] // n["groups"], n["kernel_h"], n["kernel_w"]), 0.5, np.float32
    )
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w", "b"],
            ["y"],
            kernel_shape=weight.shape[2:],
            strides=[n["stride"]] * 2,
            pads=[n["pad_top"], n["pad_left"], n["pad_bottom"], n["pad_right"]],
            group=n["groups"],
        ),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    weights = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.ones(n["out_channels"], np.float32), "b"),
    ]
    shapes = [("x", [1, n["in_channels"], n["in_h"], n["in_w"]]), ("z", [1, n["out_channels"], n["out_h"], n["out_w"]])]
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
    return helper.make_model(
        helper.make_graph(nodes, "conv", [x], [z], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def layers() -> Iterator[tuple[str, onnx.ModelProto, int]]:
    """Yield name, model and needed multiply-adds of seven layers.

    The layers are convolutions, a dense layer and a product of two inputs.
    """
    for name, (channels, side, outputs, kernel, stride, groups) in LAYERS.items():
        sizes = {
            "in_channels": channels,
            "in_h": side,
            "in_w": side,
            "out_channels": outputs,
            "out_h": side // stride,
            "out_w": side // stride,
        }
        # With an even number of rows and stride 2, only one end is padded.
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
        yield name, model_of(row), multiply_adds_of(row)
    for name, (rows, columns, length) in PRODUCTS.items():
        weight = [numpy_helper.from_array(np.ones((length, columns), np.float32), "w")] if rows == 1 else []
        shapes = {"x": [rows, length], "w": [length, columns], "y": [rows, columns]}
        x, w, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape) for tensor, shape in shapes.items())
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x] if weight else [x, w], [y], weight
        )
        yield (
            name,
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
            rows * columns * length,
        )


def print_places(gpus: tuple[str, ...], out: Console) -> None:
    """Print a table for each GPU: the default config's instructions per needed multiply-add.

    They are counted with every tensor in a buffer, and with the target's placement.
    """
    for gpu in gpus:
        device = mobile_gpu(gpu).devices[-1]
        table = table_of_numbers(
            "layer",
            ("buffers", "spills", "as placed", "spills"),
            "in images",
            title=f"{GPUS[gpu]}, target {device}, default configs, fp32",
        )
        for name, model, needed in layers():
            cells: list[str] = []
            for option in (" -images=never", ""):
                inspected = romou.inspect(model, target=f"opencl -device={device}{option}")
                kernels = [k for k in inspected if "split_k" in k.config]
                result = best_of([kernels], gpu, needed, timeout_s=200.0)
                if isinstance(result, str):
                    out.print(f"{name}{option}: {result}", markup=False)
                cells += (
                    ["-", ""]
                    if isinstance(result, str)
                    else [f"{mark(result)}{result.per_multiply_add:.2f}", f"{result.spills}{result.vendor}"]
                )
            table.add_row(
                name,
                *cells,
                ", ".join(
                    k
                    for k in ("data", "weight", "output")
                    if any(kernel.config.get(k) == "image" for kernel in kernels)
                )
                or "-",
            )
        out.print(table)


def multiply_adds_of(row: Mapping[str, str]) -> int:
    """Return the multiply-adds that the operator needs, without padding and packing."""
    n = {k: int(v) for k, v in row.items() if k not in ("op", "models")}
    return n["out_channels"] * n["out_h"] * n["out_w"] * n["in_channels"] // n["groups"] * n["kernel_h"] * n["kernel_w"]


def romou_candidates(graph: tvm.IRModule, gpu: str, count: int, seed: int) -> Iterator[list[InspectedKernel]]:
    """Yield the kernels of the default config and of up to `count` random ones.

    All tensors are images if they can be.
    """
    # The other tasks pack the input and unpack the output.
    (task,) = (
        task for task in extract_tasks(fuse_operators(pack_channels(graph), TARGET))[0] if task.template.sums_products
    )
    func = task.func
    if task.template.activations:
        data, *_ = func.params
        for tensor in (data, func.params[-1]):
            func = set_image(func, str(tensor.name), SCOPE)
    in_images = TunableTask.of(func)
    assert in_images is not None, "images change no structure that a template looks at"
    space = in_images.space(TARGET)
    weight = {"weight": "image"} if "image" in space.knobs.get("weight", ()) else {}
    default = in_images.default_config(TARGET).replace(**weight)
    # Instructions for each multiply-add are comparable within one algorithm only.
    sampled = [
        c for c in space.sample(np.random.default_rng(seed), 50 * count) if c.get("algorithm", "direct") == "direct"
    ]
    drawn = (c.replace(**weight) for c in sampled if c["wg_o"] * c["wg_w"] * c["split_k"] >= WAVE[gpu])
    configs = {config.key: config for config in [default, *drawn] if space.is_valid(config)}
    left = count + 1
    for config in configs.values():
        if not left:
            return
        try:
            kernels = inspect_function(in_images.schedule(config, TARGET)["main"], TARGET, config=config)
        except (RomouError, RuntimeError):
            continue  # a config that cannot be built is none
        if config is default or max(k.registers.needed for k in kernels) <= MOST_REGISTERS[gpu]:
            left -= 1
            yield kernels


def _adreno_pipeline() -> tuple[Any, Any, Any]:
    return adreno_tir(), compilation_pipeline.finalize_host_passes, compilation_pipeline.finalize_device_passes


# TVM registers its Adreno pipeline in a form that its own build cannot call.
compilation_pipeline.register_tir_pipeline("romou-bench-adreno", _adreno_pipeline)


def tvm_kernels(graph: tvm.IRModule, *, in_images: bool) -> list[InspectedKernel]:
    """Return the kernels of the convolution as TVM schedules it, without copies between layouts."""
    target = TARGET.tvm_target
    if in_images:
        target = tvm.target.Target(
            {**TARGET.tvm_target.export(), "keys": ["adreno", "opencl", "gpu", "texture"], "device": "adreno"},
            host="llvm",
        )
    passes = (adreno_graph if in_images else generic_graph).legalize_passes
    with target:
        scheduled = tvm.transform.Sequential(passes(target))(graph)
    functions = {
        v.name_hint: f
        for v, f in scheduled.functions_items()
        if isinstance(f, tirx.PrimFunc) and "conv2d" in v.name_hint
    }
    pipeline = "romou-bench-adreno" if in_images else "default"
    return [
        kernel
        for name, func in functions.items()
        for kernel in inspect_function(func, TARGET, name=name, tir_pipeline=pipeline)
    ]


def lanes_of(func: tirx.PrimFunc, wave: int) -> int:
    """Return the lanes that a launch occupies: each work group is rounded up to whole waves."""
    groups, items = launch_size(thread_extents(func))
    return groups * -(-items // wave) * wave


def by_trips(kernel: InspectedKernel, stats: KernelStatistics) -> tuple[Executed, bool]:
    """Return the instructions of all lanes by trip counts, and whether the compiler's loops could be matched.

    If not, the busiest loop represents all.
    """
    loops, lanes = trip_loops(kernel.lowered), lanes_of(kernel.lowered, WAVE[stats.gpu])
    executed, inner = executed_instructions(stats.code, loops), stats.inner
    if executed is not None:
        return Executed(0).after(lanes, executed), True
    iterations = lanes * loops.total / max(inner.multiply_adds, 1)
    return Executed(0).after(iterations, Executed(inner.instructions, inner.units)), False


def instructions_of(kernel: InspectedKernel, stats: KernelStatistics) -> tuple[Executed, bool]:
    """Return the instructions of all lanes, and whether they are not too few.

    Some work groups are executed in Adreno's simulator. Trip counts weigh loops on Mali, and if the simulator refuses.
    """
    if not stats.is_adreno:
        return by_trips(kernel, stats)
    try:
        done = count_kernel(kernel, stats)
    except BuildError:
        return by_trips(kernel, stats)[0], False
    return Executed(WAVE[stats.gpu] * done.of_grid(done.counts.issue_slots)), True


def result_of(kernels: list[InspectedKernel], made: list[KernelStatistics], needed: int) -> Result:
    """Add up the kernels of one function."""
    counted = [instructions_of(kernel, stats) for kernel, stats in zip(kernels, made, strict=True)]
    return Result(
        per_multiply_add=sum(executed.instructions for executed, _ in counted) / needed,
        is_exact=all(is_exact for _, is_exact in counted),
        spills=sum(s.spills for s in made),
        private_memory_bytes=max(s.private_memory_bytes for s in made),
        registers=max(s.registers for s in made),
        occupancy=min(s.occupancy for s in made),
        config=dict(kernels[0].config),
    )


def best_of(functions: list[list[InspectedKernel]], gpu: str, needed: int, timeout_s: float = 30.0) -> Result | str:
    """Return the best of several functions, each given by its kernels, or the last error if all fail."""
    answers = iter(compile_all([k.source for kernels in functions for k in kernels], gpu, timeout_s=timeout_s))
    results: list[tuple[Result, list[InspectedKernel]]] = []
    problem = "nothing to compile"
    for kernels in functions:
        made = [next(answers) for _ in kernels]
        errors = [m for m in made if isinstance(m, BuildError)]
        if errors:
            problem = str(errors[0]).splitlines()[0]
        elif kernels:
            results.append((result_of(kernels, [m[0] for m in made if isinstance(m, list)], needed), kernels))
    if not results:
        return problem
    best, kernels = min(results, key=lambda made: (not made[0].is_without_spills, made[0].per_multiply_add))
    return dataclasses.replace(best, vendor=by_vendor(kernels, gpu))


def compare(
    row: Mapping[str, str], *, precision: str, candidates: int, seed: int, gpus: tuple[str, ...]
) -> dict[str, dict[str, Result | str]]:
    """Return GPU -> kernel -> result, or the error."""
    functions: dict[str, list[list[InspectedKernel]] | str] = {}
    with quiet_stderr():
        graph = import_onnx(model_of(row), None, Precision(kind=precision, is_quiet=True)).mod
        for name, in_images in (("TVM image", True), ("TVM buffer", False)):
            try:
                functions[name] = [tvm_kernels(graph, in_images=in_images)]
            except Exception as error:  # TVM fails in many ways here; the table says so
                functions[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:120]}"
        ours = {gpu: list(romou_candidates(graph, gpu, candidates, seed)) for gpu in gpus}
    needed = multiply_adds_of(row)
    return {
        gpu: {
            name: f if isinstance(f, str) else best_of(f, gpu, needed)
            for name, f in ({"Romou": ours[gpu]} | functions).items()
        }
        for gpu in gpus
    }


def name_of(row: Mapping[str, str]) -> str:
    """Return a name of family, sizes and stride."""
    return f"{row['op']} {row['in_channels']}x{row['in_h']}x{row['in_w']} -> {row['out_channels']} /{row['stride']}"


def table_of(gpu: str, rows: list[tuple[str, dict[str, Result | str]]], precision: str) -> Table:
    """Return a table with one line for each operator."""
    columns = [column for kernel in KERNELS for column in (kernel, "spills", "private B")] + [
        "registers",
        "TVM / Romou",
    ]
    table = table_of_numbers(
        "operator",
        columns,
        title=(
            f"{GPUS[gpu]}, Mesa's compiler {mesa_version()} (not the vendor's): instructions per multiply-add,"
            f" {precision}"
        ),
    )
    for name, results in rows:
        cells = []
        for kernel in KERNELS:
            r = results[kernel]
            cells += (
                ["-", "", ""]
                if isinstance(r, str)
                else [f"{mark(r)}{r.per_multiply_add:.2f}", f"{r.spills}{r.vendor}", str(r.private_memory_bytes)]
            )
        ours, ratio = results["Romou"], ratio_of(results)
        table.add_row(
            name,
            *cells,
            "" if isinstance(ours, str) else str(ours.registers),
            "-" if ratio is None else f"{ratio:.1f}x",
        )
    return table


def mark(result: Result) -> str:
    """Return the mark before a number that is too low."""
    return "" if result.is_exact else "~"


def ratio_of(results: Mapping[str, Result | str]) -> float | None:
    """Return the ratio of TVM's better kernel to Romou's."""
    ours = results["Romou"]
    theirs = [
        r.per_multiply_add
        for name, r in results.items()
        if name != "Romou" and isinstance(r, Result) and r.per_multiply_add
    ]
    return min(theirs) / ours.per_multiply_add if isinstance(ours, Result) and theirs else None


@click.command()
@click.option("--candidates", default=8, show_default=True, help="Random configs beside the default one.")
@gpus_option(COMPARED)
@click.option(
    "--places", is_flag=True, help="Compare buffers with images in seven layers instead, on each GPU's own target."
)
@click.option("--precision", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--only", default="", help="Only operators whose name holds this text.")
@click.option("--seed", default=0, show_default=True, help="Of the random configs.")
@click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path),
    default=None,
    help="Also write every number here, after each operator.",
)
def main(
    candidates: int, gpus: tuple[str, ...], places: bool, precision: str, only: str, seed: int, output: Path | None
) -> None:
    """Print one table for each GPU. The exit code is 1 if one of Romou's kernels spills or could not be compiled."""
    find_compilers()
    out = Console(width=180)
    if places:
        print_places(gpus, out)
        return
    with SAMPLE.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if only in name_of(row)]
    by_gpu: dict[str, list[tuple[str, dict[str, Result | str]]]] = {gpu: [] for gpu in gpus}
    for row in rows:
        for gpu, results in compare(row, precision=precision, candidates=candidates, seed=seed, gpus=gpus).items():
            by_gpu[gpu].append((name_of(row), results))
        if output is not None:
            data = {
                "mesa": mesa_version(),
                "precision": precision,
                "candidates": candidates,
                "seed": seed,
                "gpus": by_gpu,
            }
            output.write_text(json.dumps(data, indent=1, default=dataclasses.asdict), encoding="utf-8")
    is_fine = True
    for gpu, all_of in by_gpu.items():
        out.print(table_of(gpu, all_of, precision))
        by_name = [(name, ratio) for name, results in all_of if (ratio := ratio_of(results)) is not None]
        out.print(ratios_by_category(by_name, f"TVM / Romou, instructions on {GPUS[gpu]} (Romou paper, figure 13)"))
        ratios = [ratio for _, ratio in by_name]
        clean = sum(isinstance(r["Romou"], Result) and r["Romou"].is_without_spills for _, r in all_of)
        out.print(
            f"{GPUS[gpu]}: {clean} of {len(all_of)} without spills and private memory; TVM / Romou: at least 3 for"
            f" {sum(r >= 3 for r in ratios)} of {len(ratios)}, median"
            f" {statistics.median(ratios) if ratios else math.nan:.1f}"
        )
        for name, results in all_of:
            for kernel, r in results.items():
                if isinstance(r, str):
                    out.print(f"  {name}, {kernel}: {r}", markup=False)
        is_fine = is_fine and clean == len(all_of)
    raise SystemExit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
