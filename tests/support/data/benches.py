"""Benches made by hand, for tests of `romou compare`."""

from __future__ import annotations

from typing import Any

import numpy as np

from romou.devices.targets import Target
from romou.runtime.module import Argument
from romou.tools.regression import Bench, OperatorBench
from romou.tools.regression.bench_data import Rounds

MEASURES = {
    "registers": 50,
    "integer_operations_in_loops": 10,
    "integer_operations_in_loops_weighted": 640,
    "divisions_in_loops": 0,
    "bytes_per_iteration": 128,
    "multiply_adds_per_iteration": 64,
    "group_bytes_per_iteration": 1024,
    "local_memory_bytes": 0,
}
DEVICE = {"kind": "opencl", "name": "A GPU", "driver": "1.0", "platform": "Platform", "is_host_cpu": False}


def operator(name: str, **given: Any) -> OperatorBench:
    """Return an operator with quiet times of 1 ms, or with the given fields."""
    argument = Argument(shape=(1, 4), dtype="float32", scope="global")
    fields: dict[str, Any] = {
        "name": name,
        "key": "0123456789abcdef",
        "function": f"fused_{name}",
        "calls": 1,
        "config": {"tile_w": 4},
        "arguments": (argument, argument),
        "source_sha256": "0" * 64,
        "source_bytes": 1000,
        "measures": MEASURES,
        "times_ms": rounds(1.0, seed=len(name)),
    }
    return OperatorBench(**fields | given)


def rounds(ms: float, *, seed: int = 0, count: int = 16) -> Rounds:
    """Return rounds of three repeats that scatter by a tenth of a percent."""
    return tuple(tuple(r) for r in ms * np.exp(np.random.default_rng(seed).normal(0, 1e-3, (count, 3))))


def bench(*operators: OperatorBench, **given: Any) -> Bench:
    """Return a timed bench of these operators."""
    fields: dict[str, Any] = {
        "model": "model.onnx",
        "target": Target("opencl").to_json(),
        "device": DEVICE,
        "romou": "0.1.0",
        "tvm": "0.27.0",
        "time": "2025-01-01T00:00:00+00:00",
        "operators": operators,
        "model_times_ms": rounds(5.0, seed=98),
        "reference_times_ms": rounds(2.0, seed=99),
    }
    return Bench(**fields | given)
