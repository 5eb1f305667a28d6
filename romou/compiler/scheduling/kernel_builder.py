"""Write a kernel out as nested `with` blocks over registers and local memory that are indexed like arrays.

    sums = k.array("sums", 2, 4)                  ->      float sums[8];
    with k.loop("step", steps) as step:                   for (step = 0; step < steps; ++step)
        with k.when(step < last):                             if (step < last)
            with k.lanes() as lane:                               for each of four lanes, as a vector
                sums[1, lane] += data[step]                           sums[4 + lane] = sums[4 + lane] + data[step]

A Python loop unrolls its body. A kernel is a class of such methods, derived from `KernelBuilder`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from tvm import tirx

from romou.compiler.scheduling import statements
from romou.compiler.tir.expressions import extents_of, is_one
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import sequence_of
from romou.devices.backends.dialect import call_on_device

Index: TypeAlias = "int | tirx.Expr"
# Axes of a launch from the outermost one.
_AXES = ("blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y", "threadIdx.x")


class Array:
    """Registers or local memory with several axes. `a[i, j]` is a load, `a[i, j] = x` emits a store.

    A last index `:` means all elements of the last axis, as one vector.
    """

    def __init__(self, builder: KernelBuilder, buffer: tirx.Buffer, shape: Sequence[Any], begin: int = 0) -> None:
        self._builder, self.buffer, self.shape, self._begin = builder, buffer, tuple(extents_of(shape)), begin

    def _flat(self, index: Any) -> tirx.Expr:
        indices = index if isinstance(index, tuple) else (index,)
        lanes = self.shape[-1] if isinstance(indices[-1], slice) else 1
        indices = (*indices[:-1], 0) if isinstance(indices[-1], slice) else indices
        flat: Index = 0
        for at, extent in zip(indices, self.shape, strict=True):
            flat = flat * extent + at
        first = self._builder.constant(flat + self._begin if self._begin else flat)
        return tirx.Ramp(first, self._builder.constant(1), lanes) if lanes > 1 else first

    def place(self, *index: Index) -> tuple[tirx.Expr, tirx.Expr]:
        """Return the offset of an element and the memory, which functions of the device's language take."""
        return self._flat(index), self.buffer.data

    def __getitem__(self, index: Any) -> tirx.Expr:
        return tirx.BufferLoad(self.buffer, [self._flat(index)])

    def __setitem__(self, index: Any, value: tirx.Expr | float) -> None:
        value = tirx.const(value, str(self.buffer.dtype)) if isinstance(value, int | float) else value
        self._builder.emit(tirx.BufferStore(self.buffer, value, [self._flat(index)]))

    def viewed(self, *shape: int, begin: int = 0) -> Array:
        """Return the same memory with other axes. begin: its element that is the first one."""
        return Array(self._builder, self.buffer, shape, begin)

    def flat(self) -> Array:
        """Return the same memory with one axis."""
        return self.viewed(math.prod(self.shape))

    def fill(self, value: float | tirx.Expr, kind: str = "vectorized") -> None:
        """Set all elements, in a loop of this kind along the last axis."""
        for index in self._builder.lanes_of(self, kind):
            self[index] = value


