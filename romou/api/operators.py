"""Single operators, to tune without a network around them: convolutions and their gradients.

    layer = romou.operators.conv2d(in_channels=96, size=27, out_channels=256, kernel=5, padding=2, batch=128)
    tuned = romou.tune_operator(romou.operators.conv2d_backward_filter(layer), target="cuda", trials=100)
    by_filter = tuned.run({"data": x, "gradient": y})[0]

Tensors are as in ONNX: data (n, c, h, w), weights (oc, ic / groups, kh, kw). Weights are inputs, so each call packs
them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx
from tvm import relax

from romou.api.tune import tune
from romou.base.errors import UsageError
from romou.compiler.frontend import ImportedModel
from romou.compiler.operators.families import family_of
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.workload import Conv2d
from romou.compiler.tir.expressions import FLOATS
from romou.devices.targets import Target
from romou.runtime.module import TunedModel

__all__ = ["Operator", "conv2d", "conv2d_backward_filter", "conv2d_backward_input", "tune_operator"]


@dataclass(frozen=True, kw_only=True)
class Operator(ImportedModel):
    """A model of one operator with the output "output", for `tune_operator`, `romou.tune` and `romou.compile`.

    work: the operator's sizes.
    """

    work: Conv2d


def conv2d(
    *,
    in_channels: int,
    size: int | Sequence[int],
    out_channels: int,
    kernel: int | Sequence[int],
    batch: int = 1,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dtype: str = "float32",
) -> Operator:
    """Make a convolution of inputs "data" and "weight".

    Parameters
    ----------
    in_channels, out_channels
        Channels of data and output.
    size, kernel
        Rows and columns of the data and of the window: a number, or one for each.
    batch, stride, dilation, groups
        As in PyTorch.
    padding
        A number, (vertical, horizontal), or (top, left, bottom, right).
    dtype
        "float32" or "float16", of numbers in memory.

    Raises
    ------
    UsageError
        Numbers that do not fit together, or leave no pixel of output.
    """
    if dtype not in FLOATS:
        raise UsageError(f"dtype={dtype!r}: expected one of {', '.join(map(repr, FLOATS))}")
    if min(in_channels, out_channels, batch, groups) < 1 or in_channels % groups or out_channels % groups:
        raise UsageError(
            f"{in_channels} to {out_channels} channels in {groups} groups, batch {batch}: groups have to divide both"
            " numbers of channels"
        )
    in_hw, window, steps, spread = (
        _pair(*named) for named in (("size", size), ("kernel", kernel), ("stride", stride), ("dilation", dilation))
    )
    sides = (padding,) * 4 if isinstance(padding, int) else tuple(padding) * (4 // max(len(padding), 1))
    if len(sides) != 4 or min(sides) < 0:
        raise UsageError(
            f"padding={padding!r}: expected a number, (vertical, horizontal), or (top, left, bottom, right), none of"
            " them negative"
        )
    top, left, bottom, right = sides
    work = Conv2d(
        batch=batch,
        in_channels=in_channels,
        in_hw=in_hw,
        out_channels=out_channels,
        kernel=window,
        stride=steps,
        padding=(top, left, bottom, right),
        dilation=spread,
        groups=groups,
        dtype=dtype,
    )
    if min(work.out_hw) < 1:
        raise UsageError(
            f"a window of {window} with dilation {spread} does not fit into {in_hw} with padding {sides}: there would"
            " be no output"
        )
    return _operator(work, "data", "weight")


def conv2d_backward_input(layer: Operator) -> Operator:
    """Make the gradient of a convolution with respect to its data. Inputs: "gradient" (of the output) and "weight".

    layer: a convolution made by `conv2d`.
    """
    return _operator(training_passes(layer.work)[1], "gradient", "weight")


def conv2d_backward_filter(layer: Operator) -> Operator:
    """Make the gradient of a convolution with respect to its weight. Inputs: "data" and "gradient" (of the output).

    layer: a convolution made by `conv2d`.
    """
    return _operator(training_passes(layer.work)[2], "data", "gradient")


def tune_operator(
    operator: Operator,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    trials: int = 64,
    seconds: float | None = None,
    work_dir: str | Path | Literal[False] | None = None,
    seed: int = 0,
    progress: bool = False,
    variant: str | None = None,
) -> TunedModel:
    """Tune a single operator. `summary()` of the returned model has its time and config.

    Parameters
    ----------
    operator
        An operator made by a function of `romou.operators`.
    target, trials, seconds, work_dir, seed, progress
        As in `tune`, with the same errors.
    variant
        One of Boda's variants, as in `tune`: "k1conv" for example. Every candidate, and the result, is of it.

    Raises
    ------
    UsageError
        `operator` is something else, or does not have the variant on the target.
    """
    if not isinstance(operator, Operator):
        raise UsageError(
            f"an operator is made by a function of romou.operators; got {type(operator).__name__}",
            hint="romou.tune takes models.",
        )
    return tune(
        operator,
        target=target,
        trials=trials,
        seconds=seconds,
        work_dir=work_dir,
        seed=seed,
        progress=progress,
        variant=variant,
    )


def _operator(work: Conv2d, *names: str) -> Operator:
    case = family_of(work).case(work)
    shapes = [tuple(shape) for shape in (*case.inputs, *case.weights)]
    variables = [
        relax.Var(name, relax.TensorType(list(shape), work.dtype)) for name, shape in zip(names, shapes, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(case.build(*variables)))
        builder.emit_func_output(output)
    inputs = {name: (shape, work.dtype) for name, shape in zip(names, shapes, strict=True)}
    return Operator(
        mod=builder.finalize(), onnx_model=None, inputs=inputs, outputs=("output",), folded=onnx.ModelProto(), work=work
    )


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or min(both) < 1:
        raise UsageError(f"{name}={value!r}: expected a positive number, or two (rows, columns)")
    return both[0], both[1]
