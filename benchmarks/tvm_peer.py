"""TVM as a peer of Romou's kernels, on the same device, without Romou's passes: dlight's default schedules, or those
that MetaSchedule finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.backend.gpu_generic import pipeline

from kernel_references import by_onnxruntime
from romou.base.errors import UsageError
from romou.compiler.operators.families.bases.convolution import convolve
from romou.compiler.operators.families.dense import Dense
from romou.compiler.operators.workload import Conv2d
from romou.devices.targets import Target
from romou.tuner.measure import verify
from torch_peer import repeats_of
from tvm_search import searched


class Tvm:
    """Kernels of TVM's default GPU pipeline. Their inputs and outputs are NCHW buffers, as TVM's graphs have them.

    trials: MetaSchedule's for each operator. 0: dlight's schedules, which are not searched. They also take the place of
        an operator without a result.
    """

    def __init__(self, target: Target, device: tvm.runtime.Device, trials: int = 0) -> None:
        self._target, self._device, self._trials = target, device, trials

    @property
    def versions(self) -> str:
        """TVM's version and the origin of its schedules."""
        return f"TVM {tvm.__version__}, " + (f"MetaSchedule, {self._trials} trials" if self._trials else "dlight")

    def calls(self, work: Conv2d | Dense) -> dict[str, Callable[..., Any]]:
        """Return the operator's kernel, a function from a number of launches to mean seconds.

        Empty if TVM cannot compile it, or if its output is wrong.
        """
        if type(work) not in (Conv2d, Dense):
            raise UsageError(f"{work.name}: TVM has no kernel of this pass of training", hint="Give another peer.")
        rng = np.random.default_rng(0)
        shapes = shapes_of(work)
        arrays = [rng.standard_normal(shape).astype(work.dtype) for shape in shapes]
        expected = (
            arrays[0] @ arrays[1] if isinstance(work, Dense) else convolve(work, arrays[0], arrays[1], by_onnxruntime)
        )
        try:
            built = self._built(work)
            function = built["main"]
            poison = verify.poison(expected.shape, work.dtype)
            tensors = [tvm.runtime.tensor(array, self._device) for array in (*arrays, poison)]
            function(*tensors)
            self._device.sync()
        except (RuntimeError, ValueError):
            return {}
        if verify.compare(tensors[-1].numpy(), expected).problem:
            return {}

        def seconds(number: int) -> float:
            timed = built.time_evaluator("main", self._device, number=number, repeat=1)
            return float(timed(*tensors).results[0])

        return {"metaschedule" if self._trials else "dlight": seconds}

    def timer(self, call: Callable[..., Any]) -> Callable[[], float]:
        """Return a function that measures seconds of one launch, as a mean over many."""
        number = repeats_of(call(1))
        return lambda: call(number)

    def _built(self, work: Conv2d | Dense) -> Any:
        target, graph = self._target.anonymous_tvm_target, graph_of(work)
        if self._trials:
            graph = searched(graph, self._target, self._trials)
        with target:
            # Functions that are scheduled stay as they are.
            scheduled = tvm.transform.Sequential(pipeline.legalize_passes(target))(graph)
        (kernel,) = (func for _, func in scheduled.functions_items() if isinstance(func, tirx.PrimFunc))
        return tirx.build(kernel.with_attr("global_symbol", "main"), target=target)


def shapes_of(work: Conv2d | Dense) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of data and weight as a graph has them."""
    if isinstance(work, Dense):
        return (work.m, work.k), (work.k, work.n)
    weight = (work.out_channels, work.in_channels // work.groups, *work.kernel)
    return (work.batch, work.in_channels, *work.in_hw), weight


def graph_of(work: Conv2d | Dense) -> tvm.IRModule:
    """Return a graph of the operator only."""
    builder = relax.BlockBuilder()
    data, weight = (
        relax.Var(name, relax.TensorType(list(shape), work.dtype))
        for name, shape in zip(("data", "weight"), shapes_of(work), strict=True)
    )
    with builder.function("main", [data, weight]):
        if isinstance(work, Dense):
            call = relax.op.matmul(data, weight)
        else:
            call = relax.op.nn.conv2d(
                data, weight, strides=work.stride, padding=work.padding, dilation=work.dilation, groups=work.groups
            )
        builder.emit_func_output(builder.emit(call))
    return builder.finalize()
