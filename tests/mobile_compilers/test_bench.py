"""benchmarks/bench_mobile_static.py: the sample, the kernels it compares, and how it counts."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Sequence

import pytest
from tvm.script import tirx as T

import bench_mobile_static
from romou.base.errors import BuildError
from romou.compiler.importing import import_onnx
from romou.compiler.operators.analysis.executed import trip_loops
from romou.devices.mobile_compilers import KernelStatistics, LoopStatistics
from romou.tools.inspection.kernels import inspect_function


def rows() -> list[dict[str, str]]:
    with bench_mobile_static.SAMPLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_sample_holds_every_family() -> None:
    sample = rows()
    assert len(sample) == 20
    assert {row["op"] for row in sample} == {
        "conv1x1",
        "conv1x3",
        "conv3x1",
        "conv1x7",
        "conv7x1",
        "conv3x3",
        "conv5x5",
        "conv7x7",
        "depthwise",
    }
    by_name = {bench_mobile_static.name_of(row): row for row in sample}
    assert bench_mobile_static.multiply_adds_of(by_name["conv3x3 64x56x56 -> 64 /1"]) == 64 * 56 * 56 * 64 * 9
    assert bench_mobile_static.multiply_adds_of(by_name["depthwise 512x14x14 -> 512 /1"]) == 512 * 14 * 14 * 9


def test_each_side_makes_its_kernels() -> None:
    row = next(row for row in rows() if bench_mobile_static.name_of(row) == "conv1x1 256x28x28 -> 256 /1")
    graph = import_onnx(bench_mobile_static.model_of(row)).mod
    for (kernel,) in bench_mobile_static.romou_candidates(graph, "g76", 2, seed=0):
        # Data, weight and output are images. The bias is read once for each output and is a buffer.
        assert sorted(re.findall(r"(__(?:read|write)_only) image2d", kernel.source)) == [
            "__read_only",
            "__read_only",
            "__write_only",
        ]
    image = bench_mobile_static.tvm_kernels(graph, in_images=True)
    assert any("READ_IMAGEF(" in kernel.source.split("#endif")[-1] for kernel in image)
    (buffer,) = bench_mobile_static.tvm_kernels(graph, in_images=False)
    assert "image2d" not in buffer.source
    assert bench_mobile_static.lanes_of(buffer.lowered, 8) > 0


def test_idle_lanes_count() -> None:
    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((40,), "float32")) -> None:
        for group in T.thread_binding(5, thread="blockIdx.x"):
            for item in T.thread_binding(8, thread="threadIdx.x"):
                with T.sblock("fill"):
                    i = T.axis.spatial(40, group * 8 + item)
                    a[i] = T.float32(1)

    (kernel,) = inspect_function(func, bench_mobile_static.TARGET)
    assert bench_mobile_static.lanes_of(kernel.lowered, 8) == 5 * 8
    assert bench_mobile_static.lanes_of(kernel.lowered, 64) == 5 * 64


def test_instructions_of_all_work_items_over_needed_multiply_adds() -> None:
    row = next(row for row in rows() if bench_mobile_static.name_of(row) == "conv1x1 256x28x28 -> 256 /1")
    kernels = next(
        bench_mobile_static.romou_candidates(import_onnx(bench_mobile_static.model_of(row)).mod, "g76", 0, seed=0)
    )
    per_turn = kernels[0].traffic.multiply_adds
    loop = LoopStatistics(instructions=2 * per_turn, multiply_adds=per_turn, memory=8)

    def made(code: LoopStatistics) -> KernelStatistics:
        return KernelStatistics(
            name="k",
            gpu="g76",
            instructions=0,
            registers=8,
            waves=None,
            occupancy=1.0,
            spills=0,
            private_memory_bytes=0,
            local_memory_bytes=0,
            cycles=None,
            cycles_by_unit={},
            loops=1,
            code=code,
        )

    needed = bench_mobile_static.multiply_adds_of(row)
    matched = bench_mobile_static.result_of(
        kernels, [made(LoopStatistics(instructions=0, multiply_adds=0, memory=0, inner=(loop,)))], needed
    )
    assert matched.is_exact
    # Computation for pixels that only fill up a work group counts, too.
    computed = bench_mobile_static.lanes_of(kernels[0].lowered, 8) * trip_loops(kernels[0].lowered).total
    assert computed >= needed
    assert matched.per_multiply_add == pytest.approx(2 * computed / needed)
    odd = LoopStatistics(instructions=3 * (per_turn + 1), multiply_adds=per_turn + 1, memory=8)
    unmatched = bench_mobile_static.result_of(
        kernels, [made(LoopStatistics(instructions=0, multiply_adds=0, memory=0, inner=(odd,)))], needed
    )
    assert not unmatched.is_exact
    assert unmatched.per_multiply_add == pytest.approx(3 * computed / needed)


Answers = list[list[KernelStatistics] | BuildError]


def test_instructions_of_adreno_are_executed(compile_once: Callable[[Sequence[str], str], Answers]) -> None:
    row = next(row for row in rows() if bench_mobile_static.name_of(row) == "conv1x1 256x28x28 -> 256 /1")
    graph, needed = import_onnx(bench_mobile_static.model_of(row)).mod, bench_mobile_static.multiply_adds_of(row)
    (kernel,) = next(bench_mobile_static.romou_candidates(graph, "a630", 0, seed=0))
    (answer,) = compile_once([kernel.source], "a630")
    assert isinstance(answer, list)
    by_trips, is_matched = bench_mobile_static.by_trips(kernel, answer[0])
    assert is_matched
    # It has no conditional code but for a guard.
    executed = bench_mobile_static.result_of([kernel], answer, needed)
    assert executed.is_exact
    assert executed.per_multiply_add * needed == pytest.approx(by_trips.instructions, rel=0.02)
    assert executed.per_multiply_add * needed != by_trips.instructions
    unknown = dataclasses.replace(answer[0], machine_code=answer[0].machine_code.replace("mad.f32", "mad.f33"))
    refused = bench_mobile_static.result_of([kernel], [unknown], needed)
    assert not refused.is_exact
    assert refused.per_multiply_add * needed == pytest.approx(by_trips.instructions)


def test_code_that_few_waves_execute(compile_once: Callable[[Sequence[str], str], Answers]) -> None:
    """Trip counts take it for code of all waves."""

    @T.prim_func(s_tir=True)
    def func(a: T.Buffer((4096,), "float32")) -> None:
        for group in T.thread_binding(64, thread="blockIdx.x"):
            for item in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("fill"):
                    i = T.axis.spatial(4096, group * 64 + item)
                    a[i] = T.float32(1)
                    if i < 64:
                        for _ in range(100):
                            a[i] = a[i] * T.float32(3) + T.float32(2)

    (kernel,) = inspect_function(func, bench_mobile_static.TARGET)
    (answer,) = compile_once([kernel.source], "a630")
    assert isinstance(answer, list)
    executed, is_exact = bench_mobile_static.instructions_of(kernel, answer[0])
    assert is_exact
    assert executed.instructions < 0.1 * bench_mobile_static.by_trips(kernel, answer[0])[0].instructions
