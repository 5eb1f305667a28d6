"""Registers for loads ahead of their use: straight code adds up, loops that stay, barriers and conditions end it; the script's statistics."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tvm.script import tirx as T

from romou.inspection.estimates import register_use

SCRIPT = Path(__file__).parents[2] / "scripts/bench_registers.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_registers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def ahead_of(trips: int, loads: int, *, has_barrier: bool = False) -> float:
    """Of a loop that adds up `loads` numbers a turn."""

    @T.prim_func(s_tir=True, private=True)
    def once(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * T.float32(2)

    @T.prim_func(s_tir=True, private=True)
    def twice(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * a[i + 2048]

    @T.prim_func(s_tir=True, private=True)
    def with_barrier(a: T.Buffer((4096,), "float32"), b: T.Buffer((4096,), "float32")) -> None:
        for i in range(trips):
            b[i] = a[i] * a[i + 2048]
            T.evaluate(T.tvm_storage_sync("shared"))

    return float(register_use(with_barrier if has_barrier else (once, twice)[loads - 1]).ahead)


def test_loads_of_straight_code_add_up() -> None:
    assert ahead_of(1, 2) == pytest.approx(2 * ahead_of(1, 1))


def test_short_loops_are_unrolled_and_long_ones_are_not() -> None:
    assert ahead_of(8, 1) == pytest.approx(8 * ahead_of(1, 1))
    assert ahead_of(1000, 1) == pytest.approx(ahead_of(1, 1))


def test_no_load_passes_a_barrier() -> None:
    assert ahead_of(8, 2, has_barrier=True) == pytest.approx(ahead_of(1, 2))


def test_rank_correlation(bench: ModuleType) -> None:
    values = np.asarray([1, 2, 2, 3])
    assert list(bench.ranks(values)) == [0, 1.5, 1.5, 3]
    assert bench.rank_correlation(values, values**3) == pytest.approx(1)
    assert bench.rank_correlation(values, -values) == pytest.approx(-1)


def test_random_kernels_cover_all_operators(bench: ModuleType) -> None:
    kernels = list(bench.random_kernels(len(bench.OPERATORS), seed=0))
    assert len({name for name, _, _ in kernels}) == len(bench.OPERATORS)
    assert all(usage.needed_registers <= usage.registers for _, _, usage in kernels)
