"""The base of templates that read each input once: element-wise chains, pooling, row reductions.

Memory bounds them, not arithmetic.
"""

from __future__ import annotations

import functools
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import s_tir, tirx

from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.space import Columns, Config, Space
from romou.compiler.operators.analysis.form import Form, loads_of_one, tabulate
from romou.compiler.operators.analysis.usage import KernelUsage
from romou.compiler.operators.schedule_template import Template
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.blocks import find_blocks, operations_of
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.loops import VECTOR_WIDTH
from romou.compiler.scheduling.rewrites import inlined, split_tuples
from romou.compiler.scheduling.splits import Split
from romou.compiler.scheduling.statements import unravel
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.evaluate import count_distinct, evaluate
from romou.compiler.tir.expressions import FLOATS, bounds_of, count_of, extents_of, is_multiple, largest
from romou.compiler.tir.guarded_loads import guarded_loads
from romou.compiler.tir.primitives import LANES, MemoryKind

WORK_GROUP = Knob(
    name="work_group",
    choices=(16, 32, 64, 128, 256, 512),
    default=64,
    help="work-items of a group",
    scales_outputs=True,
)
Points: TypeAlias = Callable[[s_tir.SBlock], Sequence[np.ndarray]]


class StreamingTemplate(Template):
    """A function of regular blocks (`blocks.is_regular`) without a contraction."""

    sums_products = False

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func

    @property
    def name(self) -> str:
        """The family, the names of the blocks and the output's shape."""
        # TVM names a block after its operator, sometimes with the graph variable as a prefix.
        steps = "_".join(re.sub(r"^(T|lv\d*|gv\d*|x\d*)_", "", block.name_hint) for block in find_blocks(self.func))
        return f"{self.family}_{steps[:60]}_{'x'.join(str(extent) for extent in self.shape)}"

    @cached_property
    def flops(self) -> int:
        """Floating-point operations and function calls of the plain definition."""
        return operations_of(self.func)

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """Shape of the output, (1,) for a scalar. Extents may be expressions of sizes at run time."""
        return tuple(extents_of(self.func.params[-1].shape)) or (1,)

    @property
    def names(self) -> dict[str, str]:
        """Roles of parameters. The largest input is "data"."""
        *inputs, output = self.func.params
        bounds = bounds_of(self.func)
        sizes = [math.prod(largest(extent, bounds) for extent in parameter.shape) for parameter in inputs]
        return {"data": str(inputs[sizes.index(max(sizes))].name), "output": str(output.name)}

    @property
    def inputs(self) -> dict[str, int]:
        """Parameters read by the kernel -> bytes of an element."""
        return {str(p.name): tvm.DataType(str(p.dtype)).itemsize for p in self.func.params[:-1]}

    @property
    def elements(self) -> int:
        """Elements of the output."""
        return math.prod(self.shape)

    @property
    def works_in_texels(self) -> bool:
        """True if the output may be stored in an image."""
        return len(self.shape) > 2 and self.shape[-1] == LANES

    @property
    def activations(self) -> set[str]:
        """Parameters that the kernel accesses in whole texels, each by one work-item."""
        if not self.works_in_texels:
            return set()
        texels = [str(p.name) for p in self._float_params if len(p.shape) > 2 and int(p.shape[-1]) == LANES]
        values = self.vectors(LANES)
        return {name for name in texels if all(vectors.width_of(value, name) == LANES for vectors, value in values)}

    @property
    def matrices(self) -> set[str]:
        """Parameters with rows read and written in whole texels."""
        if not self.works_in_rows:
            return set()
        rows = [str(p.name) for p in self._float_params if len(p.shape) > 1 and int(p.shape[-1]) % LANES == 0]
        values = self.vectors(LANES)
        return {name for name in rows if all(vectors.takes_texels(value, name) for vectors, value in values)}

    @property
    def _float_params(self) -> list[tirx.Buffer]:
        return [p for p in self.func.params if str(p.dtype) in FLOATS]

    @property
    def works_in_rows(self) -> bool:
        """True if the output is written in vectors of four neighbours of its last axis."""
        return False

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        return type(self)(func).schedule(config, limits)["main"]

    def configs_for_any_size(self, config: Config, limits: Limits) -> list[Config]:
        """Return configs like one of this template, with narrower vectors, the widest first."""
        space = self.space(limits)
        configs = [config]
        for width in sorted((int(width) for width in space.knobs["vector_width"]), reverse=True):
            wanted: dict[str, Sequence[Choice]] = {"vector_width": (width,), "across": (1,), "is_unrolled": (True,)}
            known = {name: choices for name, choices in wanted.items() if name in space.knobs}
            part = space.narrowed(known) if width <= config["vector_width"] else None
            like = config.replace(**{name: choices[0] for name, choices in known.items()})
            configs += [] if part is None else [part.nearest_valid(like)]
        return list(dict.fromkeys(configs))

    @abstractmethod
    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        """Return the value of each block with its vector form for `width` elements."""

    # Knobs that change `access_width`.
    knobs_of_width: tuple[str, ...] = ("vector_width",)

    def access_width(self, width: int) -> int:
        """Return the lanes of the narrowest load of "data" for vectors of `width` lanes."""
        return min(vectors.width_of(value, self.names["data"]) for vectors, value in self.vectors(width))

    def default_config(self, limits: Limits) -> Config:
        """Return the knobs' defaults, shrunk to the widest vectors, then the largest group, that the space allows."""
        return self._admitted(self.space(limits))

    @staticmethod
    def _admitted(space: Space, **wanted: Choice) -> Config:
        """Return `default_config` with the values `wanted` in place of the knobs' defaults."""
        config = space.default(**wanted)
        widths, groups = (
            sorted((c for c in space.knobs[n] if isinstance(c, int) and c <= config[n]), reverse=True)
            for n in ("vector_width", "work_group")
        )
        configs = (config.replace(vector_width=width, work_group=group) for width in widths for group in groups)
        return next((candidate for candidate in configs if space.is_valid(candidate)), config)

    @cached_property
    def simplified(self) -> tirx.PrimFunc:
        """The function with every block inlined that can be."""
        return _simplified(self.func)

    # For the formulas of `StreamingForm`. A point of a block is one value for each of its axes.

    def form(self, limits: Limits) -> StreamingForm:
        return StreamingForm(self, limits)

    @cached_property
    def blocks(self) -> list[s_tir.SBlock]:
        """Blocks of `simplified`."""
        return find_blocks(self.simplified)

    @property
    def values(self) -> list[tirx.Expr]:
        """The value that each block stores."""
        return [block.body.value for block in self.blocks]

    # Knobs that change the bytes read. A space may lack some.
    knobs_of_traffic: tuple[str, ...]

    @abstractmethod
    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """Return the points of a block that the first work group computes."""

    @abstractmethod
    def points_of_work_item(self, knobs: Mapping[str, int]) -> Points:
        """Return the points of a block that the first work-item computes."""

    def group_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Return a key that is equal for knobs with the same elements in `points_of_group`."""
        return tuple(knobs.values())

    def work_item_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Return a key that is equal for knobs with the same `points_of_work_item` and `repeats`."""
        return tuple(knobs.values())

    def repeats(self, block: s_tir.SBlock, knobs: Mapping[str, int]) -> int:
        """Return how often a loop repeats `points_of_work_item` for a block."""
        return 1

    @abstractmethod
    def stored_by_a_group(self, knobs: Mapping[str, int]) -> int:
        """Return the number of output elements that the first work group writes."""

    def work_group_size(self, columns: Columns) -> Any:
        """Return the work-items of a group."""
        return columns["work_group"]

    @abstractmethod
    def work_groups(self, columns: Columns) -> Any:
        """Return the groups of the launch."""

    def local_memory_bytes(self, columns: Columns) -> Any:
        """Return the bytes of local memory of a work group."""
        return 0

    def is_staged(self, columns: Columns) -> Any:
        """Return whether data passes through local memory."""
        return False

    def local_loads(self, columns: Columns) -> Any:
        """Return an upper bound of the bytes that a work-item reads from local memory."""
        return 0

    def has_copies(self, columns: Columns) -> Any:
        """Return whether scalars are copied into vectors although the knob `autobroadcast` saves that."""
        return False

    def _groups(self, limits: Limits) -> list[int]:
        """Return the allowed work group sizes."""
        return [int(g) for g in WORK_GROUP.choices if int(g) <= limits.max_work_group_size] or [
            limits.max_work_group_size
        ]

    @property
    def _has_truth_values(self) -> bool:
        """True if a parameter is boolean. OpenCL has no vectors of booleans in memory."""
        return any(str(p.dtype) == "bool" for p in self.func.params)

    def _widths(self, extent: int, *, may_overlap: bool = False) -> list[int]:
        """Return the allowed vector widths along an axis of `extent`.

        may_overlap: whether the last vector of a row may overlap the one before it.
        """
        fits = [
            int(width)
            for width in VECTOR_WIDTH.choices
            if extent % int(width) == 0 or (may_overlap and extent > int(width))
        ]
        return [LANES] if self.images else [width for width in fits if width == 1 or not self._has_truth_values]


