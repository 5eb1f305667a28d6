"""A model with sizes at run time: made for the largest sizes, then its kernels take the sizes as arguments.

The unscheduled functions of the model are compared at sizes of all remainders. Each integer in them that depends on
sizes has to follow one rule (romou/compiler/frontend/size_rules.py), else the model is refused. Their kernels are
scheduled once, with sizes as variables, by the first of these that there is:

a config       tiles are those of the largest sizes, as many groups as a size needs    operators/schedule_template.py
plain          a work-item for each element                                            assembly/default_schedules.py
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import tvm
from tvm import s_tir, tirx

import romou.compiler.pipeline as pipeline
from romou.base.errors import BuildError, DeviceError, InvalidConfigError, ModelError, NumericError
from romou.base.space import Config
from romou.compiler.assembly.assemble import CompiledModel, schedule_model
from romou.compiler.assembly.build import lower_function
from romou.compiler.assembly.default_schedules import simplest_schedule
from romou.compiler.assembly.size_arguments import with_size_arguments, with_size_parameters
from romou.compiler.assembly.unscheduled import HINT, Unscheduled, text_of
from romou.compiler.compilation import Compilation
from romou.compiler.dumps import without_dumps
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.size_rules import NeedsPointError, NotOneKernelError, Point
from romou.compiler.graph.memory.memory import plan_memory
from romou.compiler.graph.memory.workspaces import with_parameters
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.compiler.operators.kernels.recurrent import is_time_loop, schedule_time_loop
from romou.compiler.passes.whole_buffers import with_whole_buffers
from romou.compiler.scheduling.rewrites import as_module
from romou.compiler.task import TunableTask
from romou.compiler.tir.slices import slices_of, with_slices
from romou.driver.check.verify import check_outputs
from romou.driver.options import AnyModel, CompileOptions, TuneOptions
from romou.runtime.module import RunTimeSizes, RunTimeSizesModel, TunedModel

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
) -> RunTimeSizesModel:
    """Return a model for any sizes of dimensions up to the last of their ranges, made like a model of these.

    suffix: of the kernels' names.
    largest: the model of the largest sizes, if it is imported already.
    """
    most: Point = tuple(sizes[-1] for sizes in dims.values())

    def at(sizes: Point) -> _Options:
        fixed: Any = {"dims": {**(options.dims or {}), **dict(zip(dims, sizes, strict=True))}}
        return replace(options, **fixed)

    @functools.cache
    def imported(sizes: Point) -> ImportedModel:
        known = largest if sizes == most else None
        return replace(known or at(sizes).imported(model), suffix=suffix, has_sizes=True)

    made = make(lambda: imported(most), at(most))
    program = made.built.program
    assert program is not None
    made.release()

    @functools.cache
    def lowered(sizes: Point) -> Compilation:
        """Return the lowered model at sizes, with the same chains joined."""
        return Compilation.of(imported(sizes), program.target).lowered().joined_at(program.joined)

    plain = Unscheduled.of(lambda sizes: lowered(sizes).functions.fused, imported, dims)
    dims = plain.dims
    general = _General(at_most=program, tasks=lowered(most).task_of, plain=plain)
    free_program = general.program()
    simple = ", ".join(general.simple)
    ends = f" A work-item for each element, without a schedule of a config: {simple}." if simple else ""
    ranges = [f"{name} is {sizes[0]} to {sizes[-1]}" for name, sizes in dims.items()]
    summary = replace(made.summary(), run_time=f"{', '.join(ranges)} at run time, in every kernel.{ends}")
    sizes = RunTimeSizes(
        dims={name: (each[0], each[-1]) for name, each in dims.items()},
        inputs={each: axes for each in imported(most).inputs if (axes := plain.axes(each))},
        outputs={each: axes for each in imported(most).outputs if (axes := plain.axes(each))},
    )
    built = replace(made.built, executable=free_program.executable, host_code=free_program.host, program=free_program)
    free = RunTimeSizesModel(sizes=sizes, **{**made.arguments(), "built": built, "summary": summary})
    if summary.checked_on:
        try:
            lacking = _unchecked(free, imported, _checked_points(dims, plain.points))
        finally:
            if free.remote is not None:  # a server has one session at a time
                free.release()
        checked = "; ".join(text_of(dims, point) for point, reason in lacking.items() if not reason)
        unchecked = "; ".join(f"with {text_of(dims, point)}: {reason}" for point, reason in lacking.items() if reason)
        with_sizes = f"{summary.checked_on}, with {checked}" if checked else summary.checked_on
        free.with_summary(replace(summary, checked_on=with_sizes, unchecked=unchecked))
    return free


def _checked_points(dims: Mapping[str, range], points: Iterable[Point]) -> list[Point]:
    """Return the sizes at which outputs are checked: the least sizes, and the sizes that rules were found at."""
    least = tuple(each[0] for each in dims.values())
    third = tuple(max(each[0], each[-1] // 3 + 1) for each in dims.values())
    inside = [p for p in (least, third, *points) if all(size in r for size, r in zip(p, dims.values(), strict=True))]
    return list(dict.fromkeys(inside))


def _unchecked(
    model: RunTimeSizesModel, imported: Callable[[Point], ImportedModel], points: Sequence[Point]
) -> dict[Point, str]:
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
            found[point] = _unchecked_at(model, imported, point)
        except DeviceError as error:
            if model.remote is None:
                raise
            return dict.fromkeys(points, error.message) | found  # a lost server runs no further size
    return found


def _unchecked_at(model: RunTimeSizesModel, imported: Callable[[Point], ImportedModel], point: Point) -> str:
    try:
        # Outputs of few elements may be rounding errors of one another, but not for all inputs.
        checks = (check_outputs(model, imported(point), model.target, seed) for seed in range(_SEEDS))
        check = next(checks)
        while check.is_wrong and (other := next(checks, None)) is not None:
            check = other
    except ModelError as error:  # too small for a window
        return error.message
    if check.is_wrong:
        raise NumericError(
            f"with {text_of(model.sizes.dims, point)} the outputs differ from onnxruntime's by {check.error:.2e}"
            " (relative L2)",
            hint=HINT,
        )
    return check.unchecked


@dataclass(kw_only=True)
class _General:
    """Kernels for any sizes, each scheduled once, with sizes as variables.

    at_most, tasks: the program of the largest sizes, and function name -> task.
    kernels: function name -> kernel. It replaces that of the largest sizes.
    configs: the config of a kernel that has one.
    simple: kernels of a work-item for each element.
    """

    at_most: CompiledModel
    tasks: Mapping[str, TunableTask]
    plain: Unscheduled
    kernels: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)
    simple: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Schedule the functions that depend on sizes. ModelError if a function has no kernel for any size."""
        for name, func in self.plain.functions.items():
            kernel = func  # unscheduled functions are all that a backend without kernels runs
            if self.at_most.target.backend.has_kernels:
                kernel = self._of_config(name, func) or self._plain(name, func)
            self.kernels[name] = with_slices(kernel, slices_of(self.at_most.fused[name]))

    def _of_config(self, name: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """Return a kernel of the function's config, or of one like it. None if there is none."""
        target, known, task = self.at_most.target, self.at_most.config_of.get(name), self.tasks.get(name)
        if known is None or task is None:
            return None
        template, work = task.template, None
        try:
            if isinstance(template, ContractionTemplate):
                work = self.plain.workload(name, template.workload)
        except (NotOneKernelError, NeedsPointError):
            return None
        for config in template.configs_for_any_size(known, target.limits):
            try:
                kernel = template.for_any_size(func, work, config, target.limits)
            except (InvalidConfigError, s_tir.ScheduleError, TypeError, ValueError, RuntimeError) as error:
                logger.debug("%s: no kernel for any size of %s: %s", name, config, error)
                continue
            if (lowered := self._lowered(kernel)) is not None:
                self.configs[name] = config
                return lowered
        return None

    def _plain(self, name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return a kernel with a work-item for each element, or of a time loop. ModelError if TVM cannot lower it."""
        program = self.at_most
        if is_time_loop(program.fused[name]):
            kernel = self._lowered(schedule_time_loop(func, program.target.limits))
        else:
            kernel = self._lowered(simplest_schedule(func, program.target))
            self.simple.append(name)
        if kernel is None:
            raise ModelError(
                f"the kernel {name} takes no size at run time: TVM cannot lower it with the size as a variable",
                hint=HINT,
            )
        return kernel

    def _lowered(self, kernel: tirx.PrimFunc) -> tirx.PrimFunc | None:
        """Return a kernel for any size, or None if TVM cannot lower it: it leaves some nests of sizes on the host."""
        kernel, target = with_whole_buffers(kernel.with_attr("tirx.is_scheduled", True)), self.at_most.target
        ((var, func),) = as_module(with_size_parameters(kernel)).functions_items()
        try:
            with without_dumps():
                return kernel if lower_function(var, func, target, pipeline.NAME).device else None
        except (BuildError, RuntimeError) as error:
            logger.debug("no kernel for any size: %s", error)
            return None

    def program(self) -> CompiledModel:
        """Return the program, which stores weights as the kernels read them, and takes sizes after its inputs."""
        program, count = self.at_most, len(self.plain.most)
        if not self.kernels or not program.target.backend.has_kernels:
            return with_size_arguments(program, self.kernels, count)
        tasks, configs = {}, {}
        for name, task in self.tasks.items():
            config = self.configs.get(name, program.config_of.get(name))
            if config is not None and (name in self.configs or name not in self.kernels):
                tasks[name] = replace(task, key=f"{task.key} of {name}")
                configs[tasks[name].key] = config
        functions = {
            var: simplest_schedule(func, program.target) if str(var.name_hint) in self.simple else func
            for var, func in program.fused.functions_items()
        }
        fused = tvm.IRModule(functions, global_infos=dict(program.fused.global_infos))
        scheduled = schedule_model(fused, tasks, configs, program.target, program.kept)
        # Their buffers between nests are workspaces, which are after the tensors and before the sizes.
        kernels = {name: with_parameters(kernel)[0] for name, kernel in self.kernels.items()}
        for name, kernel in kernels.items():
            if len(kernel.params) != len(scheduled[name].params):
                raise ModelError(f"the kernel {name} takes no size at run time: it has other workspaces", hint=HINT)
        whole = replace(program, scheduled=scheduled, memory=plan_memory(scheduled))
        return with_size_arguments(whole, kernels, count)
