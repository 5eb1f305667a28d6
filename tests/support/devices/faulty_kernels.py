"""Candidates with every possible fault, for the tests of measuring. Worker processes import this file."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script import tirx as T

from romou.base.errors import InvalidConfigError
from romou.base.space import Config, Space
from romou.compiler.assembly.kernel import build_task
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target

SHAPE = (1, 1, 5, 5, 4)
FAULTS = (
    "none",
    "invalid",
    "build_crash",
    "build_hang",
    "build_bug",
    "no_build",
    "bad_source",
    "hang",
    "crash",
    "wrong",
    "unwritten",
    "adds_up",
    "slow",
)


def task() -> TunableTask:
    """Return a depthwise 1x1 convolution of four channels. Data and output have the shape SHAPE, the weight (1, 1, 1,
    4).
    """
    return task_of(conv(4, (5, 5), 4, (1, 1), groups=4), has_epilogue=False)


def config(fault: str = "none") -> Config:
    """Return the default config with the fault that `build` reads."""
    return task().default_config(Target("opencl")).replace(fault=fault)


@dataclass(frozen=True)
class FaultyTask(TunableTask):
    """The operator of this file, with the fault as its only knob."""

    faults: tuple[str, ...] = ()

    def space(self, target: Target) -> Space:
        space = Space()
        for name, value in super().default_config(target).items():
            space.define_knob(name, [value])
        space.define_knob("fault", self.faults)
        return space

    def default_config(self, target: Target) -> Config:
        return super().default_config(target).replace(fault="none")


def faulty_task(*faults: str) -> FaultyTask:
    made = task()
    return FaultyTask(made.key, made.name, made.family, made.func, made.calls, made.flops, faults=("none", *faults))


def module(main: tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": main.with_attr("global_symbol", "main")})


def endless_reference(task: TunableTask) -> dict[str, Callable[..., None]]:
    """Return a reference that takes longer than any time limit."""
    time.sleep(1000)
    return {}


def wrong() -> tvm.IRModule:
    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane] * weight[0, 0, 0, lane] + T.float32(
                    0.25
                )

    return module(main)


def scaled(factor: float) -> tvm.IRModule:
    """Return a kernel that computes the right output times a factor."""

    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = (
                    data[0, 0, i // 5, i % 5, lane] * weight[0, 0, 0, lane] * T.float32(factor)
                )

    return module(main)


def beside(first: int, where: str = "out") -> tvm.IRModule:
    """Return a kernel that writes the right output and three more numbers.

    The numbers start at position `first`, counted from the beginning of the output or of the data.
    """

    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane] * weight[0, 0, 0, lane]
            if i < 3:
                if T.bool(where == "out"):
                    out[0, 0, 0, 0, first + i] = T.float32(1)
                else:
                    data[0, 0, 0, 0, first + i] = T.float32(1)

    return module(main)


def unwritten() -> tvm.IRModule:
    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(24, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane] * weight[0, 0, 0, lane]

    return module(main)


def adds_up() -> tvm.IRModule:
    """Return a kernel that is right only in the first run: it replaces the poison, and later runs add to the output."""

    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane] * weight[
                    0, 0, 0, lane
                ] + T.if_then_else(
                    T.isnan(out[0, 0, i // 5, i % 5, lane]), T.float32(0), out[0, 0, i // 5, i % 5, lane]
                )

    return module(main)


def hang() -> tvm.IRModule:
    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for _i in T.thread_binding(1, thread="threadIdx.x"):
            out[0, 0, 0, 0, 0] = T.float32(0)
            while out[0, 0, 0, 0, 0] < T.float32(10):
                out[0, 0, 0, 0, 0] = T.sin(out[0, 0, 0, 0, 0] + data[0, 0, 0, 0, 0])

    return module(main)


def slow() -> tvm.IRModule:
    """Return a kernel that is right, but takes some tenths of a second on any processor."""

    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            for lane in range(4):
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane]
                for _turn in T.serial(60000):
                    out[0, 0, i // 5, i % 5, lane] = T.sin(
                        out[0, 0, i // 5, i % 5, lane] + data[0, 0, i // 5, i % 5, lane]
                    )
                # No sine is above 2, but the compiler cannot prove it.
                out[0, 0, i // 5, i % 5, lane] = data[0, 0, i // 5, i % 5, lane] * weight[
                    0, 0, 0, lane
                ] + T.if_then_else(out[0, 0, i // 5, i % 5, lane] > T.float32(2), T.float32(1), T.float32(0))

    return module(main)


def crash() -> tvm.IRModule:
    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        T.evaluate(T.call_extern("int32", "abort"))
        for i in T.thread_binding(25, thread="threadIdx.x"):
            out[0, 0, i // 5, i % 5, 0] = data[0, 0, i // 5, i % 5, 0]

    return module(main)


def bad_source() -> tvm.IRModule:
    @T.prim_func
    def main(
        data: T.Buffer((1, 1, 5, 5, 4), "float32"),
        weight: T.Buffer((1, 1, 1, 4), "float32"),
        out: T.Buffer((1, 1, 5, 5, 4), "float32"),
    ):
        for i in T.thread_binding(25, thread="threadIdx.x"):
            out[0, 0, i // 5, i % 5, 0] = T.call_extern("float32", "no_such_function", data[0, 0, i // 5, i % 5, 0])

    return module(main)


# Parsed only when built: parsing all of them would take each worker process a second.
_MODULES: dict[str, Callable[[], tvm.IRModule]] = {
    made.__name__: made for made in (wrong, unwritten, adds_up, hang, crash, slow, bad_source)
}
_MODULES |= {
    "behind": functools.partial(beside, 100),
    "before": functools.partial(beside, -3),
    "behind_data": functools.partial(beside, 103, "data"),
}
# The rounding of TF32, and an error of 1%.
_MODULES |= {"rounded": functools.partial(scaled, 1 + 2.0**-11), "off": functools.partial(scaled, 1.01)}


def build(made: TunableTask, chosen: Config, target: Target) -> tvm.runtime.Module:
    """Build as `romou.compiler.assembly.kernel.build_task` does, unless the config has a fault."""
    fault = str(chosen.get("fault", "none"))
    if fault == "invalid":
        raise InvalidConfigError("this config has no schedule")
    if fault == "build_crash":
        os.abort()
    if fault == "build_hang":
        time.sleep(3600)
    if fault == "build_bug":
        raise KeyError("a bug of ours")
    if fault == "no_build":
        raise MemoryError
    if fault in _MODULES:
        return tvm.tirx.build(_MODULES[fault](), target=target.tvm_target)
    return build_task(made, made.default_config(target), target)
