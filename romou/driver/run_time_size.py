"""A model with one size at run time: made for the largest size, then its kernels take the size as an argument.

by rows           the kernel of the largest size, with fewer groups       romou/compiler/assembly/run_time_rows.py
all other kernels one kernel, from the kernels of a config at some sizes  romou/compiler/assembly/symbolic.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm import tirx

from romou.base.errors import ModelError, NumericError
from romou.base.space import Config
from romou.compiler.assembly.assemble import CompiledModel, schedule_model
from romou.compiler.assembly.run_time_rows import HINT, by_rows, launches, not_by_rows, with_run_time_rows
from romou.compiler.assembly.symbolic import NotOneKernelError, Rules, generic_sizes, one_kernel
from romou.compiler.compilation import Compilation
from romou.compiler.frontend import ImportedModel, load_onnx
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.onnx_import import fix_shapes
from romou.compiler.frontend.padding import rule_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.options import AnyModel, CompileOptions, TuneOptions
from romou.driver.verify import check_outputs
from romou.runtime.module import RunTimeRows, RunTimeRowsModel, TunedModel

_Options = TypeVar("_Options", CompileOptions, TuneOptions)
_Shapes = Mapping[str, tuple[int, ...]]
# Sizes of shapes that rules of extents are fitted to, below the largest size and below half of it.
_POINTS = 6


def with_run_time_size(
    model: AnyModel, options: _Options, make: Callable[..., TunedModel], name: str, sizes: range, *, suffix: str = ""
) -> RunTimeRowsModel:
    """Return a model for any size of the dimension `name` up to the last of `sizes`, made like a model of that size.

    suffix: of the kernels' names.
    """
    most = sizes[-1]

    def at(size: int) -> _Options:
        dims: Any = {"dims": {**(options.dims or {}), name: size}}
        return replace(options, **dims)

    def imported_at(size: int) -> ImportedModel:
        return replace(at(size).imported(model), suffix=suffix)

    # Half as many, because strides may hide a few.
    less = most // 2 if most >= 2 * _POINTS else most - 1
    imports = {size: imported_at(size) for size in (most, less)}
    made = make(lambda: imports[most], at(most))
    program = made.program
    assert program is not None
    made.release()
    fewer = Compilation.of(imports[less], program.target).lowered().joined_at(program.joined)
    reasons = not_by_rows(program.fused, fewer.functions.fused, most, less)
    reasons = {function: reasons[function] for function in launches(program.scheduled) if function in reasons}
    growth = _Growth.of(partial(_shapes_at, model, at), most)
    lowered, whole = by_rows(program, most, reasons)
    general = _general(program, reasons, whole, imported_at, growth, most) if reasons or whole else {}
    whole = tuple(name for name in whole if name not in general)
    program = with_run_time_rows(program, lowered, general)
    ends = f" All groups are launched for any size by {', '.join(whole)}." if whole else ""
    text = f"{name} is {sizes[0]} to {most} at run time, in every kernel.{ends}"
    summary = replace(made.summary(), run_time=text)
    imported = imports[most]
    rows = RunTimeRows(
        name=name,
        most=most,
        least=sizes[0],
        inputs={each: growth.axes(each) for each in imported.inputs if growth.axes(each)},
        outputs={each: growth.axes(each) for each in imported.outputs if growth.axes(each)},
    )
    arguments = {**made.arguments(), "executable": program.executable, "host_code": program.host, "summary": summary}
    free = RunTimeRowsModel(rows=rows, program=program, **arguments)
    if summary.checked_on and made.remote is None:
        _check(free, imports[less])
        for size in sorted({sizes[0], most // 3 + 1, most - 1, most}) if general else ():
            if size in growth.sizes:
                _check(free, imported_at(size))
    return free


def _check(model: RunTimeRowsModel, imported: ImportedModel) -> None:
    """Raise NumericError unless a run at the size of an imported model has onnxruntime's outputs."""
    check = check_outputs(model, imported, model.target)
    if check.is_wrong:
        size = model.rows_in({name: shape for name, (shape, _) in imported.inputs.items()})
        raise NumericError(
            f"with {model.rows.name}={size} the outputs differ from onnxruntime's by {check.error:.2e} (relative L2)",
            hint=HINT,
        )


def _shapes_at(model: AnyModel, at: Callable[[int], CompileOptions | TuneOptions], size: int) -> _Shapes:
    """Return shapes of the model's tensors at a size."""
    proto, (shapes,) = at(size).shape_sets(model)
    assert not isinstance(proto, ImportedModel), "its dimensions are fixed"
    return shapes_of(fix_shapes(load_onnx(proto), shapes).graph)


