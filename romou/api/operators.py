"""Single operators, to tune without a network around them.

Convolutions and their gradients are here, and `from_te` takes a developer's own computation.

    layer = romou.operators.conv2d(in_channels=96, size=27, out_channels=256, kernel=5, padding=2, batch=128)
    tuned = romou.tune_operator(romou.operators.conv2d_backward_filter(layer), target="cuda", trials=100)
    by_filter = tuned.run({"data": x, "gradient": y})[0]

Tensors of convolutions are as in ONNX: data (n, c, h, w), weights (oc, ic / groups, kh, kw). Weights are inputs, so
each call packs them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import onnx
from tvm import relax, s_tir, te, tirx

from romou.api.tune import tune_with
from romou.base.checked_options import takes_options
from romou.base.errors import UsageError, first_line, unknown_name
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.operators.families import family_of
from romou.compiler.operators.families.bases.contraction import OPAQUE
from romou.compiler.operators.families.conv2d_backward_filter import training_passes
from romou.compiler.operators.kernels.user_schedule import KernelConfig, with_schedule
from romou.compiler.operators.workload import Conv2d
from romou.compiler.tir.expressions import FLOATS, module_of
from romou.compiler.tir.primitives import FREE_IMAGES
from romou.driver.options import TuneOptions
from romou.runtime.module import TunedModel

__all__ = [
    "KernelConfig",
    "OperatorModel",
    "conv2d",
    "conv2d_backward_filter",
    "conv2d_backward_input",
    "from_te",
    "tune_operator",
]

Shape: TypeAlias = Sequence[int] | Mapping[str, int]
"""Extents of a tensor, or its dimensions' names and extents."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OperatorModel(ImportedModel):
    """A model of one operator with the output "output", for `tune_operator`, `romou.tune` and `romou.compile`.

    work: the sizes of a convolution. None for a computation of `from_te`.
    """

    work: Conv2d | None = None


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
) -> OperatorModel:
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


def conv2d_backward_input(layer: OperatorModel) -> OperatorModel:
    """Make the gradient of a convolution with respect to its data. Inputs: "gradient" (of the output) and "weight".

    layer: a convolution made by `conv2d`.
    """
    return _operator(training_passes(_work_of(layer))[1], "gradient", "weight")


def conv2d_backward_filter(layer: OperatorModel) -> OperatorModel:
    """Make the gradient of a convolution with respect to its weight. Inputs: "data" and "gradient" (of the output).

    layer: a convolution made by `conv2d`.
    """
    return _operator(training_passes(_work_of(layer))[2], "data", "gradient")


def from_te(
    computation: Callable[..., te.Tensor] | tirx.PrimFunc,
    inputs: Mapping[str, Shape | tuple[Shape, str]] | None = None,
    *,
    output: Sequence[str] | None = None,
    schedule: Callable[[s_tir.Schedule, KernelConfig], object] | None = None,
    name: str | None = None,
) -> OperatorModel:
    """Make an operator of a computation in TVM's tensor expressions or TIR.

        def add_constant(a):
            return te.compute(a.shape, lambda *i: a[i] + 3.0, name="b")

        operator = romou.operators.from_te(add_constant, {"a": (1, 8, 14, 14, 4)})

    See `romou docs own-kernels`.

    Parameters
    ----------
    computation
        A function from tensors to the output, or a TIR function with static shapes whose last parameter is the output.
    inputs
        Name -> shape, or (shape, dtype), in the order of the function's arguments. The default type is float32. A
        shape is a sequence of extents, or a mapping of each dimension's name to its extent: {"m": 37, "k": 29}. A name
        has one extent in all inputs. For a TIR function: None.
    output
        Names of the output's dimensions, which have the extents of the inputs' dimensions. None: they are not checked.
    schedule
        A function of TVM's schedule and a `KernelConfig`, which declares knobs and schedules the computation for their
        values. None: Romou recognises the computation by its blocks, and uses its own schedule.
    name
        Name of the kernel. None: the function's.

    Raises
    ------
    UsageError
        The computation cannot be made, a named dimension has two extents, or the schedule fails with the first choice
        of each knob, or makes no kernel.
    """
    name = name or _name_of(computation)
    extents = _named_extents(inputs or {})
    func = _function_of(computation, inputs, name)
    *read, written = func.params
    if output is not None:
        _check_output(name, [int(extent) for extent in written.shape], output, extents)
    if schedule is not None:
        func = with_schedule(func, name, schedule)
    attributes = {FREE_IMAGES: True, "op_pattern": OPAQUE}
    out = relax.TensorType([int(d) for d in written.shape], str(written.dtype))

    def call(*variables: relax.Expr) -> relax.Expr:
        kernel = func.with_attrs(attributes).without_attr("global_symbol")
        return relax.call_tir(relax.BlockBuilder.current().add_func(kernel, name), variables, out_ty=out)

    return _model({str(p.name): (tuple(int(d) for d in p.shape), str(p.dtype)) for p in read}, call)


def _model(
    inputs: dict[str, tuple[tuple[int, ...], str]], build: Callable[..., relax.Expr], work: Conv2d | None = None
) -> OperatorModel:
    mod, folded = module_of(inputs, build), onnx.ModelProto()
    return OperatorModel(mod=mod, onnx_model=None, inputs=inputs, outputs=("output",), folded=folded, work=work)