class SplitTemplate(StreamingTemplate):
    """A function whose output is split into pieces. Work-items store them in row-major order."""

    # Knobs that change `splits` or the pieces of a work-item.
    knobs_of_pieces: tuple[str, ...]

    @abstractmethod
    def splits(self, knobs: Mapping[str, Any]) -> list[Split]:
        """Return the split of each axis of the output."""

    def grid(self, knobs: Mapping[str, Any]) -> list[Any]:
        """Return the number of pieces along each axis."""
        return [split.count for split in self.splits(knobs)]

    def repeats_of(self, knobs: Mapping[str, Any]) -> int:
        """Return the pieces of a work-item, which are a group's width apart."""
        return 1

    def pieces_of(self, work_items: int, knobs: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the index along each axis of the pieces that the first work-items of the first group have."""
        grid = self.grid(knobs)
        numbers = np.arange(work_items) + knobs["work_group"] * np.arange(self.repeats_of(knobs))[:, None]
        return list(np.unravel_index(numbers[numbers < math.prod(grid)], grid))

    def elements_of(self, work_items: int, knobs: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the elements of `pieces_of` along each axis. Arrays have an axis for the pieces, and one for each."""
        pieces = zip(self.splits(knobs), self.pieces_of(work_items, knobs), strict=True)
        elements = [split.elements(indices) for split, indices in pieces]
        return [
            each.reshape(len(each), *[1] * axis, -1, *[1] * (len(elements) - axis - 1))
            for axis, each in enumerate(elements)
        ]

    def work_groups(self, columns: Columns) -> Any:
        names = self.knobs_of_pieces

        def work_items(*values: Any) -> int:
            knobs = dict(zip(names, values, strict=True))
            return int(count_of(math.prod(self.grid(knobs)), self.repeats_of(knobs)))

        return -(-tabulate(work_items, *(columns[name] for name in names)) // columns["work_group"])

    def stored_by_a_group(self, knobs: Mapping[str, int]) -> int:
        pieces = zip(self.splits(knobs), self.pieces_of(knobs["work_group"], knobs), strict=True)
        return int(np.prod([split.stored(indices) for split, indices in pieces], axis=0).sum())

    def launched(
        self, grid: Sequence[Any], config: Config, write: Callable[[KernelBuilder, Sequence[tirx.Expr]], None]
    ) -> tirx.PrimFunc:
        """Return the kernel of a config.

        grid: `grid`, perhaps with neighbouring axes as one.
        write: emits the statements of a piece, given its indices.
        """
        size, repeats = config["work_group"], self.repeats_of(config)
        k, count = KernelBuilder(self.blocks[0].iter_vars[-1].var.ty), math.prod(grid)
        group = k.axis("blockIdx.x", "group", count_of(count, size * repeats))
        thread = k.axis("threadIdx.x", "thread", size)
        with k.loop("item", repeats, "unrolled") as item:
            number = (group * repeats + item) * size + thread
            with k.when(None if is_multiple(count, size * repeats) else number < count):
                write(k, unravel(number, grid))
        return k.launched(self.simplified)


class StreamingForm(Form):
    """The formulas of one operator without a contraction, over arrays of knobs.

    They evaluate the reads of the plain function for one work group. The template has the elements that the first work
    group and its first work-item compute. Addresses and conditions are taken from the function's blocks, so nothing is
    lowered. Registers are not known: 0.
    """

    def __init__(self, template: StreamingTemplate, limits: Limits) -> None:
        self._template, self._limits = template, limits
        self._loads = [
            (block, load)
            for block, value in zip(template.blocks, template.values, strict=True)
            for load in guarded_loads(value)
            if str(load.access.source.name) in template.inputs
        ]
        # Values of the relevant knobs -> tensor -> distinct numbers read.
        self._known: dict[tuple[str, Hashable], dict[str, int]] = {}
        self._counts = functools.cache(self._count)

    def counts(self, columns: Columns) -> dict[str, np.ndarray]:
        """Return counts of reads and stores, and the access width.

        The reads are bytes read by the group and by one work-item, from buffers and from images, and numbers read by
        one work-item. The stores are numbers stored by the group.
        """
        knobs = tuple(name for name in self._template.knobs_of_traffic if name in columns)
        names = ("group", "group_images", "one", "one_images", "numbers", "stored")
        counted = {
            name: tabulate(
                lambda *values, field=field: self._counts(knobs, values)[field], *(columns[knob] for knob in knobs)
            )
            for field, name in enumerate(names)
        }
        return {
            **counted,
            "width": tabulate(self._template.access_width, *(columns[name] for name in self._template.knobs_of_width)),
        }

    def usage_with(self, columns: Columns, counts: Mapping[str, Any]) -> KernelUsage:
        template = self._template
        size, groups = template.work_group_size(columns), template.work_groups(columns)
        return KernelUsage(
            registers=0,
            needed_registers=0,
            buffer_bytes=counts["group"],
            image_bytes=counts["group_images"],
            unshared_buffer_bytes=counts["one"] * size,
            unshared_image_bytes=counts["one_images"] * size,
            access_width=counts["width"],
            output_bytes=template.elements * template.element_bytes,
            iterations=1,
            multiply_adds=counts["numbers"],
            local_loads=template.local_loads(columns),
            work_group_size=size,
            work_groups=groups,
            local_memory_bytes=template.local_memory_bytes(columns),
            is_staged=template.is_staged(columns),
            images={
                role: np.asarray(columns[role]) == MemoryKind.IMAGE if role in columns else name in template.images
                for role, name in template.names.items()
            },
            has_copies=template.has_copies(columns),
            padding=groups * counts["stored"] / template.elements - 1,
            element_bytes=template.element_bytes,
        )

    def loads(self, columns: Columns, usage: KernelUsage, warp_size: int, line_bytes: int) -> tuple[Any, ...]:
        """Return the loads as `Form.loads` does. Loads of a warp are coalesced, and there is no weight."""
        items = usage.work_groups * usage.work_group_size
        stored = (1 + usage.padding) * self._template.elements / items
        lines = -(
            -np.minimum(usage.work_group_size, warp_size)
            * usage.access_width
            * self._template.element_bytes
            // line_bytes
        )
        return stored, loads_of_one(usage), 0, lines, 0

    def _count(self, names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[int, ...]:
        knobs = dict(zip(names, values, strict=True))
        template, cached = self._template, self._known
        images = template.image_scopes(Config(knobs), self._limits)
        for_group, for_one = ("group", template.group_key(knobs)), ("one", template.work_item_key(knobs))
        if for_group not in cached:
            cached[for_group] = self._distinct(template.points_of_group(knobs))
        if for_one not in cached:
            cached[for_one] = self._distinct(template.points_of_work_item(knobs), knobs)
        of_group, of_one = cached[for_group], cached[for_one]
        bytes_of = template.inputs

        def total(distinct: dict[str, int], from_images: bool) -> int:
            return sum(bytes_of[name] * count for name, count in distinct.items() if (name in images) == from_images)

        parts = [total(distinct, from_images) for distinct in (of_group, of_one) for from_images in (False, True)]
        return (*parts, sum(of_one.values()), template.stored_by_a_group(knobs))

    def _distinct(self, points: Points, knobs: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return tensor -> count of distinct numbers read at the points.

        knobs: if given, reads in loops count once for each iteration
        """
        reads: dict[tuple[str, int], list[np.ndarray]] = {}
        for block, load in self._loads:
            values = dict(zip((axis.var for axis in block.iter_vars), points(block), strict=True))
            shape = np.broadcast_shapes(*(np.shape(value) for value in values.values()))
            address: Any = 0
            for index, extent in zip(load.access.indices, load.access.source.shape, strict=True):
                coordinate = evaluate(index, values)
                # Reads outside an image return zero and get separate addresses.
                before, behind = max(0, -int(np.min(coordinate))), max(0, int(np.max(coordinate)) + 1 - int(extent))
                address = address * (before + int(extent) + behind) + before + coordinate
            is_read = np.ones(shape, dtype=bool)
            times = 1 if knobs is None else self._template.repeats(block, knobs)
            # Repeated reads count unconditionally: in the first iteration all may be padding.
            for condition in load.conditions if times == 1 else ():
                is_read = is_read & evaluate(condition, values)
            reads.setdefault((str(load.access.source.name), times), []).append(np.broadcast_to(address, shape)[is_read])
        total: dict[str, int] = {}
        for (name, times), addresses in reads.items():
            total[name] = total.get(name, 0) + times * count_distinct(np.concatenate(addresses))
        return total


@functools.lru_cache(maxsize=32)
def _simplified(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline and split a function. Cached, because each family and several stages need it."""
    return inlined(split_tuples(func))
