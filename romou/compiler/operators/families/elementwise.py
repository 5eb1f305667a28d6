"""Element-wise functions: arithmetic, broadcast, transpose, packing, slice, concatenation, nearest resizing.

    out[i, j] = f(a[i, j], b[j], c[j, i], ...)

The output's elements, in row-major order, are cut into work groups:

    work group    `work_group` work-items. Each writes `items` vectors, one group's width apart, so writes are coalesced
                  (in a resize, of neighbouring channels, for which coordinates and weights are the same)
    vector        `vector_width` elements along the last axis
    across        a tile of `across` vectors if the data is contiguous along another axis, as in packing and transposing

        out[y, x] = a[x, y]
            ->  tile[j, 0:4] = a[4 x + j, 4 y : 4 y + 4]
                out[4 y + i, 4 x : 4 x + 4] = tile[0:4, i]

In an operator without a graph around it, the knobs `data` and `output` put inputs and output into images.
`autobroadcast` leaves scalars in sums and products to the compiler (Romou paper, Listing 4: B = A + n).

If the vector's width does not divide its axis, the last vector ends at the end of the axis and overlaps the one before
it. Elements in the overlap are stored once. Channels of images with odd rows are thus packed and unpacked in vectors.

Without a transpose, axes that all buffers have in the same order are one row on phones, and the elements behind its
last whole vector have a work-item each:

    out[c, y, x] = f(a[c, y, x], b[c])      (5, 77, 77)      ->      1482 vectors and one element of each c
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.relax import op
from tvm_ffi.structural import structural_map

from romou.base.errors import InvalidConfigError
from romou.base.knob import Choice, Knob
from romou.base.limits import Limits
from romou.base.space import Choices, Columns, Config, Space
from romou.compiler.operators.contraction.knobs import AUTOBROADCAST, DATA, OUTPUT
from romou.compiler.operators.family import Case, Family
from romou.compiler.operators.kernels.streaming.blocks import are_neighbours
from romou.compiler.operators.kernels.streaming.template import WORK_GROUP, Points, SplitTemplate
from romou.compiler.operators.kernels.streaming.windows import kept_inside
from romou.compiler.operators.native_functions import FUNCTIONS, function_choices, with_functions
from romou.compiler.passes.fp16_moves import only_moves
from romou.compiler.scheduling.blocks import axes_of, is_regular, loads_of, reductions_of
from romou.compiler.scheduling.kernel_builder import KernelBuilder
from romou.compiler.scheduling.loops import VECTOR_WIDTH
from romou.compiler.scheduling.placement import Placement
from romou.compiler.scheduling.splits import OVERLAPPED, PADDED, PARTIAL, SINGLE, Split
from romou.compiler.scheduling.statements import register_type
from romou.compiler.scheduling.vectors import Vectors
from romou.compiler.tir.expressions import count_of, is_multiple, is_one
from romou.compiler.tir.primitives import LANES, MemoryKind, broadcast_scalars, set_image
from romou.compiler.tir.traversal import has_var, nodes_in, substitute

KNOBS = (
    VECTOR_WIDTH,
    WORK_GROUP,
    Knob(
        name="items",
        choices=(1, 2, 4, 8),
        default=1,
        help="vectors that a work-item computes, a group's width apart, or channels that share a resize's coordinates",
        scales_outputs=True,
    ),
    Knob(
        name="across",
        choices=(1, LANES),
        default=1,
        help=(
            "neighbours of the axis along which the data's neighbours lie, each with a vector of its own: data is read"
            " in vectors, too"
        ),
        scales_outputs=True,
    ),
    DATA,
    OUTPUT,
    AUTOBROADCAST,
    FUNCTIONS,
)


class Elementwise(SplitTemplate):
    """A single loop over all vectors of the output."""

    family = "elementwise"
    knobs = KNOBS

    def space(self, limits: Limits) -> Space:
        # CUDA stores vectors through pointers to vectors, which are aligned.
        may_overlap = self._across is not None and limits.has_vector_arithmetic
        widths = self._widths(self.shape[-1], may_overlap=may_overlap)
        if limits.is_mobile and self._may_have_singles and LANES not in widths:
            widths = [LANES, *widths]
        choices: dict[str, Choices] = {
            "vector_width": widths,
            "work_group": self._groups(limits),
            "across": lambda across: across == 1 or self._across is not None,
            "data": self._places("data", limits),
            "output": self._places("output", limits),
            "autobroadcast": lambda _: self._gains_by_autobroadcast(limits),
            FUNCTIONS.name: function_choices(self.func),
        }
        space = Space.of(self.knobs, limits, choices)
        outputs, columns = math.prod(self.shape), self.shape[-1]
        smallest = space.knobs["work_group"][0]

        # A group more than twice as large as the output would be mostly idle.
        def conditions(config: Columns) -> dict[str, Any]:
            width, across, items = config["vector_width"], config["across"], config["items"]
            elements = config["work_group"] * width * across
            neighbours = math.inf if self._shared is None else self.shape[self._shared]
            return {
                "a group less than twice as large as the output": (config["work_group"] == smallest)
                | (elements < 2 * outputs),
                "work-items of several vectors less than twice the output": (items == 1)
                | (elements * items < 2 * outputs),
                "work-items of several vectors along a longer axis": (items == 1)
                | (items <= neighbours)
                | ((across > 1) & (self._shared == self._across)),
                "whole vectors in a row": (columns % width == 0)
                | (across > 1)
                | ((width == LANES) & (limits.is_mobile and self._may_have_singles)),
                "images are read in texels, not across them": (config.get("data") != MemoryKind.IMAGE)
                | ((width == LANES) & (across == 1)),
                "images are written in texels": (config.get("output") != MemoryKind.IMAGE) | (width == LANES),
                "autobroadcast needs scalars and vectors": np.logical_not(config.get("autobroadcast", False))
                | self._where(config, self._scalars),
            }

        space.add_constraint(conditions)
        return space

    def default_config(self, limits: Limits) -> Config:
        """Return the default config, with square tiles on phones if the data is transposed.

        On a phone, one address costs about the same as several elements. Overlapping fp16 vectors pay only if they are
        moved as bits: OpenCL converts unaligned fp16 element by element.
        """
        space = self.space(limits)
        widths = [int(width) for width in space.knobs["vector_width"]]
        may_overlap = self.element_bytes > 2 or (not self.images and only_moves(self._block.body.value))
        # A texel is one vector for any row length.
        # Single numbers behind whole vectors take no more instructions than a row of them.
        has_any_length = may_overlap or self._across is None
        whole = [width for width in widths if has_any_length or self.shape[-1] % width == 0] or widths
        wanted: dict[str, Choice] = {
            "across": LANES if limits.preset.streaming.has_square_tiles else 1,
            "vector_width": max(whole),
            "items": self._texels_of_work_item(limits),
        }
        # As in Listing 4, B = A + n: a device that gains by it gets no vector of copies.
        config = self._admitted(space, **wanted, autobroadcast=True)
        return config if space.is_valid(config) else self._admitted(space, **wanted, autobroadcast=False)

    @cached_property
    def _shared(self) -> int | None:
        """The last axis that no coordinate of an interpolation depends on: a number of axes that becomes a float.

        out[c, y, x] = a[c, y // 2, x] * float(y % 2) + ...      ->      c
        """
        variables = [axis.var for axis in self._block.iter_vars]
        casts = [cast for cast in nodes_in(self._block.body.value, tirx.Cast) if "float" in str(cast.ty)]
        coordinates = [cast for cast in casts if "int" in str(cast.value.ty) and not loads_of(cast)]
        moved = {axis for axis, var in enumerate(variables) if any(has_var(each, var) for each in coordinates)}
        others = range(len(variables) - self._row_axes)
        fixed = (axis for axis in others if isinstance(self.shape[axis], int) and self.shape[axis] > 1)
        return max((axis for axis in fixed if axis not in moved), default=None) if moved else None

    def _texels_of_work_item(self, limits: Limits) -> int:
        """Return how many texels share coordinates on a phone that they keep busy. More than four take most registers.

        Single elements of rows gain less: their loads take most instructions.
        """
        if self._shared is None or not isinstance(self.elements, int) or not limits.is_mobile:
            return 1
        if not self.works_in_texels or self.access_width(LANES) < LANES:
            return 1
        most = min(LANES, self.shape[self._shared], self.elements // LANES // limits.busy_work_items)
        return max(items for items in (1, 2, LANES) if items <= max(most, 1))

    @cached_property
    def _placement(self) -> Placement:
        """The memory that each parameter may be in."""
        texels = self.activations
        buffers = {str(p.name): p for p in self.func.params}
        return Placement(func=self.func, buffers=buffers, texels=texels, matrices=self.matrices - texels)

    def _places(self, role: str, limits: Limits) -> list[str]:
        """Return the choices of the knob `role`. Empty if there is no choice."""
        if limits.max_image is None or self._has_truth_values or len(self.func.params) == 1:
            return []
        choices = self._placement.choices(self.names[role], limits)
        return choices if len(choices) > 1 else []

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        *inputs, output = (str(p.name) for p in self.func.params)
        roles = {**dict.fromkeys(inputs, "data"), output: "output"}
        names = [name for name, role in roles.items() if config.get(role) == MemoryKind.IMAGE]
        scopes = {name: self._placement.scope(name, limits) for name in names}
        return {**{name: scope for name, scope in scopes.items() if scope is not None}, **self.images}

    def _gains_by_autobroadcast(self, limits: Limits) -> bool:
        """Return whether scalars are combined with vectors, on a mobile GPU with images that is known to gain by it."""
        is_known = limits.gains_by_autobroadcast and limits.has_vector_arithmetic
        return is_known and limits.is_mobile and limits.max_image is not None and any(self._scalars.values())

    @cached_property
    def _scalars(self) -> dict[int, list[tirx.Expr]]:
        """Choice of `across` -> scalars that arithmetic combines with vectors."""
        last, value = self._block.iter_vars[-1].var, bounded(self._block.body.value)
        width = max(*self._widths(self.shape[-1]), LANES if self._may_have_singles else 1)
        vectors = {1: (Vectors(axes_of(self._block), last, width, may_overlap=True), value)} if width > 1 else {}
        vectors |= {} if self._tile is None else {LANES: self._tile[1:]}
        return {across: along.scalars_in(value) for across, (along, value) in vectors.items()}

    @staticmethod
    def _where(columns: Columns, scalars: Mapping[int, Sequence[tirx.Expr]]) -> Any:
        """Return which configs combine vectors with any of `scalars`, by `across`."""
        is_along_last = (columns["across"] == 1) & (columns["vector_width"] > 1)
        return (is_along_last & bool(scalars.get(1))) | ((columns["across"] > 1) & bool(scalars.get(LANES)))

    def has_copies(self, columns: Columns) -> Any:
        """Return whether scalars are copied into vectors. A constant is no copy: it is in no register before."""
        if "autobroadcast" not in columns:
            return False
        loaded = {
            across: [scalar for scalar in scalars if not isinstance(scalar, tirx.FloatImm)]
            for across, scalars in self._scalars.items()
        }
        return np.logical_not(columns["autobroadcast"]) & self._where(columns, loaded)

    @property
    def _across(self) -> int | None:
        """The axis along which the data is contiguous, if that is not the last one and has whole vectors."""
        return None if self._tile is None else self._tile[0]

    @cached_property
    def _tile(self) -> tuple[int, Vectors, tirx.Expr] | None:
        """The axis `_across`, its vectors, and the value in which they are loaded.

        If the width does not divide the axis, the last vector overlaps the one before it, or has packed data's padding:

            out[c, y, x] = a[c // 4, y, x, c % 4] of 21 channels      ->      a[5, y, x, 0:4]: one lane is stored
        """
        if self._has_truth_values or not isinstance(self.shape[-1], int):
            return None
        axes, value = axes_of(self._block), bounded(self._block.body.value)
        *others, last = [axis.var for axis in self._block.iter_vars]
        if self.shape[-1] % LANES == 0 and Vectors(axes, last, LANES).form_of(value) is not None:
            return None
        for axis in reversed(range(len(others))):
            if not isinstance(self.shape[axis], int) or self.shape[axis] < LANES:
                continue
            padded = {var: count_of(e, LANES) * LANES if var.same_as(others[axis]) else e for var, e in axes.items()}
            # An index beyond the last axis is one in the row.
            for vectors, each in (
                (Vectors({**axes, last: self._row}, others[axis], LANES, may_overlap=True), value),
                (Vectors({**padded, last: self._row}, others[axis], LANES), kept_inside(value, padded)),
            ):
                form = vectors.form_of(each)
                if form is not None and any(vectors.moves(load) for load in loads_of(form)):
                    return axis, vectors, each
        return None

    @cached_property
    def _follows(self) -> list[bool]:
        """For each axis, whether all buffers have it after the axis before it, or neither of the two."""
        variables, value = [axis.var for axis in self._block.iter_vars], self._block.body.value
        pairs = zip(itertools.pairwise(variables), self.shape[1:], strict=True)
        return [False, *(are_neighbours(before, behind, extent, value) for (before, behind), extent in pairs)]

    @cached_property
    def _row_axes(self) -> int:
        """The number of last axes that are one row: each buffer has all of them in order, or none."""
        count = 1
        while not self.images and self._follows[-count] and isinstance(self.shape[-count - 1], int):
            count += 1
        return count

    @property
    def _row(self) -> int:
        """Elements of a row of `_row_axes`."""
        return math.prod(self.shape[-self._row_axes :])

    @property
    def _may_have_singles(self) -> bool:
        """True if a vector need not end where the last axis ends: elements behind the last whole vector are single.

        The output is no slice of a buffer then, because slices have texels.
        """
        is_odd = self.shape[-1] % LANES > 0 and self._row > LANES
        return is_odd and self._across is None and not self.images and not self._has_truth_values

    def splits(self, knobs: Mapping[str, Any]) -> list[Split]:
        """Return the splits of the axes into vectors, and into sides of square tiles. A row is one axis, the last."""
        width, across = knobs["vector_width"], knobs["across"]
        has_singles = across == 1 and isinstance(self.shape[-1], int) and self.shape[-1] % width > 0
        joined = self._row_axes if has_singles or across > 1 else 1
        outer = [*self.shape[: len(self.shape) - joined], *[1] * (joined - 1)]
        splits = [Split(extent) for extent in outer]
        if across > 1 and self._tile is not None:
            axis, along, _ = self._tile
            splits[axis] = Split(self.shape[axis], across, OVERLAPPED if along.repeated else PADDED)
        if (shared := self._sharing(knobs)) is not None:
            splits[shared] = Split(self.shape[shared], knobs["items"], PARTIAL)
        return [*splits, Split(math.prod(self.shape[-joined:]), width, SINGLE if has_singles else OVERLAPPED)]

    @property
    def works_in_rows(self) -> bool:
        return self._across is None and len(self.shape) > 1 and self.shape[-1] % LANES == 0

    knobs_of_traffic = ("vector_width", "work_group", "items", "across", "data")
    knobs_of_width = ("vector_width", "across")
    knobs_of_pieces = ("vector_width", "across", "items")

    def points_of_group(self, knobs: Mapping[str, int]) -> Points:
        """Return the elements of the first group's vectors, with all vectors of each tile."""
        elements = self.elements_of(knobs["work_group"], knobs)
        return lambda _block: elements

    def points_of_work_item(self, knobs: Mapping[str, int]) -> Points:
        """Return the elements of the first work-item's vectors."""
        elements = self.elements_of(1, knobs)
        return lambda _block: elements

    def group_key(self, knobs: Mapping[str, int]) -> Hashable:
        """Group configs by a group's number of elements, which are the output's first ones or share coordinates."""
        width = knobs["vector_width"] if knobs["across"] > 1 else 1
        return self.stored_by_a_group(knobs), knobs["across"], width, self._shared is None or knobs["items"]

    def _sharing(self, knobs: Mapping[str, Any]) -> int | None:
        """Return the axis along which a work-item has `items` neighbours, if tiles have none along it."""
        return None if knobs["across"] > 1 and self._shared == self._across else self._shared

    def repeats_of(self, knobs: Mapping[str, Any]) -> int:
        return int(knobs["items"]) if self._sharing(knobs) is None else 1

    def access_width(self, width: int, across: int = 1) -> int:
        """Return the lanes of the narrowest load of "data"."""
        return super().access_width(width) if across == 1 else across

    @property
    def _block(self) -> s_tir.SBlock:
        (block,) = self.blocks
        return block

    def vectors(self, width: int) -> list[tuple[Vectors, tirx.Expr]]:
        return [(Vectors(axes_of(self._block), self._block.iter_vars[-1].var, width), self._block.body.value)]

    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        splits, grid, images = self.splits(config), self.grid(config), self.image_scopes(config, limits)
        shared = self._sharing(config)
        if config["across"] == 1 and (shared is None or config["items"] == 1) and not images:
            grid = self._joined(grid, config["vector_width"])
        piece = self._square if config["across"] > 1 else self._vector

        def write(k: KernelBuilder, indices: Sequence[tirx.Expr]) -> None:
            with k.inside(broadcast_scalars if config.get("autobroadcast") else lambda body: body):
                if shared is None:
                    piece(k, indices, splits)
                    return
                items, first = splits[shared], indices[shared]
                for is_whole in _branches(k, items, first):
                    with k.loop("item", items.size if is_whole else items.left, "unrolled") as item:
                        at = first * items.size + item
                        piece(k, [*indices[:shared], at, *indices[shared + 1 :]], splits)

        func = with_functions(self.launched(grid, config, write), config)
        for name, scope in images.items():
            func = func if name in self.images else set_image(func, name, scope)
        return tvm.IRModule({"main": func})

    def _vector(self, k: KernelBuilder, indices: Sequence[tirx.Expr], splits: Sequence[Split]) -> None:
        """Store a vector along the last axis, or one element after the whole vectors of a row.

        indices: of the piece along each of the axes that `splits` splits.
        """
        block, value, row = self._block, bounded(self._block.body.value), splits[-1]
        *axes, last = [axis.var for axis in block.iter_vars]
        *outer, piece = indices
        for is_whole in _branches(k, row, piece):
            # An index beyond the last axis is one in the row.
            vectors = Vectors({**axes_of(block), last: row.extent}, last, row.size if is_whole else 1)
            at = piece if is_whole else piece + row.whole * (row.size - 1)
            position = [*axes, vectors.index] if block.body.indices else []
            stored, registers = vectors.store(block.body.buffer, position, value)
            values = dict(zip([*axes, vectors.vector], [*outer, at], strict=True))
            k.emit_with((substitute(stored, values), registers))

    def _joined(self, grid: Sequence[int], width: int) -> list[int]:
        """Return the vectors along each axis, neighbouring axes joined if each buffer has both or neither in order.

        out[c, y, x] = f(a[c, y, x], b[c])      ->      out[c, 0, p] = f(a[c, 0, p], b[c])

        Nothing divides positions that are the same in all buffers. Batches stay apart, because a buffer may become a
        slice of a tensor with more channels.
        """
        joined, last = list(grid), len(grid) - 1
        for axis in range(1 if is_one(self.shape[0]) else 2, len(grid)):
            # The index of an axis of one element, or of one vector, has been simplified to a constant.
            can_count = not is_one(grid[axis]) and (axis < last or is_multiple(self.shape[-1], width))
            if can_count and self._follows[axis]:
                joined[axis - 1 : axis + 1] = 1, joined[axis - 1] * joined[axis]
        return joined

    def _square(self, k: KernelBuilder, indices: Sequence[tirx.Expr], splits: Sequence[Split]) -> None:
        """Load vectors along the data, transpose them, and store them along the output. indices: as for `_vector`."""
        if self._tile is None:
            raise InvalidConfigError(f"across = {LANES}: the data is contiguous along no other axis of fixed length")
        block, kind = self._block, str(self._block.body.buffer.dtype)
        *axes, last = [axis.var for axis in block.iter_vars]
        tiled, along, value = self._tile
        width, across = splits[-1].size, splits[tiled].size
        # An index beyond the last axis is one in the row.
        row = Vectors({**axes_of(block), last: splits[-1].extent}, last, width, may_overlap=True)
        form = along.form_of(value)
        assert form is not None, "`_tile` found it"
        loaded = k.array("loaded", width, across, dtype=register_type(kind))
        transposed = k.array("transposed", across, width, dtype=register_type(kind))
        first, column = along.begin(indices[tiled]), row.begin(indices[-1])

        def column_of(lane: tirx.Expr) -> tirx.Expr:
            return substitute(row.index, {row.vector: column, row.lane: lane})

        with k.loop("lane", width, "unrolled") as lane, k.loop("lane", across, "vectorized") as step:
            values = {along.vector: first, along.lane: step, last: column_of(lane)}
            values |= dict(zip(axes, indices[:-1], strict=True))
            loaded[lane, step] = substitute(form, values).astype(register_type(kind))
        with k.loop("step", across, "unrolled") as step, k.loop("lane", width, "unrolled") as lane:
            transposed[step, lane] = loaded[lane, step]

        def store(rows: tuple[int, int], *lanes: tuple[int, int]) -> None:
            with k.loop("step", rows[1] - rows[0], "unrolled") as iteration:
                step = iteration + rows[0]
                for begin, end in lanes:
                    with k.lanes(end - begin) as lane:
                        into = [*indices[:-1], column_of(lane + begin)]
                        into[tiled] = substitute(along.index, {along.vector: first, along.lane: step})
                        element = transposed[step, lane + begin].astype(kind)
                        k.emit(tirx.BufferStore(block.body.buffer, element, into))

        # The last vector of a row stores at most three elements: part, two as a vector, or both.
        new, _ = splits[-1].stored_by_last
        pairs = new + new % 2
        parts = [lanes for lanes in ((new, pairs), (pairs, width)) if lanes[0] < lanes[1]]
        # Each tile stores what the last one does, and a whole one also its other vectors.
        low, high = splits[tiled].stored_by_last
        if splits[tiled].left:
            with k.when(indices[tiled] < splits[tiled].whole):
                for is_whole in _branches(k, splits[-1], indices[-1]):
                    store((0, low) if low else (high, across), *([(0, width)] if is_whole else parts))
        for is_whole in _branches(k, splits[-1], indices[-1]):
            store((low, high), *([(0, width)] if is_whole else parts))


def _branches(k: KernelBuilder, split: Split, piece: tirx.Expr) -> Iterator[bool]:
    """Yield True in the branch of whole pieces, then False in that of the tail, if there is one."""
    with k.when(piece < split.whole if split.left else None):
        yield True
    if split.left:
        with k.otherwise():
            yield False


def bounded(value: tirx.Expr) -> tirx.Expr:
    """Clamp int64 indices read from memory to the axis that they index.

    table[at[i], j]      ->      table[max(min(at[i], rows - 1), 0), j]

    Addresses then fit 32 bits, which phones compute fast, and no access leaves the tensor.
    """

    def load(access: TensorLoad) -> TensorLoad:
        axes = zip(access.indices, access.source.shape, strict=True)
        indices = [
            _inside(index, extent) if str(index.ty) == "int64" and loads_of(index) else index for index, extent in axes
        ]
        return tirx.BufferLoad(access.source, indices)

    return structural_map(value, (TensorLoad, load))


def _inside(index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    return tirx.max(tirx.min(index, extent - 1), tirx.const(0, index.ty)).astype("int32").astype("int64")


class ElementwiseFamily(Family):
    """Chains of element-wise operators, broadcasts, transposes, slices, concatenations."""

    name = "elementwise"
    precedence = 10

    def template_of(self, func: tirx.PrimFunc) -> Elementwise | None:
        return Elementwise(func) if is_regular(func) and not reductions_of(func) else None

    @property
    def cases(self) -> Sequence[Case]:
        return [
            Case(
                name="chain",
                inputs=[(3, 7, 11), (3, 7, 11), (11,)],
                build=lambda a, b, c: op.nn.relu(op.add(op.multiply(a, b), c)),
                compute=lambda a, b, c: np.maximum(a * b + c, 0),
            ),
            Case(
                name="concat",
                inputs=[(5, 7), (5, 13)],
                build=lambda a, b: op.concat([a, b], axis=1),
                compute=lambda a, b: np.concatenate([a, b], axis=1),
            ),
            Case(
                name="transpose",
                inputs=[(2, 13, 19)],
                build=lambda a: op.exp(op.permute_dims(a, [0, 2, 1])),
                compute=lambda a: np.exp(a.transpose(0, 2, 1)),
            ),
        ]


FAMILY = ElementwiseFamily()