@takes_options(TuneOptions)
def tune_operator(operator: OperatorModel, options: TuneOptions) -> TunedModel:
    """Tune a single operator, as `tune` does a model. `summary()` of the returned model has its time and config.

    Parameters
    ----------
    operator
        An operator made by a function of `romou.operators`.

    Raises
    ------
    UsageError
        `operator` is something else, or does not have the variant on the target, or an option is wrong.
    NumericError, DeviceError, RecordError, CompatError
        As in `tune`.
    """
    if not isinstance(operator, OperatorModel):
        raise UsageError(
            f"an operator is made by a function of romou.operators; got {type(operator).__name__}",
            hint="romou.tune takes models.",
        )
    return tune_with(operator, options)


def _work_of(layer: OperatorModel) -> Conv2d:
    if layer.work is None:
        raise UsageError("only convolutions of romou.operators.conv2d have gradients here")
    return layer.work


def _name_of(computation: object) -> str:
    symbol = computation.attrs.get("global_symbol", None) if isinstance(computation, tirx.PrimFunc) else None
    name = str(symbol or getattr(computation, "__name__", "kernel"))
    return name if name.isidentifier() else "kernel"


def _function_of(
    computation: Callable[..., te.Tensor] | tirx.PrimFunc,
    inputs: Mapping[str, Shape | tuple[Shape, str]] | None,
    name: str,
) -> tirx.PrimFunc:
    """Return the computation as a function with static shapes.

    Raises
    ------
    UsageError
        The computation is neither, raises an exception, or its shapes are not static.
    """
    if isinstance(computation, tirx.PrimFunc):
        func = computation
        if inputs is not None:
            raise UsageError(f"{name!r} is a TIR function, which has its shapes itself", hint="Leave inputs out.")
    else:
        if not callable(computation) or not inputs:
            raise UsageError(
                f"from_te takes a function of tensors with the shapes of its inputs, or a TIR function;"
                f" got {type(computation).__name__} and inputs={inputs!r}",
                hint='For example from_te(lambda a: te.compute(a.shape, ...), {"a": (8, 16, 4)}).',
            )
        tensors = [te.placeholder(*_shape_and_type(key, value), key) for key, value in inputs.items()]
        try:
            func = te.create_prim_func([*tensors, computation(*tensors)])
        except Exception as error:  # of the user's function, by any type
            text = f"the computation {name!r} cannot be made: {type(error).__name__}: {first_line(error)}"
            raise UsageError(text) from error
    buffers = [p for p in func.params if isinstance(p, tirx.Buffer)]
    is_static = all(isinstance(extent, tirx.IntImm) for buffer in buffers for extent in buffer.shape)
    if len(buffers) < 2 or len(buffers) < len(func.params) or not is_static:
        raise UsageError(
            f"{name!r} needs static shapes, at least one input, and the output as its last parameter;"
            f" its parameters are {', '.join(map(str, func.params))}"
        )
    return func


def _shape_and_type(name: str, given: Shape | tuple[Shape, str]) -> tuple[tuple[int, ...], str]:
    shape, dtype = _split(given)
    extents = tuple(shape.values() if isinstance(shape, Mapping) else shape)
    if not extents or not all(isinstance(extent, int) and extent > 0 for extent in extents):
        raise UsageError(f"inputs[{name!r}]={given!r}: expected a shape of positive numbers, or (shape, dtype)")
    return extents, dtype


def _split(given: Shape | tuple[Shape, str]) -> tuple[Shape, str]:
    if not isinstance(given, Mapping) and len(given) == 2 and isinstance(given[1], str):
        return cast(tuple[Shape, str], given)
    return cast(Shape, given), "float32"


def _named_extents(inputs: Mapping[str, Shape | tuple[Shape, str]]) -> dict[str, int]:
    """Return the extent of each named dimension. UsageError if a name has two extents."""
    first: dict[str, tuple[str, int]] = {}
    for key, given in inputs.items():
        shape, _ = _split(given)
        for dimension, extent in shape.items() if isinstance(shape, Mapping) else ():
            other, known = first.setdefault(dimension, (key, extent))
            if known != extent:
                raise UsageError(
                    f"dimension {dimension!r} is {known} in inputs[{other!r}] and {extent} in inputs[{key!r}]",
                    hint="A name stands for one extent: give the other dimension another name.",
                    dimension=dimension,
                )
    return {dimension: extent for dimension, (_, extent) in first.items()}


def _check_output(name: str, shape: Sequence[int], names: Sequence[str], extents: Mapping[str, int]) -> None:
    """Raise UsageError if the output's shape is not the one that its dimensions' names say."""
    for dimension in names:
        if dimension not in extents:
            raise unknown_name("dimension", dimension, extents)
    said = [extents[dimension] for dimension in names]
    if list(shape) != said:
        text = ", ".join(f"{dimension}={extent}" for dimension, extent in zip(names, said, strict=True))
        raise UsageError(f"the output of {name!r} is {tuple(shape)}, where its dimensions say ({text})")


def _operator(work: Conv2d, *names: str) -> OperatorModel:
    case = family_of(work).case(work)
    shapes = (*case.inputs, *case.weights)
    return _model({name: (shape, work.dtype) for name, shape in zip(names, shapes, strict=True)}, case.build, work)


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or min(both) < 1:
        raise UsageError(f"{name}={value!r}: expected a positive number, or two (rows, columns)")
    return both[0], both[1]
