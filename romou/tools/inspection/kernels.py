"""The inspection of a kernel: its source, its lowered TIR, and the IR before and after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx
from tvm.tirx.build import split_host_device_mods
from tvm_ffi.structural import structural_equal

import romou.compiler.pipeline as pipeline
from romou.base.headline import Headline
from romou.compiler.graph.memory.workspaces import with_parameters
from romou.compiler.operators.analysis.counts import (
    IntegerOperations,
    TextOperations,
    Traffic,
    busiest_traffic,
    count_integer_operations,
    count_text_operations,
)
from romou.compiler.operators.analysis.executed import UnknownTripCountError, executed_instructions, trip_loops
from romou.compiler.operators.analysis.registers import RegisterEstimate, estimate_registers
from romou.compiler.tir.primitives import tensors_of
from romou.devices.backends.launch import work_group

if TYPE_CHECKING:
    from romou.devices.mobile_compilers import KernelStatistics
    from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class PassStep:
    """A pass by TVM's name, and the IR as text before and after it. The texts are equal if it changed nothing."""

    name: str
    before: str
    after: str

    @property
    def has_changed(self) -> bool:
        """True if the pass changed the IR."""
        return self.before != self.after


@dataclass(frozen=True, kw_only=True, repr=False)
class InspectedKernel(Headline):
    """A kernel with its source, its lowered TIR and its measures.

    name: the kernel's name in `source`.
    function: name of the model's function, which may have several kernels.
    task, config: task and config of Romou's templates, empty if TVM's default schedule makes the kernel.
    tensors: parameters and workspaces of the function. The kernel takes some of them.
    source, lowered: OpenCL C or CUDA C++, and TIR before code generation.
    work_group: sides (x, y, z) of the work group, in work-items.
    passes: the passes over the function and its kernels, empty unless requested.
    nodes: names of the ONNX nodes that the function computes, empty if it is of no ONNX model.
    """

    name: str
    function: str
    task: str
    config: Mapping[str, Any]
    tensors: tuple[tirx.Buffer, ...]
    source: str
    lowered: tirx.PrimFunc
    work_group: tuple[int, int, int]
    passes: tuple[PassStep, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The kernel's name, its ONNX nodes and its work group."""
        return f"{self.name}; {', '.join(self.nodes) or 'no ONNX node'}; work group {self.work_group}"

    @cached_property
    def registers(self) -> RegisterEstimate:
        """Estimated 32-bit registers of a work-item: the same numbers that pruning judges."""
        return estimate_registers(self.lowered)

    @cached_property
    def traffic(self) -> Traffic:
        """Traffic of one iteration of the innermost reduction loop."""
        return busiest_traffic(self.lowered)

    @cached_property
    def operations(self) -> IntegerOperations:
        """Integer operations inside loops."""
        return count_integer_operations(self.lowered)

    @cached_property
    def text_operations(self) -> TextOperations:
        """Divisions and modulos left in the source's loops."""
        return count_text_operations(self.source)

    def executed_instructions(self, compiled: KernelStatistics) -> float | None:
        """Return the instructions that a work-item executes, all conditions true. None if trip counts are unknown.

        Parameters
        ----------
        compiled
            Statistics of the kernel by a mobile GPU's compiler.
        """
        try:
            executed = executed_instructions(compiled.code, trip_loops(self.lowered))
        except UnknownTripCountError:
            return None
        return None if executed is None else executed.instructions

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the IR as text."""
        return {
            "name": self.name,
            "function": self.function,
            "task": self.task,
            "nodes": list(self.nodes),
            "config": dict(self.config),
            "work_group": list(self.work_group),
            "registers": round(self.registers.live),
            "needed_registers": self.registers.needed,
            "bytes_per_iteration": self.traffic.bytes_loaded,
            "buffer_bytes": self.traffic.buffer_bytes,
            "image_bytes": self.traffic.image_bytes,
            "local_bytes": self.traffic.local_bytes,
            "multiply_adds_per_iteration": self.traffic.multiply_adds,
            "integer_operations_in_loops": self.operations.in_loops,
            "integer_operations_in_loops_weighted": self.operations.in_loops_weighted,
            "divisions_in_loops": self.operations.divisions_in_loops,
            "source": self.source,
            "passes": [{"name": p.name, "before": p.before, "after": p.after} for p in self.passes],
        }


@tvm.instrument.pass_instrument
class _Recorder:
    """An instrument that keeps the IR around every pass, except sequences of passes."""

    def __init__(self) -> None:
        self.steps: list[PassStep] = []
        self._before: list[tuple[Any, str]] = []

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name != "sequential":
            self._before.append((mod, mod.script()))

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name != "sequential":
            old, before = self._before.pop()
            # A pass that only renames does not count as a change.
            self.steps.append(
                PassStep(
                    name=str(info.name), before=before, after=before if structural_equal(old, mod) else mod.script()
                )
            )


def inspect_function(
    func: tirx.PrimFunc,
    target: Target,
    *,
    name: str = "main",
    task: str = "",
    config: Mapping[str, Any] | None = None,
    with_passes: bool = False,
    nodes: Sequence[str] = (),
    tir_pipeline: str = pipeline.NAME,
    without: Sequence[str] = (),
) -> list[InspectedKernel]:
    """Lower a scheduled function as a build does and return its kernels. No device is needed.

    func: a function whose loops are bound to work groups and work-items.
    nodes: names of the function's ONNX nodes.
    tir_pipeline: TVM's name of the lowering pipeline. "default" is TVM's own.
    without: names of passes to disable.
    """
    recorder = _Recorder()
    bound = tirx.transform.BindTarget(target.tvm_target)(tvm.IRModule({name: func.with_attr("global_symbol", name)}))
    lower, _, finish = tirx.get_tir_pipeline(tir_pipeline)
    with tvm.transform.PassContext(instruments=[recorder] if with_passes else [], disabled_pass=list(without)):
        _, devices = split_host_device_mods(lower(bound))
        kernels = [(device, finish()(mod)) for device, mod in devices.items()]
    generate = tvm.get_global_func(f"target.build.{target.backend.tvm_kind}")
    tensors = tuple(tensors_of(with_parameters(func)[0]))
    inspected = []
    for device, mod in kernels:
        for var, lowered in mod.functions_items():
            single = tvm.IRModule({var: lowered}, attrs=mod.attrs)
            kernel = str(lowered.attrs.get("global_symbol", var.name_hint))
            inspected.append(
                InspectedKernel(
                    name=kernel,
                    function=name,
                    task=task,
                    config=config or {},
                    tensors=tensors,
                    source=target.backend.split_kernels(generate(single, device).inspect_source())[kernel],
                    lowered=lowered,
                    work_group=work_group(lowered),
                    passes=tuple(recorder.steps),
                    nodes=tuple(nodes),
                )
            )
    pipeline.dump_source(name, lambda: "\n".join(kernel.source for kernel in inspected))
    return inspected
