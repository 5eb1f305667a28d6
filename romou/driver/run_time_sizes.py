"""A model with sizes at run time: made for the largest sizes, then its kernels take the sizes as arguments.

by rows           the kernel of the largest size, with fewer groups       romou/compiler/assembly/run_time_rows.py
all other kernels one kernel, from the kernels of a config at some sizes  romou/compiler/assembly/symbolic.py
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import tvm
from tvm import tirx

from romou.base.errors import ModelError, NumericError
from romou.base.space import Config
from romou.compiler.assembly.assemble import CompiledModel, schedule_model
from romou.compiler.assembly.run_time_rows import HINT, by_rows, launches, shapes_in, with_rows, with_run_time_rows
from romou.compiler.assembly.symbolic import (
    Extent,
    NotOneKernelError,
    Point,
    Rules,
    extent_of,
    generic_points,
    one_kernel,
)
from romou.compiler.compilation import Compilation
from romou.compiler.frontend import ImportedModel, load_onnx
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.onnx_import import fix_shapes
from romou.compiler.frontend.padding import fit_of, rule_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.options import AnyModel, CompileOptions, TuneOptions
from romou.driver.verify import check_outputs
from romou.runtime.module import FreeAxis, RunTimeRowsModel, RunTimeSizes, TunedModel

_Options = TypeVar("_Options", CompileOptions, TuneOptions)
_Shapes = Mapping[str, tuple[int, ...]]
# Sizes of shapes that rules of extents are fitted to, below the largest size and below half of it.
_POINTS = 6
# Most sizes that decide between offsets: half of the open ones each
_MORE_POINTS = 16
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

    fewer: list[Point] = _fewer(most)
    first = imported_at(most) if largest is None else replace(largest, suffix=suffix)
    imports = {most: first, **{sizes: imported_at(sizes) for sizes in fewer}}
    made = make(lambda: imports[most], at(most))
    program = made.program
    assert program is not None
    made.release()
    smaller = [Compilation.of(imports[each], program.target).lowered().joined_at(program.joined) for each in fewer]
    rows_of, reasons = _kinds(program, [each.functions.fused for each in smaller], most, fewer, tuple(dims))
    growth = _Growth.of(partial(_shapes_at, model, at), most)
    lowered, whole = by_rows(program, most, rows_of, reasons)
    general = _general(program, reasons, whole, imported_at, growth, most) if reasons or whole else {}
    whole = tuple(name for name in whole if name not in general)
    program = with_run_time_rows(program, lowered, general, len(dims))
    ends = f" All groups are launched for any size by {', '.join(whole)}." if whole else ""
    ranges = [f"{name} is {sizes[0]} to {sizes[-1]}" for name, sizes in dims.items()]
    summary = replace(made.summary(), run_time=f"{', '.join(ranges)} at run time, in every kernel.{ends}")
    sizes = RunTimeSizes(
        dims={name: (each[0], each[-1]) for name, each in dims.items()},
        inputs={each: growth.axes(each) for each in first.inputs if growth.axes(each)},
        outputs={each: growth.axes(each) for each in first.outputs if growth.axes(each)},
    )
    arguments = {**made.arguments(), "executable": program.executable, "host_code": program.host, "summary": summary}
    free = RunTimeRowsModel(sizes=sizes, program=program, **arguments)
    if summary.checked_on and made.remote is None:
        for each in _checked_points(dims, fewer, has_general=bool(general)):
            with contextlib.suppress(ModelError):  # too small for a window
                _check(free, imports[each] if each in imports else imported_at(each))
    return free


def _fewer(most: Point) -> list[Point]:
    """Return points with a smaller size of one dimension after another."""
    # Half as many, because strides may hide a few.
    halves = [size // 2 if size >= 2 * _POINTS else size - 1 for size in most]
    return [(*most[:place], half, *most[place + 1 :]) for place, half in enumerate(halves)]


def _kinds(
    program: CompiledModel, smaller: Sequence[tvm.IRModule], most: Point, fewer: Sequence[Point], names: Sequence[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the place of the dimension that is the rows of a function by rows, and why other functions are not.

    Functions without a free dimension are in neither.

    smaller: fused functions at the points in `fewer`.
    """
    found = [
        with_rows(program.fused, each, most[place], point[place])
        for place, (each, point) in enumerate(zip(smaller, fewer, strict=True))
    ]
    rows_of: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for function in launches(program.scheduled):
        places = [place for place, each in enumerate(found) if function in each]
        if len(places) > 1:
            reasons[function] = f"its tensors have {' and '.join(names[place] for place in places)}"
        elif places and (reason := found[places[0]][function]):
            reasons[function] = reason
        elif places:
            rows_of[function] = places[0]
    return rows_of, reasons