class KernelBuilder:
    """The statements of a kernel that is being written, its buffers and the axes of its launch.

    index_type: of loop variables and constant indices.
    """

    def __init__(self, index_type: Any = "int32") -> None:
        self.index_type = index_type
        self.buffers: list[tirx.Buffer] = []
        self._axes: dict[str, tuple[tirx.Var, Index]] = {}
        self._open: list[list[tirx.Stmt]] = [[]]
        self._received: Array | None = None

    # Declarations

    def constant(self, index: Index) -> tirx.Expr:
        """Return an index as an expression."""
        return tirx.const(index, self.index_type) if isinstance(index, int) else index

    def array(self, name: str, *shape: int, dtype: str = "float32", scope: str = "local") -> Array:
        """Declare registers, or local memory in the scope "shared"."""
        self.buffers.append(tirx.decl_buffer([math.prod(map(int, shape))], dtype, name, scope=scope))
        return Array(self, self.buffers[-1], shape)

    def read(self, buffer: tirx.Buffer, *index: Index) -> tirx.Expr:
        """Return an element of a parameter."""
        return tirx.BufferLoad(buffer, list(map(self.constant, index)))

    def write(self, buffer: tirx.Buffer, index: Sequence[Index], value: tirx.Expr) -> None:
        """Store an element of a parameter."""
        self.emit(tirx.BufferStore(buffer, value, list(map(self.constant, index))))

    def axis(self, tag: str, name: str, extent: Index) -> tirx.Expr:
        """Return a group's or work-item's place along an axis of the launch. An axis of one is left out, but for x."""
        if is_one(extent) and not tag.endswith(".x"):
            return self.constant(0)
        (whole,) = extents_of([extent])
        self._axes[tag] = (tirx.Var(name, self.index_type), whole)
        return self._axes[tag][0]

    def work_items(self, name: str, across: int, down: int, *, has_sub_groups: bool) -> tuple[tirx.Expr, tirx.Expr]:
        """Return a work-item's places along x and y of its group, and neighbours along x are neighbours.

        has_sub_groups: sub-groups are formed along the launch's x first, and on some drivers along no other axis.
        """
        if has_sub_groups:
            item = self.axis("threadIdx.x", "item", across * down)
            return item % across, item // across
        y = self.axis("threadIdx.y", name, down)
        return self.axis("threadIdx.x", "x", across), y

    # Statements

    def emit(self, stmt: tirx.Stmt) -> None:
        """Append a statement to the innermost open block."""
        self._open[-1].append(stmt)

    def emit_with(self, stored: tuple[tirx.Stmt, Sequence[tirx.Buffer]]) -> None:
        """Append a statement that uses registers of its own, such as a store of `Vectors`."""
        self.buffers += stored[1]
        self.emit(stored[0])

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the device's language."""
        self.emit(call_on_device(function, *arguments))

    @contextlib.contextmanager
    def captured(self) -> Iterator[list[tirx.Stmt]]:
        """Append the block's statements to a list, as one, instead of emitting them."""
        self._open.append([])
        block: list[tirx.Stmt] = []
        yield block
        block.append(sequence_of(self._open.pop()))

    @contextlib.contextmanager
    def inside(self, wrap: Callable[[tirx.Stmt], tirx.Stmt]) -> Iterator[None]:
        """Emit `wrap` of the block's statements."""
        with self.captured() as block:
            yield
        self.emit(wrap(*block))

    @contextlib.contextmanager
    def loop(self, name: str, extent: Index, kind: str = "serial") -> Iterator[tirx.Expr]:
        """Run the block for each number below `extent`. One of one iteration is no loop."""
        if is_one(extent):
            yield self.constant(0)
            return
        var = tirx.Var(name, self.index_type)
        (whole,) = extents_of([extent])
        with self.inside(lambda body: statements.loop(var, whole, body, kind)):
            yield var

    def lanes(self, count: int = LANES, kind: str = "vectorized") -> contextlib.AbstractContextManager[tirx.Expr]:
        """Run the block for each lane of a vector."""
        return self.loop("lane", count, kind)

    def lanes_of(self, array: Array, kind: str = "vectorized") -> Iterator[tuple[Any, ...]]:
        """Yield the indices of an array's elements: all but the last axis unrolled, the last one as a vector."""
        for index in itertools.product(*map(range, array.shape[:-1])):
            with self.lanes(array.shape[-1], kind) as lane:
                yield (*index, lane)

    def when(self, *conditions: tirx.Expr | None) -> contextlib.AbstractContextManager[None]:
        """Run the block if all conditions hold. None always holds."""
        real = [condition for condition in conditions if condition is not None]
        whole = functools.reduce(tirx.And, real) if real else None
        return self.inside(lambda body: statements.guarded(whole, body))

    def otherwise(self) -> contextlib.AbstractContextManager[None]:
        """Run the block if the condition of the `when` before it does not hold."""
        branch = self._open[-1].pop()
        assert isinstance(branch, tirx.IfThenElse), "it follows a `when` with a condition"
        return self.inside(lambda body: tirx.IfThenElse(branch.condition, branch.then_case, body))

    @contextlib.contextmanager
    def mark(self, key: str, value: Any) -> Iterator[None]:
        """Put an attribute around the block, which passes read. None: no attribute."""
        with self.inside(
            lambda body: body if value is None else tirx.AttrStmt(tirx.const(0, "int32"), key, value, body)
        ):
            yield

    def share(self, count: int, own: tirx.Expr, sharing: int) -> Iterator[tuple[int, tirx.Expr]]:
        """Yield a work-item's places out of `count`, unrolled: the first of the next `sharing` ones, and its own."""
        for first in range(0, count, sharing):
            at = own + first
            with self.when(at < count if first + sharing > count else None):
                yield first, at

    def totals_of(
        self, count: int, own: tirx.Expr, sharing: int, total: Callable[[int, tirx.Expr], tirx.Expr], dtype: str
    ) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
        """Yield the places of `share`, and in a register the value that `total` gives for each."""
        register = self.array("shared_total", 1, dtype=dtype)
        for first, at in self.share(count, own, sharing):
            register[0] = total(first, at)
            yield at, register[0]

    def sums_of_parts(
        self, partial: Array, own: Sequence[Index], part: tirx.Expr, sharing: int
    ) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
        """Yield the places of `share`, and the sum of the parts of each.

        partial: parts of totals in local memory, with axes (totals, parts, own place of those that share them).
        """
        count, parts = partial.shape[:2]

        def total(_: int, at: tirx.Expr) -> tirx.Expr:
            return sum_of([partial[(at, other, *own)] for other in range(parts)])

        return self.totals_of(count, part, sharing, total, str(partial.buffer.dtype))

    @contextlib.contextmanager
    def spread(
        self,
        count: Index,
        own: tirx.Expr,
        sharing: int,
        name: str = "iteration",
        kind: str = "serial",
        *,
        most: int | None = None,
    ) -> Iterator[tirx.Expr]:
        """Run the block for each of `count` places, in a loop in which `sharing` work-items take neighbouring ones.

        most: the largest value of a count that is no constant.
        """
        with self.loop(name, -(-(count if most is None else most) // sharing), kind) as iteration:
            at = iteration * sharing + own
            with self.when(at < count if most is not None or count % sharing else None):
                yield at

    def exchange(
        self,
        values: Array,
        places: Sequence[Index],
        distances: Sequence[int],
        combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        shuffle: Callable[[tirx.Expr, int], tirx.Expr],
    ) -> None:
        """Combine registers with those of the work-items at (own number xor distance), for one distance after another.

        Every shuffle is its own statement: passes duplicate operands, and all work-items must reach it.
        """
        received = self._received = self._received or self.array("received", 1, dtype=str(values.buffer.dtype))
        for distance in distances:
            for at in places:
                received[0] = shuffle(values[at], distance)
                values[at] = combine(values[at], received[0])

    # Results

    def launched(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return the kernel with the parameters of `func`."""
        return statements.launch(func, self._threads, sequence_of(self._open.pop()), self.buffers)["main"]

    def as_stage(self) -> tirx.Stmt:
        """Return the kernel as one of several of a function."""
        return statements.stage_of(self._threads, sequence_of(self._open.pop()), self.buffers)

    @property
    def _threads(self) -> dict[str, tuple[tirx.Var, Index]]:
        return {tag: self._axes[tag] for tag in _AXES if tag in self._axes}


def sum_of(values: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the sum in a balanced tree."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return sum_of(values[:middle]) + sum_of(values[middle:])
