"""Times products with quantized weights on a GPU: default and random configs, beside a copy and PyTorch's products.

python benchmarks/bench_quantized_products.py --target cuda --configs 40
python benchmarks/bench_quantized_products.py --target opencl --products 1x4096x4096 --json result.json

Activations are fp16, or bytes, whose products PyTorch has as _int_mm. Each launch reads another copy of the weight, and
all copies together are larger than the second-level cache. Launches are recorded and run at once, where the device can
do so, as a tuned model's are. Every kernel's result is compared with NumPy's. Without PyTorch, its columns are empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import tvm
from rich.console import Console
from tvm import te

from romou.base.errors import DeviceError
from romou.base.space import Config
from romou.compiler.frontend.reference import relative_l2_error
from romou.compiler.operators.kernels.quantized.integer_matrix import IntegerMatrix, IntegerProduct
from romou.compiler.task import TunableTask
from romou.devices.backends.base import Backend
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.measure import LocalBuilder, MeasureOptions
from romou.tuner.measure.fingerprint import identified_device
from romou.tuner.measure.types import Candidate
from romou.tuner.measure.verify import poison
from tvm_patches.libraries import load_library
from tvm_patches.quantized_matrix import QuantizedMatrix, QuantizedProduct
from tvm_patches.runtime import device_tensor

# Rows of activations x k x n, bits and block.
_SIDES = (4096, 4096), (4096, 11008), (11008, 4096), (2048, 8192)
PRODUCTS = [
    *((1, k, n, 4, block) for block in (32, 128) for k, n in _SIDES),
    (1, 4096, 4096, 8, 32),
    *((m, 4096, 4096, 4, 32) for m in (4, 16, 64)),
    *((512, k, n, 4, 32) for k, n in _SIDES),
    (512, 4096, 4096, 4, 128),
]
# Rows of activations of bytes x k x n. PyTorch takes more than 16 rows.
BYTE_PRODUCTS = [(1, 4096, 4096), (32, 4096, 4096), (512, 4096, 4096)]
_COPIES, _LIMIT = 16, 1e-3


@dataclass(frozen=True, kw_only=True)
class Timing:
    """rotated: bytes of all copies of a weight, and of the long copy. launches: fewest of a timing."""

    rotated: int
    launches: int
    timings: int
    is_recorded: bool


def name_of(product: tuple[int, ...]) -> str:
    """Return "MxKxN" with bits and block, or of bytes."""
    m, k, n, *form = product
    return f"{m}x{k}x{n} " + ("int{} b{}".format(*form) if form else "bytes")


class Product:
    """The tensors of a product on a device, the weight several times, and the right result.

    moved: bytes that a launch moves at least.
    """

    def __init__(self, product: tuple[int, ...], device: Any, timing: Timing) -> None:
        m, k, n, bits, block = product
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 1 << bits, (n, k)).astype(np.uint8)
        scales = (rng.uniform(0.5, 1.5, (n, -(-k // block))) / (1 << bits)).astype(np.float16)
        self.matrix = QuantizedMatrix.pack(codes, scales, None, bits=bits, block=block)
        self.work: QuantizedProduct = self.matrix.product(m, "float16")
        self.data = rng.standard_normal((m, k)).astype(np.float16)
        weight = (codes.astype(np.float32) - (1 << bits - 1)) * np.repeat(scales.astype(np.float32), block, axis=1)[
            :, :k
        ]
        self.weight = weight.astype(np.float16)
        self.expected = self.data.astype(np.float32) @ weight.T
        self.moved = self.work.weight_bytes + 2 * (self.data.size + self.expected.size)
        copies = -(-timing.rotated // self.work.weight_bytes)
        data = device_tensor(self.data, device, "global")
        # No launch waits for the one before it because both write to the same place.
        self.arguments = [
            (
                data,
                *(device_tensor(a, device, "global") for a in self.matrix.arrays),
                tvm.runtime.empty(self.expected.shape, "float16", device),
            )
            for _ in range(copies)
        ]

    @property
    def task(self) -> TunableTask:
        """The task of the kernel."""
        work = self.work
        data = te.placeholder((work.m, work.k), work.dtype, "data")
        words, scales = (
            te.placeholder(a.shape, str(a.dtype), name)
            for a, name in zip(self.matrix.arrays, ("words", "scales"), strict=True)
        )
        return _task_of(data, words, scales, work.define(data, words, scales))


class ByteProduct:
    """The tensors of a product of signed bytes on a device, the weight several times, and the exact result."""

    def __init__(self, product: tuple[int, ...], device: Any, timing: Timing) -> None:
        m, k, n = product
        rng = np.random.default_rng(0)
        self.data, self.weight = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
        matrix = IntegerMatrix.pack(self.weight)
        assert matrix is not None, "numbers of 8 bits"
        self.work, self.arrays = IntegerProduct(m=m, k=k, n=n), (matrix.words, matrix.correction(0))
        self.expected = self.data.astype(np.float64) @ self.weight.astype(np.float64)
        self.moved = self.data.size + self.weight.size + 4 * self.expected.size
        words = np.zeros((m, 4 * self.work.words), np.int8)
        words[:, :k] = self.data
        constants = [device_tensor(a, device, "global") for a in (words.view(np.uint32), self.arrays[1])]
        self.arguments = [
            (
                constants[0],
                device_tensor(self.arrays[0], device, "global"),
                constants[1],
                tvm.runtime.empty(self.expected.shape, "int32", device),
            )
            for _ in range(-(-timing.rotated // self.weight.size))
        ]

    @property
    def task(self) -> TunableTask:
        """The task of the kernel."""
        work = self.work
        data = te.placeholder((work.m, work.words), "uint32", "data")
        words, corrections = (
            te.placeholder(a.shape, str(a.dtype), name)
            for a, name in zip(self.arrays, ("words", "corrections"), strict=True)
        )
        return _task_of(data, words, corrections, work.define(data, words, corrections))


class Copy:
    """A copy within the device that moves the bytes of a product, from several places.

    It doubles the values, so that it is a kernel: a copy by the API may wait for another engine.
    """

    def __init__(self, moved: int, device: Any, timing: Timing) -> None:
        values = np.random.default_rng(0).standard_normal(-(-moved // 32) * 4).astype(np.float32)
        self.expected, self.moved = 2 * values, 2 * values.nbytes
        self.arguments = [
            (device_tensor(values, device, "global"), tvm.runtime.empty(values.shape, "float32", device))
            for _ in range(-(-timing.rotated // values.nbytes))
        ]

    @property
    def task(self) -> TunableTask:
        """The task of the kernel."""
        data = te.placeholder(self.expected.shape, "float32", "data")
        return _task_of(data, te.compute(data.shape, lambda i: data[i] * te.const(2.0, "float32"), "doubled"))


def _task_of(*tensors: te.Tensor) -> TunableTask:
    task = TunableTask.of(te.create_prim_func(list(tensors)))
    assert task is not None, "a family takes it"
    return task


AnyProduct: TypeAlias = Product | ByteProduct


def error_of(problem: AnyProduct | Copy, kernel: Callable[..., None]) -> float:
    """Return the relative error of a kernel's result, which is poisoned before."""
    output = problem.arguments[-1][-1]
    output.copyfrom(poison(output.shape, str(output.dtype)))
    kernel(*problem.arguments[-1])
    return relative_l2_error(output.numpy().astype(np.float32), problem.expected)


