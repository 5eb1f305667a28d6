"""Functions that compute every element of their output by itself: chains of element-wise operators, broadcasts, transposes, packing, slices,
concatenation, resizing by the nearest pixel.

    out[i, j] = f(a[i, j], b[j], c[j, i], ...)

The output's elements lie in one row, cut into work groups:

    work group    `work_group` work-items; each writes `items` vectors, which lie a group's width apart, so that neighbours write to neighbours
    vector        `vector_width` elements along the last axis, where that divides it
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.relax import op
from tvm_ffi.structural import structural_map

from romou.core.knob import Knob
from romou.core.limits import Limits
from romou.core.space import Columns, Config, Space
from romou.schedules.blocks import is_regular, loads_of, reductions_of
from romou.schedules.emit import Vectors, axes_of, guarded, launch, loop, place_of, substitute
from romou.schedules.family import Case, Family
from romou.schedules.loops import VECTOR_WIDTH
from romou.schedules.streaming import WORK_GROUP, Points, StreamingTemplate

KNOBS = (
    VECTOR_WIDTH,
    WORK_GROUP,
    Knob(name="items", choices=(1, 2, 4, 8), default=1, help="vectors that a work-item computes, a group's width apart", scales_outputs=True),
)


class Elementwise(StreamingTemplate):
    """One loop over all vectors of the output."""

    family = "elementwise"
    knobs = KNOBS

    def space(self, limits: Limits) -> Space:
        space = Space.of(self.knobs, limits, {"vector_width": self._widths(self.shape[-1]), "work_group": self._groups(limits)})
        outputs = math.prod(self.shape)
        smallest = space.knobs["work_group"][0]
        # A group more than twice as large as the whole operator is mostly idle.
        space.add_constraint(
            lambda config: (
                ((config["work_group"] == smallest) | (config["work_group"] * config["vector_width"] < 2 * outputs))
                & ((config["items"] == 1) | (config["work_group"] * config["items"] * config["vector_width"] < 2 * outputs))
            )
        )
        return space

    knobs_of_traffic = ("vector_width", "work_group", "items")

    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """The first elements of the output."""
        return self._points(np.arange(self.stored_by_a_group(knobs)))

    def points_of_one(self, knobs: Mapping[str, int]) -> Points:
        """Vectors that lie a group's width apart."""
        step = knobs["work_group"] * knobs["vector_width"]
        elements = (step * np.arange(knobs["items"])[:, None] + np.arange(knobs["vector_width"])).reshape(-1)
        return self._points(elements[elements < self.elements])

    def same_group(self, knobs: Mapping[str, int]) -> Hashable:
        """Return the number of elements: the first ones are the same for as many."""
        return self.stored_by_a_group(knobs)

    def _points(self, elements: np.ndarray) -> Points:
        return lambda _block: np.unravel_index(elements, self.shape)

    def stored_by_a_group(self, knobs: Mapping[str, int]) -> int:
        """Numbers of the output: what the group computes, but for what is beyond the end."""
        return min(self.elements, math.prod(knobs[name] for name in self.knobs_of_traffic))

    def work_groups(self, columns: Columns) -> Any:
        return -(-self.elements // math.prod(columns[name] for name in self.knobs_of_traffic))

    @property
    def _block(self) -> s_tir.SBlock:
        (block,) = self.blocks
        return block

    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        return [(Vectors(axes_of(self._block), self._block.iter_vars[-1].var, width), self._block.body.value)]

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        width, items, size = (config[name] for name in ("vector_width", "items", "work_group"))
        ((vectors, value),) = self.vectors(width)
        axes = [axis.var for axis in self._block.iter_vars[:-1]]
        group, item, thread = (tirx.Var(name, vectors.lane.ty) for name in ("group", "item", "thread"))
        texels = self.elements // width
        texel = (group * items + item) * size + thread
        *outer, inner = place_of(texel, [*self.shape[:-1], self.shape[-1] // width])
        body, buffers = vectors.store(self._block.body.buffer, [*axes, vectors.index], bounded(value))
        body = substitute(body, dict(zip([*axes, vectors.vector], [*outer, inner], strict=True)))
        body = guarded(texel < texels if texels % (size * items) else None, body)
        threads = {"blockIdx.x": (group, -(-texels // (size * items))), "threadIdx.x": (thread, size)}
        return launch(self.simplified, threads, loop(item, items, body, "unrolled"), buffers)


def bounded(value: tirx.Expr) -> tirx.Expr:
    """Keep 64-bit indices that are read from memory inside the axis that they index: addresses then are computed with 32 bits, which phones have, and no memory
    but the tensor's is read.

    table[at[i], j]      ->      table[max(min(at[i], rows - 1), 0), j]
    """

    def load(access: TensorLoad) -> TensorLoad:
        places = zip(access.indices, access.source.shape, strict=True)
        indices = [_inside(index, extent) if str(index.ty) == "int64" and loads_of(index) else index for index, extent in places]
        return tirx.BufferLoad(access.source, indices)

    return structural_map(value, (TensorLoad, load))


def _inside(index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    return tirx.max(tirx.min(index, extent - 1), tirx.const(0, index.ty)).astype("int32").astype("int64")


class ElementwiseFamily(Family):
    """Chains of element-wise operators, broadcasts, transposes, slices, concatenations."""

    name = "elementwise"
    precedence = 10

    def template_of(self, func: tirx.PrimFunc) -> Elementwise | None:
        return Elementwise(func) if is_regular(func) and not reductions_of(func) and func.params[-1].shape else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="chain",
                inputs=[(3, 7, 11), (3, 7, 11), (11,)],
                build=lambda a, b, c: op.nn.relu(op.add(op.multiply(a, b), c)),
                compute=lambda a, b, c: np.maximum(a * b + c, 0),
            ),
            Case(name="concat", inputs=[(5, 7), (5, 13)], build=lambda a, b: op.concat([a, b], axis=1), compute=lambda a, b: np.concatenate([a, b], axis=1)),
            Case(
                name="transpose",
                inputs=[(2, 13, 20)],
                build=lambda a: op.exp(op.permute_dims(a, [0, 2, 1])),
                compute=lambda a: np.exp(a.transpose(0, 2, 1)),
            ),
        ]


FAMILY = ElementwiseFamily()
