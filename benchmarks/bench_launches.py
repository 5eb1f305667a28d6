#!/usr/bin/env python3
"""Measures the cost of a launch with a chain of tiny kernels. Each kernel reads the output of the one before it.

    python benchmarks/bench_launches.py --target vulkan                 100 kernels: a wait after each, one wait after all, recorded once
    python benchmarks/bench_launches.py --target vulkan --target opencl --target cuda --length 100 --json launches.json

The wall time of a chain is the median of several, taken alternately. On Vulkan a wait ends a submission, so the first
two columns are a hundred submissions and one. MetaGPU ran equal kernels on an NVIDIA GPU 1.86 times as fast by Vulkan
as by OpenCL and 1.54 times as fast as by CUDA, and attributes that to kernel batching.
"""  # noqa: E501

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import tirx

from romou.base.errors import DeviceError
from romou.devices.targets import Target

SIZE = 1024
STEP = """
@I.ir_module
class Step:
    @T.prim_func
    def main(A: T.Buffer((1024,), "float32"), B: T.Buffer((1024,), "float32")):
        for block in T.thread_binding(16, thread="blockIdx.x"):
            for i in T.thread_binding(64, thread="threadIdx.x"):
                B[block * 64 + i] = A[block * 64 + i] * T.float32(0.5) + T.float32(1)
"""


def measure(text: str, length: int, repeat: int) -> dict[str, Any]:
    """Return the microseconds of a launch in a chain, measured in three ways.

    RuntimeError if the chain computes wrong results.
    """
    target = Target(text)
    device = target.backend.device(target.backend.device_index(None))
    step = tirx.build(tvm.script.from_source(STEP), target=target.tvm_target)["main"]
    start = np.random.default_rng(0).standard_normal(SIZE).astype("float32")
    a, b = tvm.runtime.tensor(start, device), tvm.runtime.empty((SIZE,), "float32", device)

    def chain(wait: bool) -> None:
        for i in range(length):
            step(*((a, b) if i % 2 == 0 else (b, a)))
            if wait:
                device.sync()

    ways: dict[str, Callable[[], None]] = {"a wait after each": lambda: chain(True), "one wait": lambda: chain(False)}
    chain(False)
    expected = start
    for _ in range(length):
        expected = expected * np.float32(0.5) + np.float32(1)
    if not np.allclose((b if length % 2 else a).numpy(), expected, rtol=1e-4):
        raise RuntimeError(f"{text}: a chain of {length} kernels computes wrong results")
    try:
        if target.backend.can_record(target.backend.facts(device.index)):
            captured = target.backend.record(device, None, lambda: chain(False))
            ways["recorded"] = captured.launch
    except (DeviceError, AttributeError) as error:
        click.echo(f"{text}: not recorded: {error}", err=True)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, run in ways.items():
            device.sync()
            begun = time.perf_counter()
            run()
            device.sync()
            times[name].append(time.perf_counter() - begun)
    return {
        "target": text,
        "device": device.device_name,
        "us": {name: 1e6 * statistics.median(seconds) / length for name, seconds in times.items()},
    }


@click.command(help=__doc__.partition("\n")[0] if __doc__ else None)
@click.option("--target", "targets", multiple=True, default=("vulkan",), show_default=True)
@click.option("--length", default=100, show_default=True, help="kernels in the chain")
@click.option("--repeat", default=15, show_default=True, help="chains of which the median is taken")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path))
def main(targets: tuple[str, ...], length: int, repeat: int, output: Path | None) -> None:
    rows = [measure(text, length, repeat) for text in targets]
    table = Table(title=f"microseconds a launch, chain of {length} kernels", title_justify="left")
    for name in ("device", "a wait after each", "one wait", "ratio", "recorded", "ratio"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for each in rows:
        us = each["us"]
        slowest = us["a wait after each"]
        cells = [f"{us[name]:.2f}" if name in us else "-" for name in ("a wait after each", "one wait", "recorded")]
        ratios = [f"{slowest / us[name]:.2f}" if name in us else "-" for name in ("one wait", "recorded")]
        table.add_row(f"{each['target']}: {each['device']}", cells[0], cells[1], ratios[0], cells[2], ratios[1])
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