def microseconds(problem: AnyProduct | Copy, kernel: Callable[..., None], backend: Backend, timing: Timing) -> float:
    """Return the median time of a launch of a run, by the device's clock if it is recorded, else by the host's."""
    device = problem.arguments[0][0].device
    rounds = -(-timing.launches // len(problem.arguments))

    def run() -> None:
        for arguments in problem.arguments * rounds:
            kernel(*arguments)

    run()
    device.sync()
    launches = rounds * len(problem.arguments)
    if not timing.is_recorded:
        return called_us(run, launches, device, timing.timings)
    recorded = backend.record(device, None, run)
    recorded.time_ms()
    return statistics.median(recorded.time_ms() for _ in range(timing.timings)) * 1e3 / launches


def called_us(run: Callable[[], None], launches: int, device: Any, timings: int) -> float:
    """Return the median microseconds of a launch of a run of calls, by the host's clock."""
    times = []
    for _ in range(timings):
        start = time.perf_counter()
        run()
        device.sync()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6 / launches


def copied_gbps(device: Any, timing: Timing) -> float:
    """Return the rate of a long copy within the device, read and written bytes, in GB/s."""
    source = device_tensor(np.zeros(timing.rotated // 4, np.float32), device, "global")
    target = tvm.runtime.empty(source.shape, "float32", device)
    device.sync()

    def run() -> None:
        for _ in range(_COPIES):
            target.copyfrom(source)

    return 2 * timing.rotated / called_us(run, _COPIES, device, timing.timings) / 1e3


def peer_us(problem: AnyProduct, timing: Timing) -> dict[str, float]:
    """Return microseconds of PyTorch's products: cuBLAS in fp16, and packed int4 or bytes, if PyTorch has them."""
    times = dict[str, float]()
    with contextlib.suppress(ImportError):
        import torch

        if not torch.cuda.is_available():
            return times
        data = torch.from_numpy(problem.data).cuda()
        if isinstance(problem, ByteProduct):
            columns = torch.from_numpy(np.ascontiguousarray(problem.weight.T)).cuda()
            weights = [columns.clone().t() for _ in problem.arguments]
            with contextlib.suppress(RuntimeError):
                times["_int_mm"] = torch_us(torch, lambda i: torch._int_mm(data, weights[i]), len(weights), timing)
            return times
        work = problem.work
        weight = torch.from_numpy(problem.weight).cuda()
        copies = max(2, timing.rotated // (2 * work.k * work.n))
        weights = [weight.clone().t() for _ in range(copies)]
        times["cuBLAS fp16"] = torch_us(torch, lambda index: torch.mm(data, weights[index]), copies, timing)
        if work.bits == 4:
            with contextlib.suppress(RuntimeError):
                half = data.to(torch.bfloat16)
                bytes_of = torch.randint(0, 255, (work.n, work.k // 2), dtype=torch.uint8, device="cuda")
                packed = [torch._convert_weight_to_int4pack(bytes_of, 8) for _ in range(copies)]
                scales = torch.ones(work.k // work.block, work.n, 2, dtype=torch.bfloat16, device="cuda")
                times["int4pack"] = torch_us(
                    torch,
                    lambda index: torch._weight_int4pack_mm(half, packed[index], work.block, scales),
                    copies,
                    timing,
                )
    return times


def torch_us(torch: Any, product: Callable[[int], Any], copies: int, timing: Timing) -> float:
    """Return the median microseconds of a product in a captured graph."""
    launches = copies * -(-timing.launches // copies)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for index in range(copies):
            product(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(launches):
            product(launch % copies)
    times = []
    for _ in range(timing.timings + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times[1:])) * 1e3 / launches


def configs_of(task: TunableTask, target: Target, count: int, seed: int) -> list[Config]:
    """Return the default config and random ones, half of them for tensor cores if the space has these."""
    space, rng = task.space(target), np.random.default_rng(seed)
    configs = [task.default_config(target)]
    choices = space.knobs.get("tensor_cores", ())
    parts = [space.narrowed({"tensor_cores": (choice,)}) for choice in choices] or [space]
    for part in filter(None, parts):
        configs += list(part.sample(rng, count // len(parts)))
    return list(dict.fromkeys(configs))


def measured(
    problem: AnyProduct | Copy, builder: LocalBuilder, target: Target, count: int, seed: int, timing: Timing
) -> list[tuple[Config, float | str]]:
    """Return configs, the default one first, with microseconds or the reason why there are none."""
    task = problem.task
    configs = configs_of(task, target, count, seed)
    results = list[tuple[Config, float | str]]()
    for built in builder.build([Candidate(task=task, config=c, trial=t) for t, c in enumerate(configs)]):
        if built.library is None:
            results.append((built.candidate.config, str(built.error)))
            continue
        try:
            kernel = load_library(Path(built.library))[built.entry]
            error = error_of(problem, kernel)
            value: float | str = f"wrong: error {error:.1e}"
            if error < _LIMIT:
                value = microseconds(problem, kernel, target.backend, timing)
        except (DeviceError, RuntimeError) as failure:
            value = str(failure).splitlines()[0]
        results.append((built.candidate.config, value))
    return results


def timed_of(results: list[tuple[Config, float | str]]) -> list[tuple[float, Config]]:
    """Return (microseconds, config) of those that have a time, the fastest first."""
    return sorted(((us, config) for config, us in results if isinstance(us, float)), key=lambda each: each[0])


def row_of(
    problem: AnyProduct, builder: LocalBuilder, target: Target, timing: Timing, rate: float, configs: int, seed: int
) -> tuple[list[str], dict[str, Any]]:
    """Return the cells of a product after its name, and its measurements as data."""
    results = measured(problem, builder, target, configs, seed, timing)
    default, times = results[0][1], timed_of(results)
    peers = peer_us(problem, timing) if target.kind == "cuda" else {}
    best, config = times[0] if times else (float("nan"), results[0][0])
    device = problem.arguments[0][0].device
    copies = timed_of(measured(Copy(problem.moved, device, timing), builder, target, configs, seed, timing))
    copy = copies[0][0] if copies else float("nan")
    nan = float("nan")
    cublas, best_peer = peers.get("cuBLAS fp16", nan), min(peers.values(), default=nan)
    cells = [
        f"{default:.1f}" if isinstance(default, float) else default,
        f"{best:.1f}",
        f"{problem.moved / best / 1e3 / rate:.0%}",
        f"{copy:.1f}",
        f"{copy / best:.0%}",
        f"{cublas:.1f}",
        f"{peers.get('int4pack', nan):.1f}",
        f"{peers.get('_int_mm', nan):.1f}",
        f"{best_peer / best:.2f}",
        " ".join(f"{knob}={value}" for knob, value in config.items()),
    ]
    failures = [text for _, text in results if isinstance(text, str)]
    return cells, {"peers": peers, "failures": failures, "copy": copy, "times": [(us, dict(c)) for us, c in times]}


_COLUMNS = (
    "default us",
    "best us",
    "of a copy",
    "equal copy us",
    "of it",
    "cuBLAS us",
    "int4pack us",
    "_int_mm us",
    "peer / best",
)


@click.command()
@click.option("--target", "target_text", default="opencl", show_default=True)
@click.option("--configs", default=24, show_default=True, help="random configs of each product")
@click.option("--products", multiple=True, help="beginnings of products' names; default: all")
@click.option("--rotate", "rotated_mib", default=160, show_default=True, help="MiB of all copies of a weight")
@click.option("--launches", default=64, show_default=True, help="fewest launches of a timing")
@click.option("--timings", default=9, show_default=True, help="timings, of which the median is printed")
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="build processes; default: one for each core")
@click.option("--json", "path", type=click.Path(path_type=Path), help="file for all numbers")
def main(
    target_text: str,
    configs: int,
    products: tuple[str, ...],
    rotated_mib: int,
    launches: int,
    timings: int,
    seed: int,
    workers: int | None,
    path: Path | None,
) -> None:
    """Print a line for each product: default and best config, the share of a copy's rate, PyTorch's times."""
    out, target = Console(width=220), Target(target_text)
    name_of_device = identified_device(f"{target.kind}:0")[0].name
    device = tvm.runtime.device(target.kind, 0)
    target.backend.hold_clocks(0)
    is_recorded = target.backend.check_device(0).has_recorded_runs
    timing = Timing(rotated=rotated_mib << 20, launches=launches, timings=timings, is_recorded=is_recorded)
    rate = copied_gbps(device, timing)
    how = "recorded launches" if is_recorded else "launches one by one, by the host's clock"
    table = table_of_numbers(
        "product",
        _COLUMNS,
        "best config",
        title=f"{name_of_device}, {target.kind}; {how}; a long copy moves {rate:.0f} GB/s",
    )
    numbers = dict[str, Any]()
    options = MeasureOptions(build_timeout_s=60.0, build_workers=workers or os.cpu_count() or 1)
    compile_for = None if target.kind == "cuda" else f"{target.kind}:0"
    with contextlib.closing(LocalBuilder(target, options, compile_for=compile_for)) as builder:
        for product in [*PRODUCTS, *BYTE_PRODUCTS]:
            name = name_of(product)
            if products and not any(name.startswith(each) for each in products):
                continue
            kind = ByteProduct if len(product) == 3 else Product
            cells, numbers[name] = row_of(kind(product, device, timing), builder, target, timing, rate, configs, seed)
            table.add_row(name, *cells)
            times, failures = numbers[name]["times"], numbers[name]["failures"]
            out.print(f"{name}: {len(times)} configs timed, {len(failures)} failed {failures[:2]}")
            if path is not None:
                path.write_text(json.dumps({"copy_gbps": rate, "products": numbers}, indent=1), encoding="utf-8")
    out.print(table)


if __name__ == "__main__":
    main()
