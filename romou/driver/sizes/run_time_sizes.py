"""A model with sizes at run time: made for the largest sizes, then its kernels take the sizes as arguments.

The unscheduled functions of the model are compared at sizes of all remainders. Each integer in them that depends on
sizes has to follow one rule (romou/compiler/assembly/size_rules.py), else the model is refused. Their kernels are, by
the first of these that there is:

by rows           the kernel of the largest size, with fewer groups       romou/compiler/assembly/run_time_rows.py
of a config       one kernel, from the kernels of a config at some sizes  romou/compiler/assembly/symbolic.py
plain             a work-item for each element                            romou/compiler/assembly/default_schedules.py
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import tvm
from tvm import sym, tirx

from romou.base.errors import DeviceError, ModelError, NumericError
from romou.base.space import Config
from romou.compiler.assembly.assemble import CompiledModel, schedule_model
from romou.compiler.assembly.default_schedules import device_functions, simplest_schedule
from romou.compiler.assembly.run_time_rows import HINT, by_rows, launches, with_rows, with_run_time_rows
from romou.compiler.assembly.same_kernel import Likeness, likeness
from romou.compiler.assembly.size_rules import NotOneKernelError, Point
from romou.compiler.assembly.symbolic import Extent, Rules, generic_points, one_kernel
from romou.compiler.assembly.unscheduled import Unscheduled
from romou.compiler.compilation import Compilation
from romou.compiler.frontend import ImportedModel
from romou.compiler.scheduling.blocks import substitute
from romou.compiler.task import TunableTask
from romou.compiler.tir.traversal import nodes_in
from romou.devices.targets import Target
from romou.driver.check.verify import check_outputs
from romou.driver.options import AnyModel, CompileOptions, TuneOptions
from romou.runtime.module import RunTimeRowsModel, RunTimeSizes, TunedModel

logger = logging.getLogger("romou")

_Options = TypeVar("_Options", CompileOptions, TuneOptions)
# Remainders of a size that kernels are compared at, at most: of the sizes that all functions are known at
_REMAINDERS = 4
# Sizes of a dimension at which numbers of a kernel are compared
_COMPARED = 64
# Numbers of tiles whose last steps are compared
_STEPS = 4
# Random inputs that outputs have to be wrong for
_SEEDS = 5
# Configs that a kernel without rules is tried with.
_CONFIGS = 10


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
    general, simple = _general(states, plain, reasons, whole) if reasons or whole else ({}, ())
    whole = tuple(name for name in whole if name not in general)
    program = with_run_time_rows(program, lowered, general, len(dims))
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
    """Return the sizes at which outputs are checked: the least ones, and those that rules were found at."""
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


def _general(
    states: _States, plain: Unscheduled, reasons: Mapping[str, str], whole: Sequence[str]
) -> tuple[dict[str, tirx.PrimFunc], tuple[str, ...]]:
    """Return kernels for any sizes, of the functions in `reasons`, and which of them are plain.

    whole: functions by rows that launch all groups. They keep their kernel if there is none for any size.

    Raises
    ------
    ModelError
        A function has none.
    """
    if not states.program.target.backend.has_kernels:  # unscheduled functions are all that it runs
        return {name: func for name in reasons if (func := plain.function(name)) is not None}, ()
    most = plain.most
    itself = [(place, 1, 0, 1) for place, _ in enumerate(most)]
    known = set(launches(states.program.scheduled)) & _names(states.program.fused)
    growing = [*itself, *sorted(set[Extent]().union(*map(plain.extents, known)) - set(itself))]
    samples = _Samples(states=states, plain=plain, growing=growing)
    first = samples.kernels(itself, reasons, whole)
    general = {name: kernel for name, kernel in first.items() if isinstance(kernel, tirx.PrimFunc)}
    without = NotOneKernelError("no config is valid at all sizes")
    failing = {name: first.get(name, without) for name in reasons if name not in general}
    # Strides divide a size until tiles divide it. The functions behind them get sizes of their own.
    groups: dict[tuple[Extent, ...], list[str]] = {}
    for name in failing:
        if (bases := samples.bases(name)) != tuple(itself):
            groups.setdefault(bases, []).append(name)
    for bases, names in groups.items():
        general |= {n: k for n, k in samples.kernels(bases, names).items() if isinstance(k, tirx.PrimFunc)}
    simple = []

    def add_plain(names: Iterable[str]) -> None:
        for name in names:
            if name not in general and (kernel := _plain_kernel(states, plain, name)) is not None:
                general[name] = kernel
                simple.append(name)

    # Kernels of a family are faster than plain ones, TVM's rules are not by much.
    add_plain(name for name in failing if name not in states.program.config_of)
    # Kernels of another config may differ in integers only where those of the best one lose a check at some sizes.
    for other, bases in itertools.product(range(1, _CONFIGS), (tuple(itself), *groups)):
        open_names = [name for name in groups.get(bases, failing) if name not in general]
        found = samples.kernels(bases, open_names, other=other) if open_names else {}
        general |= {name: kernel for name, kernel in found.items() if isinstance(kernel, tirx.PrimFunc)}
    add_plain(failing)
    for name, failure in failing.items():
        if name not in general:
            raise ModelError(f"the kernel {name} takes no size at run time: {reasons[name]}, and {failure}", hint=HINT)
    return general, tuple(simple)


def _plain_kernel(states: _States, plain: Unscheduled, name: str) -> tirx.PrimFunc | None:
    """Return a kernel with a work-item for each element. None if the program stores weights as another kernel reads."""
    func, program = plain.function(name), states.program
    task, config = states.lowered(plain.most).task_of.get(name), program.config_of.get(name)
    if func is None or (task is not None and config is not None and task.stored_weight(config) is not None):
        return None
    if not _have_equal_tensors(program.scheduled[name], program.fused[name]):
        return None
    kernel = simplest_schedule(func, program.target)
    return kernel if _is_lowered(kernel, program.target) else None


def _have_equal_tensors(*kernels: tirx.PrimFunc) -> bool:
    """Return whether kernels of fixed sizes take equal tensors, workspaces among them, so that one call is for all."""
    tensors = [[(str(p.scope()), str(p.dtype), *map(int, p.shape)) for p in kernel.params] for kernel in kernels]
    return all(each == tensors[0] for each in tensors)


def _is_lowered(kernel: tirx.PrimFunc, target: Target) -> bool:
    """Return whether TVM can lower a kernel for any size. It leaves some nests of expressions of sizes on the host."""
    try:
        return bool(device_functions(kernel, target))
    except RuntimeError as error:
        logger.debug("no kernel for any size: %s", error)
        return False


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """Makes kernels for any sizes from those of some sizes.

    growing: the extents of tensors.
    """

    states: _States
    plain: Unscheduled
    growing: Sequence[Extent]

    @property
    def program(self) -> CompiledModel:
        """The model for the largest sizes."""
        return self.states.program

    @property
    def most(self) -> Point:
        """The largest sizes."""
        return self.plain.most

    def kernels(
        self, bases: Sequence[Extent], names: Collection[str], whole: Collection[str] = (), *, other: int = 0
    ) -> dict[str, tirx.PrimFunc | NotOneKernelError]:
        """Return the kernel of each function, or why it has none. Functions without such a config are left out.

        bases: the extent of each dimension that is generic.
        whole: more functions, which have no kernel of another config.
        other: which of the configs that the spaces of all sizes have.
        """
        growing = [each for each in self.growing if each[-1] >= bases[each[0]][-1]]
        halving = {place for place, *_, divisor in growing if divisor > bases[place][-1]}
        points, others = generic_points(self.most, bases, halving)
        try:
            models = {point: self.states.lowered(point) for point in (*points, *others)}
        except ModelError as error:
            return {name: NotOneKernelError(error.message) for name in names}
        if any(not {*names, *whole} <= _names(model.functions.fused) for model in models.values()):
            return {name: NotOneKernelError("the graph has other kernels for other sizes") for name in names}
        known, target = self.program.config_of, self.program.target

        def both(name: str) -> list[Compilation]:
            """Return the models that a kernel is made of, and those that it is compared with."""
            return [*models.values(), *map(self.states.lowered, self.plain.points_of(name))]

        config_of = {
            name: _config(known[name], [each.task_of[name] for each in both(name)], len(models), target, other)
            for name in (*names, *whole)
            if all(name in each.task_of for each in both(name)) and name in known
        }
        # Left to TVM's rules are functions without a task, but none for want of a config.
        without = {name for name, config in config_of.items() if config is None and known[name] is not None}
        names = [name for name in names if name not in without and (not other or config_of.get(name) is not None)]
        if not names and other:
            return {}
        chosen = [name for name in (*names, *whole) if name in names or config_of.get(name) == known.get(name)]
        modules = {point: self._scheduled(each, chosen, config_of) for point, each in models.items()}
        if any(launches(module) != launches(self.program.scheduled) for module in modules.values()):
            return {name: NotOneKernelError("the graph has other kernels for other sizes") for name in chosen}
        attempts = {
            added: Rules(
                points=[*points, *(others[place] for place in added)],
                unseen=[point for place, point in enumerate(others) if place not in added],
                most=self.most,
                extents=growing,
            )
            for added in ((0, 1), (1,), (0,), ())
            if all(place < len(others) for place in added)
        }

        @functools.cache
        def expected_at(point: Point) -> tuple[list[str], tvm.IRModule]:
            model = self.states.lowered(point)
            names = [name for name in chosen if _takes(model.task_of.get(name), config_of.get(name), target)]
            return names, self._scheduled(model, names, {n: c for n, c in config_of.items() if n in names})

        def expected(name: str, point: Point) -> tirx.PrimFunc | None:
            names, module = expected_at(point)
            return module[name] if name in names else None

        def kernel(name: str) -> tirx.PrimFunc | NotOneKernelError:
            # At odd sizes, twice the half is the size and one.
            is_halved = any(len({extent[-1] for extent in extents}) > 1 for extents in self._extents(name))
            rules = [rules for added, rules in attempts.items() if 1 in added or not is_halved]
            return self._one_kernel(name, config_of.get(name), modules, rules, expected)

        return {name: kernel(name) for name in chosen}

    def _takes_arguments_of(
        self, name: str, config: Config | None, expected: Callable[[str, Point], tirx.PrimFunc | None]
    ) -> bool:
        """Return whether the program's call of a function, with the config of the largest size, is one of `config`."""
        known, func = self.program.config_of.get(name), None
        if config is None or known is None or config == known:
            return config == known
        task = self.states.lowered(self.most).task_of[name]
        if task.stored_weight(config) == task.stored_weight(known):
            func = expected(name, self.most)
        return func is not None and _have_equal_tensors(self.program.scheduled[name], func)

    def _one_kernel(
        self,
        name: str,
        config: Config | None,
        modules: Mapping[Point, tvm.IRModule],
        attempts: Sequence[Rules],
        expected: Callable[[str, Point], tirx.PrimFunc | None],
    ) -> tirx.PrimFunc | NotOneKernelError:
        if not self._takes_arguments_of(name, config, expected):
            return NotOneKernelError("its config takes other weights or workspaces than that of the largest size")
        failure = NotOneKernelError("it has no kernel")
        for rules in attempts:
            try:
                kernel = one_kernel([modules[point][name] for point in rules.points], rules)
                self._check_consistent(kernel, rules.points)
                self._check_covered(kernel)
                self._check(name, kernel, expected)
                if not _is_lowered(kernel, self.program.target):
                    raise NotOneKernelError("TVM cannot lower its kernel for any size")
                return kernel
            except NotOneKernelError as error:
                failure = error
        return failure

    def _check(self, name: str, kernel: tirx.PrimFunc, expected: Callable[[str, Point], tirx.PrimFunc | None]) -> None:
        """Raise NotOneKernelError unless a kernel is the config's at sizes of all remainders that the function has.

        expected: the kernel of a function's config at sizes. None if that is no config there.
        """
        seen, least = [set[int]() for _ in self.most], Likeness.SAME
        for point in (*self.plain.points_of(name), *self._steps(kernel)):
            try:
                func = expected(name, point)
            except (ModelError, KeyError):  # other functions, at this size
                continue
            if func is None:
                continue
            found = likeness(kernel, point, func, self.program.target)
            if found == Likeness.OTHER_NUMBERS:
                raise NotOneKernelError(f"its kernel is another one at the sizes {list(point)}")
            least = min(least, found)
            for place, size in enumerate(point) if found == Likeness.SAME else ():
                seen[place].add(size)
        # Sizes that no tile divides may have tiles that divide the size and a few, so a check is lost at all of them.
        moved = {place for place, _, offset, divisor in self.plain.extents(name) if offset and divisor == 1}
        if moved and least < Likeness.OTHER_ARITHMETIC:
            raise NotOneKernelError("its kernel has other checks of bounds at some sizes")
        for place, divisor in enumerate(self.plain.divisors(name)):
            divisor = math.lcm(divisor, 2) if place in moved else divisor
            # Strides of several layers have divisors that no few sizes have all remainders of.
            divisor = _REMAINDERS if divisor % _REMAINDERS == 0 and divisor & (divisor - 1) == 0 else divisor
            if len({size % divisor for size in seen[place]}) < divisor:
                raise NotOneKernelError(f"its kernel was seen at the sizes {sorted(seen[place])} only")

    def _check_consistent(self, kernel: tirx.PrimFunc, points: Sequence[Point]) -> None:
        """Raise NotOneKernelError if two numbers in a kernel are the same at the sizes that it was made from, and not
        at all sizes: one of them has a wrong rule.
        """
        sizes = list(kernel.params)[-len(self.most) :]
        nodes = [node for kind in (tirx.FloorDiv, tirx.Add) for node in nodes_in(kernel.body, kind)]
        numbers = {str(node): node for node in nodes if _is_of(node, sizes)}
        lines, known = self._lines(), dict[tuple[int, ...], tuple[int, ...]]()
        for text, number in numbers.items():
            if not nodes_in(number, tirx.Var):
                continue
            found = _values(number, sizes, lines)
            if known.setdefault(_values(number, sizes, points), found) != found:
                raise NotOneKernelError(f"the number {text} in it has several rules")

    def _check_covered(self, kernel: tirx.PrimFunc) -> None:
        """Raise NotOneKernelError if the loops of a kernel end before a bound that it checks, at some size: a number of
        tiles has a wrong rule.

        for group in range((n // 4 * 3 + 15) // 16): for i in range(32): if group * 32 + i < n // 2 * 3: ...
        """
        sizes = list(kernel.params)[-len(self.most) :]
        last = {loop.loop_var: loop.min + loop.extent - 1 for loop in nodes_in(kernel.body, tirx.For)}
        checks = [check for branch in nodes_in(kernel.body, tirx.IfThenElse) for check in _less(branch.condition)]
        # A remainder is not largest where its loops end.
        checks = [check for check in checks if _is_of(check.b, sizes) and not nodes_in(check.a, tirx.FloorMod)]
        # Each unrolled element has a check. The last check reaches furthest.
        lines, missing = self._lines(), dict[Any, dict[str, tuple[int, ...]]]()
        for check in checks:
            number = substitute(check.b - 1 - check.a, last)
            if not _is_of(number, sizes):
                continue
            same = missing.setdefault((str(check.b), frozenset(map(str, nodes_in(check.a, tirx.Var)))), {})
            if str(number) not in same:
                same[str(number)] = _values(number, sizes, lines)
        if any(least > 0 for same in missing.values() for least in map(min, zip(*same.values(), strict=True))):
            raise NotOneKernelError("its loops end before a bound at some sizes")

    def _lines(self) -> list[Point]:
        """Return sizes of each dimension, with the largest ones of the others."""
        return [
            (*self.most[:place], size, *self.most[place + 1 :])
            for place, each in enumerate(self.plain.dims.values())
            for size in each[:: -max(1, len(each) // _COMPARED)]
        ]

    def _steps(self, kernel: tirx.PrimFunc) -> list[Point]:
        """Return the sizes around the last steps of numbers of tiles, which tell these from others with as many tiles
        at most sizes.
        """
        sizes, found = list(kernel.params)[-len(self.most) :], dict[Point, None]()
        shares = {str(share): share for share in nodes_in(kernel.body, tirx.FloorDiv)}
        for share in shares.values():
            variables = nodes_in(share, tirx.Var)
            places = [at for at, size in enumerate(sizes) if any(var.same_as(size) for var in variables)]
            if len(places) != 1 or len({*variables}) != 1 or len(found) >= 2 * _STEPS:
                continue
            (place,) = places

            def value(number: int, share: tirx.Expr = share, size: tirx.Var = sizes[place]) -> int:
                return _values(share, [size], [(number,)])[0]

            low, high = list(self.plain.dims.values())[place][0], self.most[place]
            last = value(high)
            if value(low) == last:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if value(middle) == last else (middle, high)
            for size in (low, high):
                found[(*self.most[:place], size, *self.most[place + 1 :])] = None
        return list(found)

    def bases(self, name: str) -> tuple[Extent, ...]:
        """Return the largest extent of each dimension in the tensors of a function."""
        return tuple(
            min(extents, key=lambda extent: extent[-1], default=(place, 1, 0, 1))
            for place, extents in enumerate(self._extents(name))
        )

    def _extents(self, name: str) -> list[list[Extent]]:
        """Return the extents of each dimension in the tensors of a function, without factors."""
        extents = sorted(self.plain.extents(name))
        return [[each for each in extents if each[:2] == (place, 1)] for place, _ in enumerate(self.most)]

    def _scheduled(
        self, model: Compilation, names: Collection[str], config_of: Mapping[str, Config | None]
    ) -> tvm.IRModule:
        configs = {model.task_of[name].key: config for name, config in config_of.items()}
        return schedule_model(_only(model.functions.fused, names), model.task_of, configs, self.program.target)


def _is_of(number: tirx.Expr, sizes: Sequence[tirx.Var]) -> bool:
    """Return whether an expression has no variables but sizes."""
    return all(any(var.same_as(size) for size in sizes) for var in nodes_in(number, tirx.Var))


def _values(number: tirx.Expr, sizes: Sequence[tirx.Var], points: Iterable[Point]) -> tuple[int, ...]:
    """Return the values of an expression of sizes."""
    simple = sym.Analyzer().simplify
    fixed = ({size: tirx.const(n, str(size.ty)) for size, n in zip(sizes, p, strict=True)} for p in points)
    return tuple(int(simple(substitute(number, each))) for each in fixed)


def _less(condition: tirx.Expr) -> list[tirx.LT]:
    """Return the comparisons of a conjunction."""
    if isinstance(condition, tirx.And):
        return [*_less(condition.a), *_less(condition.b)]
    return [condition] if isinstance(condition, tirx.LT) else []


def _takes(task: TunableTask | None, config: Config | None, target: Target) -> bool:
    """Return whether a config is one of a task's space. Functions without a task take none."""
    if task is None or config is None:
        return True
    space = task.space(target)
    return space.knows(config) and space.is_valid(config)


def _names(fused: tvm.IRModule) -> set[str]:
    return {str(var.name_hint) for var in fused.get_global_vars()}


def _only(fused: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """Return a module whose other functions need no schedule."""
    functions = {
        var: func.with_attr("tirx.is_scheduled", True)
        if isinstance(func, tirx.PrimFunc) and var.name_hint not in names
        else func
        for var, func in fused.functions_items()
    }
    return tvm.IRModule(functions, global_infos=dict(fused.global_infos))


def _config(
    config: Config | None, tasks: Sequence[TunableTask], made: int, target: Target, other: int
) -> Config | None:
    """Return the config of the largest size, or one like it that the spaces of all sizes have. None without one.

    made: the number of the first tasks, whose kernels a kernel is made of. The others are compared if they can be.
    other: the number of such configs that are passed over. Past those like it come starts of other algorithms.
    """
    if config is None:
        return None
    spaces = [task.space(target) for task in tasks]
    defaults = [task.default_config(target) for task in tasks]

    def with_choices_of(wanted: Config) -> Config:
        """Return the default config with the values of `wanted` that are choices of the space."""
        choices = {name: value for name, value in wanted.items() if value in spaces[0].knobs.get(name, ())}
        return Config({**defaults[0], **choices})

    # Vectors along the size are no choice if the size is odd.
    attempts = [config, with_choices_of(config), *defaults]

    def shared(configs: Iterable[Config], count: int | None = None) -> list[Config]:
        return [each for each in configs if all(space.knows(each) and space.is_valid(each) for space in spaces[:count])]

    found = shared(attempts) or shared(attempts, made)
    if other:
        plain = replace(target.limits, has_tensor_cores=False, has_cooperative_matrices=False)
        # Spaces with tensor cores lack the short stages of a first layer's plain products.
        starts = map(with_choices_of, map(spaces[0].completed, tasks[0].template.starts(plain)))
        found += shared([*tasks[0].starts(target), *starts])
    return next(itertools.islice(dict.fromkeys(found), other, None), None)