def _checked_points(dims: Mapping[str, range], fewer: Sequence[Point], *, has_general: bool) -> list[Point]:
    """Return the sizes at which outputs are checked: small, large and odd ones, of each dimension in another order."""
    sizes = [[r[0], r[-1] // 3 + 1, r[-1] - 1, r[-1]] for r in dims.values()]
    turned = [each[place:] + each[:place] for place, each in enumerate(sizes)]
    least = tuple(each[0] for each in sizes)
    points = dict.fromkeys([*fewer, *zip(*turned, strict=True), least] if has_general else fewer)
    return [p for p in points if all(size in r for size, r in zip(p, dims.values(), strict=True))] or [least]


def _check(model: RunTimeRowsModel, imported: ImportedModel) -> None:
    """Raise NumericError unless a run at the sizes of an imported model has onnxruntime's outputs."""
    check = check_outputs(model, imported, model.target)
    if check.is_wrong:
        sizes = model.sizes_in({name: shape for name, (shape, _) in imported.inputs.items()})
        raise NumericError(
            f"with {', '.join(f'{name}={size}' for name, size in sizes.items())} the outputs differ from onnxruntime's"
            f" by {check.error:.2e} (relative L2)",
            hint=HINT,
        )


def _shapes_at(model: AnyModel, at: Callable[[Point], CompileOptions | TuneOptions], sizes: Point) -> _Shapes:
    """Return shapes of the model's tensors at sizes."""
    proto, (shapes,) = at(sizes).shape_sets(model)
    assert not isinstance(proto, ImportedModel), "its dimensions are fixed"
    return shapes_of(fix_shapes(load_onnx(proto), shapes).graph)


@dataclass(frozen=True, kw_only=True)
class _Growth:
    """How the shapes of a model's tensors follow from the sizes.

    points: sizes -> shape of each tensor with a known shape.
    most: the largest sizes.
    """

    points: Mapping[Point, _Shapes]
    most: Point

    @classmethod
    def of(cls, shapes_at: Callable[[Point], _Shapes], most: Point) -> _Growth:
        """Return the growth that is seen at sizes of all remainders, large and small, of each dimension."""
        wanted = {tuple(size // 3 + 1 for size in most), tuple(1 for _ in most)}
        for place, largest in enumerate(most):
            sizes = {start - step for start in (largest, largest // 2) for step in range(_POINTS)} | {
                1,
                largest // 3 + 1,
            }
            wanted |= {(*most[:place], size, *most[place + 1 :]) for size in sizes if size > 0}
        points: dict[Point, _Shapes] = {}
        tried = set(wanted)

        def add(point: Point) -> None:
            with contextlib.suppress(ModelError):  # too small for a window
                points[point] = shapes_at(point)

        for point in sorted(wanted):
            add(point)
        growth = cls(points=points, most=most)
        for place, _ in enumerate(most):
            for _ in range(_MORE_POINTS):
                telling = growth.telling_point(place)
                if telling is not None and telling not in tried:
                    add(telling)
                    tried.add(telling)
        return growth

    def telling_point(self, place: int) -> Point | None:
        """Return a point that decides between offsets of an extent. None if all are known."""
        lines: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for point, shapes in self.points.items():
            for name, shape in shapes.items() if self._is_on_line(point, place) else ():
                for axis, extent in enumerate(shape):
                    lines.setdefault((name, axis), []).append((point[place], extent))
        for line in {tuple(line) for line in lines.values()}:
            fit = fit_of(line) if len({extent for _, extent in line}) > 1 else None
            if fit is not None and fit[0] == 1 and fit[1] < fit[2]:
                _, least, largest, divisor = fit
                size = self.most[place] - (self.most[place] + (least + largest + 1) // 2) % divisor
                point = (*self.most[:place], size, *self.most[place + 1 :])
                if size > 0 and point not in self.points:
                    return point
        return None

    def axes(self, name: str) -> tuple[FreeAxis, ...]:
        """Return the rules of each axis of a tensor that changes. ModelError without a rule."""
        known = {point: shapes[name] for point, shapes in self.points.items() if name in shapes}
        rank = min(map(len, known.values()), default=0)
        axes = []
        for axis in range(rank):
            extents = {point: shape[axis] for point, shape in known.items()}
            if len(set(extents.values())) > 1:
                axes += [(axis, *numbers) for numbers in self._numbers(f"axis {axis} of {name}", extents)]
        return tuple(axes)

    def _numbers(self, what: str, extents: Mapping[Point, int]) -> list[Extent]:
        """Return the extents of single dimensions whose product is an extent."""
        lines = {
            place: {point[place]: extent for point, extent in extents.items() if self._is_on_line(point, place)}
            for place, _ in enumerate(self.most)
        }
        lines = {place: line for place, line in lines.items() if len(set(line.values())) > 1}
        if self.most not in extents:
            raise ModelError(f"{what} is not known", hint=HINT)
        numbers = []
        for place, line in lines.items():
            common = math.gcd(*line.values()) if len(lines) > 1 else 1
            if (rule := rule_of([(size, extent // common) for size, extent in line.items()])) is None:
                raise ModelError(f"{what} follows no rule: {list(line.items())}", hint=HINT)
            numbers.append((place, rule["factor"], rule["offset"], rule["divisor"]))
        rules = [partial(extent_of, *each) for each in numbers]
        common = extents[self.most] // math.prod(rule(self.most) for rule in rules)
        # A factor without a size
        numbers += [(0, 0, common, 1)] if common > 1 else []
        if any(extent != common * math.prod(rule(point) for rule in rules) for point, extent in extents.items()):
            raise ModelError(f"{what} follows no rule: {list(extents.items())}", hint=HINT)
        return numbers

    def _is_on_line(self, point: Point, place: int) -> bool:
        """Return whether all other dimensions have their largest size."""
        return all(a == b for other, (a, b) in enumerate(zip(point, self.most, strict=True)) if other != place)

    def rules(self) -> set[Extent]:
        """Return the extents of all axes of tensors."""
        found = set()
        for name in {name for shapes in self.points.values() for name in shapes}:
            with contextlib.suppress(ModelError):
                found |= {(place, factor, offset, by) for _, place, factor, offset, by in self.axes(name) if factor}
        return found


def _general(
    program: CompiledModel,
    reasons: Mapping[str, str],
    whole: Sequence[str],
    imported_at: Callable[[Point], ImportedModel],
    growth: _Growth,
    most: Point,
) -> dict[str, tirx.PrimFunc]:
    """Return kernels for any sizes, of the functions in `reasons`. ModelError if one has none.

    whole: functions by rows that launch all groups. They keep their kernel if there is none for any size.
    """
    itself = [(place, 1, 0, 1) for place, _ in enumerate(most)]
    growing = [*itself, *sorted(growth.rules() - set(itself))]
    samples = _Samples(program=program, imported_at=imported_at, growing=growing, most=most)
    first = samples.kernels(itself, reasons, whole)
    general = {name: kernel for name, kernel in first.items() if isinstance(kernel, tirx.PrimFunc)}
    failing = {name: first[name] for name in reasons if name not in general}
    # Strides divide a size until tiles divide it. The functions behind them get sizes of their own.
    groups: dict[tuple[Extent, ...], list[str]] = {}
    for name in failing:
        if (bases := samples.bases(name)) != tuple(itself):
            groups.setdefault(bases, []).append(name)
    for bases, names in groups.items():
        general |= {n: k for n, k in samples.kernels(bases, names).items() if isinstance(k, tirx.PrimFunc)}
    # Kernels of another config may differ in integers only where those of the best one lose a check at some sizes.
    for other, bases in itertools.product(range(1, _CONFIGS), (tuple(itself), *groups)):
        open_names = [name for name in groups.get(bases, failing) if name not in general]
        found = samples.kernels(bases, open_names, other=other) if open_names else {}
        general |= {name: kernel for name, kernel in found.items() if isinstance(kernel, tirx.PrimFunc)}
    for name, failure in failing.items():
        if name not in general:
            raise ModelError(f"the kernel {name} takes no size at run time: {reasons[name]}, and {failure}", hint=HINT)
    return general


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """Makes kernels for any sizes from those of some sizes.

    growing: the extents of tensors.
    """

    program: CompiledModel
    imported_at: Callable[[Point], ImportedModel]
    growing: Sequence[Extent]
    most: Point
    _lowered: dict[Point, Compilation] = field(default_factory=dict)

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
            models = {point: self._model(point) for point in (*points, *others)}
        except ModelError as error:
            if any(base[-1] > 1 for base in bases):
                return {name: NotOneKernelError(str(error)) for name in names}
            raise
        known = self.program.config_of
        config_of = {
            name: _config(known[name], [each.task_of[name] for each in models.values()], self.program.target, other)
            for name in (*names, *whole)
            if all(name in each.task_of for each in models.values()) and name in known
        }
        if other:
            names = [name for name in names if config_of.get(name) is not None]
            if not names:
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

        def kernel(name: str) -> tirx.PrimFunc | NotOneKernelError:
            # At odd sizes, twice the half is the size and one.
            is_halved = any(len({extent[-1] for extent in extents}) > 1 for extents in self._extents(name))
            return _one_kernel(name, modules, [r for added, r in attempts.items() if 1 in added or not is_halved])

        return {name: kernel(name) for name in chosen}

    def bases(self, name: str) -> tuple[Extent, ...]:
        """Return the largest extent of each dimension in the tensors of a function."""
        return tuple(
            min(extents, key=lambda extent: extent[-1], default=(place, 1, 0, 1))
            for place, extents in enumerate(self._extents(name))
        )

    def _extents(self, name: str) -> list[list[Extent]]:
        """Return the extents of each dimension in the tensors of a function."""
        first, *more = self._lowered
        found = []
        for place, _ in enumerate(self.most):
            other = next(
                point
                for point in more
                if all((a == b) == (i != place) for i, (a, b) in enumerate(zip(first, point, strict=True)))
            )
            each_shape = zip(*(shapes_in(self._lowered[p].functions.fused[name]) for p in (first, other)), strict=True)
            pairs = {pair for shapes in each_shape for pair in zip(*shapes, strict=False)}
            growing = [extent for extent in self.growing if extent[:2] == (place, 1)]
            found.append([e for e in growing if (extent_of(*e, first), extent_of(*e, other)) in pairs])
        return found

    def _model(self, point: Point) -> Compilation:
        if point not in self._lowered:
            compilation = Compilation.of(self.imported_at(point), self.program.target)
            self._lowered[point] = compilation.lowered().joined_at(self.program.joined)
        return self._lowered[point]

    def _scheduled(
        self, model: Compilation, names: Collection[str], config_of: Mapping[str, Config | None]
    ) -> tvm.IRModule:
        configs = {model.task_of[name].key: config for name, config in config_of.items()}
        return schedule_model(_only(model.functions.fused, names), model.task_of, configs, self.program.target)


def _only(fused: tvm.IRModule, names: Collection[str]) -> tvm.IRModule:
    """Return a module whose other functions need no schedule."""
    functions = {
        var: func.with_attr("tirx.is_scheduled", True)
        if isinstance(func, tirx.PrimFunc) and var.name_hint not in names
        else func
        for var, func in fused.functions_items()
    }
    return tvm.IRModule(functions, global_infos=dict(fused.global_infos))


def _one_kernel(
    name: str, modules: Mapping[Point, tvm.IRModule], attempts: Sequence[Rules]
) -> tirx.PrimFunc | NotOneKernelError:
    for rules in attempts:
        try:
            return one_kernel([modules[point][name] for point in rules.points], rules)
        except NotOneKernelError as error:
            failure = error
    return failure


def _config(config: Config | None, tasks: Sequence[TunableTask], target: Target, other: int) -> Config | None:
    """Return the config of the largest size, or one like it that the spaces of all sizes have. None without one.

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

    def shared(configs: Iterable[Config]) -> list[Config]:
        return [each for each in configs if all(space.knows(each) and space.is_valid(each) for space in spaces)]

    found = shared(attempts) or defaults[:1]
    if other:
        plain = replace(target.limits, has_tensor_cores=False, has_cooperative_matrices=False)
        # Spaces with tensor cores lack the short stages of a first layer's plain products.
        starts = map(with_choices_of, map(spaces[0].completed, tasks[0].template.starts(plain)))
        found += shared([*tasks[0].starts(target), *starts])
    return next(itertools.islice(dict.fromkeys(found), other, None), None)