@dataclass(frozen=True, kw_only=True)
class _Growth:
    """How the shapes of a model's tensors follow from the size.

    points: size -> shape of each tensor with a known shape.
    """

    points: Mapping[int, _Shapes]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes at which the model has shapes."""
        return tuple(self.points)

    @classmethod
    def of(cls, shapes_at: Callable[[int], _Shapes], most: int) -> _Growth:
        """Return the growth that is seen at sizes of all remainders, large and small."""
        sizes = {start - step for start in (most, most // 2) for step in range(_POINTS)} | {1, most // 3 + 1}
        points = {}
        for size in sorted(size for size in sizes if size > 0):
            try:
                points[size] = shapes_at(size)
            except ModelError:
                continue  # too small for a window
        return cls(points=points)

    def axes(self, name: str) -> tuple[tuple[int, int, int, int], ...]:
        """Return axis, factor, offset and divisor of each axis of a tensor that changes. ModelError without a rule."""
        known = {size: shapes[name] for size, shapes in self.points.items() if name in shapes}
        rank = min(map(len, known.values()), default=0)
        axes = []
        for axis in range(rank):
            extents = [(size, shape[axis]) for size, shape in known.items()]
            if len({extent for _, extent in extents}) > 1:
                if (rule := rule_of(extents)) is None:
                    raise ModelError(f"axis {axis} of {name} follows no rule: {extents}", hint=HINT)
                axes.append((axis, rule["factor"], rule["offset"], rule["divisor"]))
        return tuple(axes)

    def rules(self) -> set[tuple[int, int, int]]:
        """Return factor, offset and divisor of all axes of tensors."""
        found = set()
        for name in {name for shapes in self.points.values() for name in shapes}:
            with contextlib.suppress(ModelError):
                found |= {(factor, offset, divisor) for _, factor, offset, divisor in self.axes(name)}
        return found


def _general(
    program: CompiledModel,
    reasons: Mapping[str, str],
    whole: Sequence[str],
    imported_at: Callable[[int], ImportedModel],
    growth: _Growth,
    most: int,
) -> dict[str, tirx.PrimFunc]:
    """Return kernels for any size, of the functions in `reasons`. ModelError if one has none.

    whole: functions by rows that launch all groups. They keep their kernel if there is none for any size.
    """
    growing = sorted(growth.rules())
    generic, halved = generic_sizes(most)
    sizes = (*generic, *(halved if any(divisor > 1 for *_, divisor in growing) else halved[:1]))
    models = [Compilation.of(imported_at(s), program.target).lowered().joined_at(program.joined) for s in sizes]
    config_of = {
        name: _config(program.config_of[name], [each.task_of[name] for each in models], program.target)
        for name in (*reasons, *whole)
        if all(name in each.task_of for each in models) and name in program.config_of
    }
    modules = [
        schedule_model(
            each.functions.fused,
            each.task_of,
            {each.task_of[name].key: config for name, config in config_of.items()},
            program.target,
        )
        for each in models
    ]
    if any(launches(module) != launches(program.scheduled) for module in modules):
        if not reasons:
            return {}
        raise ModelError("the graph has other kernels for other sizes", hint=HINT)
    general = {name: _one_kernel(name, reason, modules, sizes, growing, most) for name, reason in reasons.items()}
    for name in whole:
        if config_of.get(name) == program.config_of.get(name):
            with contextlib.suppress(ModelError):
                general[name] = _one_kernel(name, "", modules, sizes, growing, most)
    return general


def _one_kernel(
    name: str,
    reason: str,
    modules: Sequence[tvm.IRModule],
    sizes: Sequence[int],
    growing: Sequence[tuple[int, int, int]],
    most: int,
) -> tirx.PrimFunc:
    for places in ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4), (0, 1, 2, 3, 5), (0, 1, 2, 3)):
        if places[-1] >= len(sizes):
            continue
        used = tuple(sizes[place] for place in places)
        rules = [partial(_extent, *numbers) for numbers in growing]
        extents = {tuple(rule(size) for size in used): rule for rule in rules}
        try:
            kernels = [modules[place][name] for place in places]
            return one_kernel(kernels, Rules(sizes=used, most=most, extents=extents))
        except NotOneKernelError as error:
            failure = error
    raise ModelError(f"the kernel {name} takes no size at run time: {reason}, and {failure}", hint=HINT)


def _config(config: Config | None, tasks: Sequence[TunableTask], target: Target) -> Config | None:
    """Return the config of the largest size, or one like it that the spaces of all sizes have."""
    if config is None:
        return None
    spaces = [task.space(target) for task in tasks]
    default = tasks[0].default_config(target)
    # Vectors along the size are no choice if the size is odd.
    same = {name: value for name, value in config.items() if value in spaces[0].knobs.get(name, ())}
    like = Config({**default, **same})
    return next(
        (each for each in (config, like) if all(space.knows(each) and space.is_valid(each) for space in spaces)),
        default,
    )


def _extent(factor: int, offset: int, divisor: int, size: Any) -> Any:
    """Return `Cut.extent` of a number or an expression."""
    scaled = size * factor + offset
    return scaled if divisor == 1 else scaled // divisor
