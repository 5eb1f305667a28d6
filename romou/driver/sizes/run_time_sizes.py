"""A model with sizes at run time: made for the largest sizes, then its kernels take the sizes as arguments.

The unscheduled functions of the model are compared at sizes of all remainders. Each integer in them that depends on
sizes has to follow one rule (romou/compiler/assembly/size_rules.py), else the model is refused. Their kernels are, by
the first of these that there is:

by rows        the kernel of the largest size, with fewer groups          romou/compiler/assembly/run_time_rows.py
of a config    scheduled with sizes as variables, its tiles by the bound  romou/compiler/operators/schedule_template.py
plain          a work-item for each element                               romou/compiler/assembly/default_schedules.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm import s_tir, tirx

from romou.base.errors import DeviceError, InvalidConfigError, ModelError, NumericError
from romou.base.space import Config
from romou.compiler.assembly.assemble import CompiledModel, schedule_model
from romou.compiler.assembly.default_schedules import device_functions, simplest_schedule
from romou.compiler.assembly.run_time_rows import HINT, by_rows, launches, with_rows, with_run_time_rows
from romou.compiler.assembly.size_rules import NeedsPointError, NotOneKernelError, Point
from romou.compiler.assembly.unscheduled import Unscheduled
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.graph.memory.memory import plan_memory
from romou.compiler.graph.memory.workspaces import with_parameters
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.kernels.recurrent import is_time_loop, schedule_time_loop
from romou.compiler.passes.whole_buffers import with_whole_buffers
from romou.compiler.tir.primitives import SIZES
from romou.compiler.tir.slices import slices_of, with_slices
from romou.devices.targets import Target
from romou.driver.check.verify import check_outputs
from romou.driver.options import AnyModel, CompileOptions, TuneOptions
from romou.runtime.module import RunTimeRowsModel, RunTimeSizes, TunedModel

logger = logging.getLogger("romou")

_Options = TypeVar("_Options", CompileOptions, TuneOptions)
# Random inputs that outputs have to be wrong for
_SEEDS = 5


def with_run_time_sizes(
    model: AnyModel,
    options: _Options,
    make: Callable[..., TunedModel],
    dims: Mapping[str, range],
    *,
    suffix: str = "",
    largest: ImportedModel | None = None,
) -> RunTimeRowsModel:
    """Return a model for any sizes of dimensions up to the last of their ranges, made like a model of these.

    suffix: of the kernels' names.
    largest: the model of the largest sizes, if it is imported already.
    """
    most: Point = tuple(sizes[-1] for sizes in dims.values())

    def at(sizes: Point) -> _Options:
        fixed: Any = {"dims": {**(options.dims or {}), **dict(zip(dims, sizes, strict=True))}}
        return replace(options, **fixed)

    def imported_at(sizes: Point) -> ImportedModel:
        return replace(at(sizes).imported(model), suffix=suffix)

    first = imported_at(most) if largest is None else replace(largest, suffix=suffix)
    made = make(lambda: first, at(most))
    program = made.built.program
    assert program is not None
    made.release()
    states = _States(program=program, imported_at=imported_at, imports={most: first})
    plain = Unscheduled.of(states.fused, states.imported, dims)
    dims = plain.dims
    rows_of, reasons = _kinds(program, plain)
    lowered, whole = by_rows(program, most, rows_of, reasons)
    general = _General.of(states, plain, reasons, whole)
    simple, whole = general.simple, tuple(name for name in whole if name not in general.kernels)
    if general.kernels and program.target.backend.has_kernels:
        program = general.program(states, most)
    program = with_run_time_rows(program, lowered, general.kernels, len(dims))
    ends = f" All groups are launched for any size by {', '.join(whole)}." if whole else ""
    ends += f" A work-item for each element, without a schedule of a config: {', '.join(simple)}." if simple else ""
    ranges = [f"{name} is {sizes[0]} to {sizes[-1]}" for name, sizes in dims.items()]
    summary = replace(made.summary(), run_time=f"{', '.join(ranges)} at run time, in every kernel.{ends}")
    sizes = RunTimeSizes(
        dims={name: (each[0], each[-1]) for name, each in dims.items()},
        inputs={each: axes for each in first.inputs if (axes := plain.axes(each))},
        outputs={each: axes for each in first.outputs if (axes := plain.axes(each))},
    )
    built = replace(made.built, executable=program.executable, host_code=program.host, program=program)
    free = RunTimeRowsModel(sizes=sizes, **{**made.arguments(), "built": built, "summary": summary})
    if summary.checked_on:
        try:
            lacking = _unchecked(free, states, _checked_points(dims, plain.points))
        finally:
            if free.remote is not None:  # a server has one session at a time
                free.release()
        checked = "; ".join(_text(dims, point) for point, reason in lacking.items() if not reason)
        unchecked = "; ".join(f"with {_text(dims, point)}: {reason}" for point, reason in lacking.items() if reason)
        with_sizes = f"{summary.checked_on}, with {checked}" if checked else summary.checked_on
        free.with_summary(replace(summary, checked_on=with_sizes, unchecked=unchecked))
    return free


def _text(dims: Collection[str], point: Point) -> str:
    return ", ".join(f"{name}={size}" for name, size in zip(dims, point, strict=True))


def _kinds(program: CompiledModel, plain: Unscheduled) -> tuple[dict[str, int], dict[str, str]]:
    """Return the place of the dimension that is the rows of a function by rows, and why other functions are not.

    Functions without a free dimension are in neither.
    """
    names, most = tuple(plain.dims), plain.most
    reasons_of: dict[str, dict[int, str]] = {}
    for place, _ in enumerate(most):
        for point in plain.line(place):
            found = with_rows(program.fused, plain.module(point), most[place], point[place])
            for function, reason in found.items():
                places = reasons_of.setdefault(function, {})
                places[place] = places.get(place) or reason
    rows_of: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for function in launches(program.scheduled):
        places = reasons_of.get(function, {})
        if places:
            plain.check(function)
        if len(places) > 1:
            reasons[function] = f"its tensors have {' and '.join(names[place] for place in places)}"
        elif any(places.values()):
            reasons[function] = next(iter(places.values()))
        elif places:
            (rows_of[function],) = places
    return rows_of, reasons


def _checked_points(dims: Mapping[str, range], points: Iterable[Point]) -> list[Point]:
    """Return the sizes at which outputs are checked: the least sizes, and the sizes that rules were found at."""
    least = tuple(each[0] for each in dims.values())
    third = tuple(max(each[0], each[-1] // 3 + 1) for each in dims.values())
    inside = [p for p in (least, third, *points) if all(size in r for size, r in zip(p, dims.values(), strict=True))]
    return list(dict.fromkeys(inside))


def _unchecked(model: RunTimeRowsModel, states: _States, points: Sequence[Point]) -> dict[Point, str]:
    """Compare outputs at sizes with onnxruntime's. Return why they could not be compared, or "", for each.

    Raises
    ------
    NumericError
        A run has other outputs.
    DeviceError
        The device of this machine failed. Of a server, that is a reason.
    """
    found: dict[Point, str] = {}
    for point in points:
        try:
            found[point] = _unchecked_at(model, states, point)
        except DeviceError as error:
            if model.remote is None:
                raise
            return dict.fromkeys(points, error.message) | found  # a lost server runs no further size
    return found


def _unchecked_at(model: RunTimeRowsModel, states: _States, point: Point) -> str:
    try:
        # Outputs of few elements may be rounding errors of one another, but not for all inputs.
        checks = (check_outputs(model, states.imported(point), model.target, seed) for seed in range(_SEEDS))
        check = next(checks)
        while check.is_wrong and (other := next(checks, None)) is not None:
            check = other
    except ModelError as error:  # too small for a window
        return error.message
    if check.is_wrong:
        raise NumericError(
            f"with {_text(model.sizes.dims, point)} the outputs differ from onnxruntime's by {check.error:.2e}"
            " (relative L2)",
            hint=HINT,
        )
    return check.unchecked


@dataclass(kw_only=True)
class _States:
    """The model on its way through the compiler, at sizes."""

    program: CompiledModel
    imported_at: Callable[[Point], ImportedModel]
    imports: dict[Point, ImportedModel]
    _lowered: dict[Point, Compilation] = field(default_factory=dict)
    _failures: dict[Point, ModelError] = field(default_factory=dict)

    def imported(self, point: Point) -> ImportedModel:
        """Return the model at sizes. ModelError if it takes no such sizes."""
        if point in self._failures:
            raise self._failures[point]
        if point not in self.imports:
            try:
                self.imports[point] = self.imported_at(point)
            except ModelError as error:
                self._failures[point] = error
                raise
        return self.imports[point]

    def lowered(self, point: Point) -> Compilation:
        """Return the lowered model at sizes, with the same chains joined. ModelError as in `imported`."""
        if point not in self._lowered:
            compilation = Compilation.of(self.imported(point), self.program.target)
            self._lowered[point] = compilation.lowered().joined_at(self.program.joined)
        return self._lowered[point]

    def fused(self, point: Point) -> tvm.IRModule:
        """Return the unscheduled functions at sizes. ModelError as in `imported`."""
        return self.lowered(point).functions.fused


@dataclass(kw_only=True)
class _General:
    """Kernels for any sizes, each scheduled once, with sizes as variables.

    kernels: function name -> kernel. It precedes that of the largest sizes.
    configs: the config of a kernel that has one.
    simple: kernels of a work-item for each element.
    """

    kernels: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)
    simple: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, states: _States, plain: Unscheduled, reasons: Mapping[str, str], whole: Sequence[str]) -> _General:
        """Return kernels of the functions in `reasons`.

        whole: functions by rows that launch all groups. They keep their kernel if no config makes one for any size.

        Raises
        ------
        ModelError
            A function has no kernel for any size.
        """
        found = cls()
        if not states.program.target.backend.has_kernels:  # unscheduled functions are all that it runs
            for name in reasons:
                if (func := plain.function(name)) is not None:
                    found.kernels[name] = with_slices(func, slices_of(states.program.fused[name]))
            return found
        for name in reasons:
            if not found._add_of_config(states, plain, name) and not found._add_plain(states, plain, name):
                raise ModelError(
                    f"the kernel {name} takes no size at run time: {reasons[name]}, and TVM cannot lower it with the"
                    " size as a variable",
                    hint=HINT,
                )
        for name in whole:
            found._add_of_config(states, plain, name)
        return found

    def _add_of_config(self, states: _States, plain: Unscheduled, name: str) -> bool:
        """Add a kernel of the function's config, or of one like it. Return whether there is one."""
        target, known = states.program.target, states.program.config_of.get(name)
        task = states.lowered(plain.most).task_of.get(name)
        if known is None or task is None:
            return False
        template, work = task.template, None
        try:
            func = plain.function(name)
            if isinstance(template, ContractionTemplate):
                work = plain.workload(name, template.workload)
        except (ModelError, NotOneKernelError, NeedsPointError):
            return False
        if func is None:
            return False
        for config in template.configs_for_any_size(known, target.limits):
            schedule = partial(template.for_any_size, work=work, config=config, limits=target.limits)
            try:
                kernel = _scheduled(func, len(plain.most), schedule)
            except (InvalidConfigError, s_tir.ScheduleError, TypeError, ValueError, RuntimeError) as error:
                logger.debug("%s: no kernel for any size of %s: %s", name, config, error)
                continue
            if _is_lowered(kernel, target):
                self.configs[name] = config
                self.kernels[name] = with_slices(kernel, slices_of(states.program.fused[name]))
                return True
        return False

    def _add_plain(self, states: _States, plain: Unscheduled, name: str) -> bool:
        """Add a kernel with a work-item for each element, or of a time loop. Return whether TVM can lower it."""
        func, target = plain.function(name), states.program.target
        if func is None:
            return False
        is_loop = is_time_loop(states.program.fused[name])
        by_steps = partial(schedule_time_loop, limits=target.limits)
        kernel = _scheduled(func, len(plain.most), by_steps) if is_loop else simplest_schedule(func, target)
        if not _is_lowered(kernel, target):
            return False
        self.kernels[name] = with_slices(kernel, slices_of(states.program.fused[name]))
        self.simple += [] if is_loop else [name]
        return True

    def program(self, states: _States, most: Point) -> CompiledModel:
        """Return the program of the largest sizes, which stores weights as the kernels for any size read them."""
        program, task_of = states.program, states.lowered(most).task_of
        tasks, configs = {}, {}
        for name, task in task_of.items():
            config = self.configs.get(name, program.config_of.get(name))
            if config is None or (name in self.kernels and name not in self.configs):
                continue
            tasks[name] = replace(task, key=f"{task.key} of {name}")
            configs[tasks[name].key] = config
        functions = dict(program.fused.functions_items())
        plain = {name: kernel for name, kernel in self.kernels.items() if name not in self.configs}
        for var, func in program.fused.functions_items():
            if str(var.name_hint) in self.simple:
                functions[var] = simplest_schedule(func, program.target)
        fused = tvm.IRModule(functions, global_infos=dict(program.fused.global_infos))
        scheduled = schedule_model(fused, tasks, configs, program.target, program.kept)
        # Their buffers between nests are workspaces, which are behind the tensors and before the sizes.
        for name, kernel in plain.items():
            tensors, sizes = list(kernel.params)[: -len(most)], list(kernel.params)[-len(most) :]
            func, _ = with_parameters(tirx.PrimFunc(tensors, kernel.body, kernel.ret_type, kernel.attrs))
            self.kernels[name] = tirx.PrimFunc([*func.params, *sizes], func.body, func.ret_type, func.attrs)
        for name in self.kernels:
            if len(self.kernels[name].params) != len(scheduled[name].params) + len(most):
                raise ModelError(f"the kernel {name} takes no size at run time: it has other workspaces", hint=HINT)
        return replace(program, scheduled=scheduled, memory=plan_memory(scheduled))


def _scheduled(func: tirx.PrimFunc, count: int, schedule: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tirx.PrimFunc:
    """Return a function with a schedule that sees its tensors only. The `count` sizes after them are an attribute."""
    tensors, sizes = list(func.params)[:-count], list(func.params)[-count:]
    kernel = schedule(tirx.PrimFunc(tensors, func.body, func.ret_type, func.attrs).with_attr(SIZES, sizes))
    # The schedule may be of a copy, with other variables.
    with_sizes = tirx.PrimFunc([*kernel.params, *kernel.attrs[SIZES]], kernel.body, kernel.ret_type, kernel.attrs)
    return with_whole_buffers(with_sizes.without_attr(SIZES).with_attr("tirx.is_scheduled", True))


def _is_lowered(kernel: tirx.PrimFunc, target: Target) -> bool:
    """Return whether TVM can lower a kernel for any size. It leaves some nests of expressions of sizes on the host."""
    try:
        return bool(device_functions(kernel, target))
    except RuntimeError as error:
        logger.debug("no kernel for any size: %s", error)
        return False
