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
from romou.compiler.operators.schedule_template import Template
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.blocks import find_blocks, operations_of
from romou.compiler.scheduling.loops import VECTOR_WIDTH
from romou.compiler.scheduling.rewrites import inlined, split_tuples
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.expressions import bounds_of, extents_of, largest
from romou.compiler.tir.primitives import LANES

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
        values = self.vectors(LANES)
        texels = [
            p
            for p in self.func.params
            if len(p.shape) > 2 and int(p.shape[-1]) == LANES and str(p.dtype) in ("float32", "float16")
        ]
        return {
            str(p.name)
            for p in texels
            if all(vectors.width_of(value, str(p.name)) == LANES for vectors, value in values)
        }

    @property
    def matrices(self) -> set[str]:
        """Parameters with rows read and written in whole texels."""
        if not self.works_in_rows:
            return set()
        values = self.vectors(LANES)
        rows = [
            p
            for p in self.func.params
            if len(p.shape) > 1 and int(p.shape[-1]) % LANES == 0 and str(p.dtype) in ("float32", "float16")
        ]
        return {str(p.name) for p in rows if all(vectors.takes_texels(value, str(p.name)) for vectors, value in values)}

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

    # For the formulas of `romou/compiler/operators/costs/streaming_form.py`. A point of a block is one value for each
    # of its axes.

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


@functools.lru_cache(maxsize=32)
def _simplified(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline and split a function. Cached, because each family and several stages need it."""
    return inlined(split_tuples(func))
