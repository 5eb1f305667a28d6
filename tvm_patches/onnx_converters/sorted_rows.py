"""TopK, running sums and scattered updates, by functions of the rows along an axis.

The wheel's operators sort by a barrier for each element, sum up a row for each of its elements, and scatter the updates
of a row by one work-item. These functions are plain definitions, serial in a row. A mark says what a row's function is,
so that a compiler can write kernels for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_patches.onnx_converters.node import Node, converter, shape_of
from tvm_patches.onnx_converters.reduction import choose_axis

op = relax.op
# Mark of a function (x, positions of the first elements in order): "largest" or "smallest".
SORTED = "romou.sorted_rows"
# Mark of a function (x, y): "sum" or "product", then perhaps "exclusive" and "reverse".
CUMULATED = "romou.cumulated_rows"
# Mark of a function (x, indices, updates, y): a key of `_UPDATED`.
SCATTERED = "romou.scattered_rows"
# Attribute of a marked function: the axis of its rows.
AXIS = "romou.row_axis"
# Fused with no other operator.
_OPAQUE = 8


@converter("TopK")
def top_k(node: Node) -> relax.Expr:
    """Return the k largest or smallest along an axis, and their indices. They are in order, which `sorted=0` allows."""
    k = node.integers(1) if node.opset >= 10 else (node.attributes["k"],)
    assert k is not None
    if node.kind(0) != node.dtype():
        raise ValueError(f"TopK of {node.kind(0)} is not supported")
    x, shape = node.input(0), node.shape()
    axis = node.attributes["axis"] % len(shape)
    positions = sorted_positions(node.builder, x, axis, k[0], is_largest=bool(node.attributes.get("largest", 1)))

    def values(data: te.Tensor, at: te.Tensor) -> te.Tensor:
        return te.compute(at.shape, lambda *i: data[(*i[:axis], at[i], *i[axis + 1 :])], name="topk_values")

    return [node.compute(values, x, positions), positions]


@converter("CumSum", "CumProd")
def cumulate(node: Node) -> relax.Expr:
    """Sum or multiply all elements up to each one along an axis. Sums of fp16 are fp32."""
    words = ["sum" if node.operator == "CumSum" else "product"]
    words += [word for word in ("exclusive", "reverse") if node.attributes[word]]
    axis, rank = node.constant(1), len(node.shape())
    if axis is None:
        return choose_axis(node, 1, range(rank), lambda along: cumulated(node.builder, node.input(0), along, words))
    return cumulated(node.builder, node.input(0), int(axis.reshape(-1)[0]) % rank, words)


def sorted_positions(builder: relax.BlockBuilder, x: relax.Expr, axis: int, k: int, *, is_largest: bool) -> relax.Expr:
    """Bind the int64 positions of the first `k` elements along an axis in order."""
    shape, marks = shape_of(x), {SORTED: "largest" if is_largest else "smallest", AXIS: axis}
    define = partial(_sort_serially, axis=axis, is_largest=is_largest)
    return _emit(builder, [x], (*shape[:axis], k, *shape[axis + 1 :]), "int64", marks, define)


def cumulated(builder: relax.BlockBuilder, x: relax.Expr, axis: int, words: Sequence[str]) -> relax.Expr:
    """Bind running sums or products along an axis. words: see `CUMULATED`."""
    marks, define = {CUMULATED: " ".join(words), AXIS: axis}, partial(_cumulate_serially, axis=axis, words=words)
    return _emit(builder, [x], shape_of(x), str(x.ty.dtype), marks, define)


def scattered(
    builder: relax.BlockBuilder, x: relax.Expr, indices: relax.Expr, updates: relax.Expr, axis: int, reduction: str
) -> relax.Expr:
    """Bind `x` after updates along an axis, each at its index in a row and in order. An index beyond an end is the end.

    indices: of the shape of the updates. Those of a matrix may be one column for all rows.
    reduction: "none", "update" (as TVM calls it), "add", "mul", "min" or "max".
    """
    reduction = "none" if reduction == "update" else reduction
    marks, define = {SCATTERED: reduction, AXIS: axis}, partial(_scatter_serially, axis=axis, reduction=reduction)
    return _emit(builder, [x, indices, updates], shape_of(x), str(x.ty.dtype), marks, define)


def _emit(
    builder: relax.BlockBuilder,
    inputs: Sequence[relax.Expr],
    shape: tuple[int, ...],
    dtype: str,
    marks: Mapping[str, object],
    define: Callable[..., None],
) -> relax.Expr:
    """Bind a call of the function that `define` writes, from buffers of the inputs and of the result."""
    with IRBuilder() as statements, T.prim_func(s_tir=True):
        T.func_attr({**marks, "op_pattern": _OPAQUE, "tirx.noalias": True})
        named = zip(("x", "indices", "updates"), inputs, strict=False)
        buffers = [T.arg(name, T.buffer(shape_of(x), str(x.ty.dtype))) for name, x in named]
        define(*buffers, T.arg("y", T.buffer(shape, dtype)))
    function = builder.add_func(statements.get(), next(iter(marks)).rpartition(".")[2])
    return builder.emit(relax.call_tir(function, list(inputs), out_ty=relax.TensorType(shape, dtype)))


class Rows:
    """The rows of a tensor along an axis.

    shape: integers, or expressions of sizes that are known when the function runs.
    before, after: extents of the axes before and behind it.
    """

    def __init__(self, shape: Sequence[Any], axis: int) -> None:
        extents = tuple(int(extent) if isinstance(extent, int | tirx.IntImm) else extent for extent in shape)
        self.before, self.n, self.after = extents[:axis], extents[axis], extents[axis + 1 :]

    @property
    def count(self) -> Any:
        return math.prod((*self.before, *self.after))

    def index(self, row: tirx.Expr, position: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """Return the index of an element of a row."""
        indices = []
        for extent in reversed((*self.before, *self.after)):
            indices.append(row % extent)
            row = row // extent
        indices.reverse()
        return (*indices[: len(self.before)], position, *indices[len(self.before) :])


@contextmanager
def _each_row(
    name: str, x: tirx.Buffer, y: tirx.Buffer, axis: int, *others: tirx.Buffer
) -> Iterator[tuple[Rows, tirx.Var, Any]]:
    """Open a block for each row of `x`, which reads it, and of others, and writes that row of `y`, like an array."""
    rows = Rows(x.shape, axis)
    with T.serial(0, rows.count) as each, T.sblock(name):
        row = T.axis.spatial(rows.count, each)
        T.reads(*(b[r.index(row, slice(0, r.n))] for b in (x, *others) for r in [Rows(b.shape, axis)]))
        T.writes(y[rows.index(row, slice(0, int(y.shape[axis])))])
        yield rows, row, T.buffer_proxy(y)


def _sort_serially(x: tirx.Buffer, y: tirx.Buffer, *, axis: int, is_largest: bool) -> None:
    """Merge runs of 1, 2, 4, ... positions of each row, from one workspace into another."""
    n, levels = int(x.shape[axis]), max(int(x.shape[axis]) - 1, 0).bit_length()
    work = _array((Rows(x.shape, axis).count, 2, n), "int32", "global")
    with _each_row("sorted", x, y, axis) as (rows, row, result):
        heads, chosen = _array((2,), "int32"), _array((1,), "int32")
        with T.serial(0, n) as i:
            work[row, 0, i] = i
        with T.serial(0, levels) as level, T.serial(0, n) as i:
            begin = (i >> (level + 1)) << (level + 1)
            middle, end = (tirx.min(begin + (tirx.const(size, "int32") << level), n) for size in (1, 2))
            with T.If(tirx.EQ(i, begin)), T.Then():
                heads[0] = begin
                heads[1] = middle
            left, right = (work[row, level & 1, tirx.min(heads[side], n - 1)] for side in (0, 1))
            of_left, of_right = (sort_key(x[rows.index(row, at)], is_largest=is_largest) for at in (left, right))
            is_right = tirx.all(heads[1] < end, tirx.any(heads[0] >= middle, of_right < of_left))
            chosen[0] = tirx.Select(is_right, tirx.const(1, "int32"), tirx.const(0, "int32"))
            work[row, 1 - (level & 1), i] = tirx.Select(chosen[0] > 0, right, left)
            heads[0] = heads[0] + 1 - chosen[0]
            heads[1] = heads[1] + chosen[0]
        with T.serial(0, int(y.shape[axis])) as i:
            result[rows.index(row, i)] = work[row, levels % 2, i].astype(str(y.dtype))


def _cumulate_serially(x: tirx.Buffer, y: tirx.Buffer, *, axis: int, words: Collection[str]) -> None:
    """Pass over each row once."""
    n, kind = int(x.shape[axis]), sum_type(str(x.dtype))
    with _each_row("cumulated", x, y, axis) as (rows, row, result):
        so_far = _array((1,), kind)
        so_far[0] = neutral(words, kind)
        with T.serial(0, n) as step:
            at = rows.index(row, n - 1 - step if "reverse" in words else step)
            if "exclusive" in words:
                result[at] = so_far[0].astype(str(y.dtype))
            so_far[0] = combined(words, so_far[0], x[at].astype(kind))
            if "exclusive" not in words:
                result[at] = so_far[0].astype(str(y.dtype))


def _scatter_serially(
    x: tirx.Buffer, indices: tirx.Buffer, updates: tirx.Buffer, y: tirx.Buffer, *, axis: int, reduction: str
) -> None:
    """Copy each row, then pass over its updates once."""
    with _each_row("scattered", x, y, axis, indices, updates) as (rows, row, result):
        with T.serial(0, rows.n) as i:
            result[rows.index(row, i)] = x[rows.index(row, i)]
        of_indices, of_updates = (Rows(buffer.shape, axis) for buffer in (indices, updates))
        place = _array((1,), "int32")
        with T.serial(0, of_updates.n) as i:
            put_place(place, indices[of_indices.index(row, i)], rows.n)
            at = rows.index(row, place[0])
            result[at] = updated(reduction, result[at], updates[of_updates.index(row, i)])


def put_place(place: Any, index: tirx.Expr, n: Any) -> None:
    """Store the place in a row of `n` elements in place[0], for an index from -n to n - 1 or beyond it."""
    kind = str(index.ty)
    most = n.astype(kind) if isinstance(n, tirx.Expr) else tirx.const(n, kind)
    place[0] = tirx.max(tirx.min(index, most - 1), 0 - most).astype("int32")
    place[0] = place[0] + tirx.Select(place[0] < 0, most.astype("int32"), tirx.const(0, "int32"))


_UPDATED: dict[str, Callable[[tirx.Expr, tirx.Expr], tirx.Expr]] = {
    "none": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
}


def updated(reduction: str, old: tirx.Expr, new: tirx.Expr) -> tirx.Expr:
    """Return an element after an update."""
    return _UPDATED[reduction](old, new)


def _array(shape: tuple[int, ...], dtype: str, scope: str = "local") -> Any:
    return T.buffer_proxy(T.sblock_alloc_buffer(shape, dtype, scope=scope))


def sum_type(dtype: str) -> str:
    """Return the type of sums and products of elements."""
    return "float32" if dtype == "float16" else dtype


def neutral(words: Collection[str], kind: str) -> tirx.Expr:
    """Return the sum or product of nothing."""
    return tirx.const(0 if "sum" in words else 1, kind)


def combined(words: Collection[str], one: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
    """Return the sum or product of two numbers."""
    return one + other if "sum" in words else one * other


def sort_key(value: tirx.Expr, *, is_largest: bool) -> tirx.Expr:
    """Return an integer of 32 or 64 bits. The smaller one comes first; equal ones come by their position.

    NaN counts as larger than infinity, as in NumPy. Both zeros are equal.
    """
    dtype = str(value.ty)
    if dtype == "float16":
        return sort_key(value.astype("float32"), is_largest=is_largest)
    if "float" in dtype:
        bits = 64 if dtype == "float64" else 32
        kind, infinity = f"int{bits}", 0x7FF << 52 if bits == 64 else 0xFF << 23
        code = tirx.reinterpret(kind, value)
        magnitude = code & tirx.const(2 ** (bits - 1) - 1, kind)
        # -1 or 0: masks instead of branches
        is_negative, is_nan = code >> (bits - 1), (tirx.const(infinity, kind) - magnitude) >> (bits - 1)
        key = ((magnitude ^ is_negative) - is_negative) & ~is_nan | largest_key(kind) & is_nan
    elif dtype == "uint64":
        key = value.astype("int64") ^ tirx.const(-(2**63), "int64")
    else:
        key = value.astype("int64" if dtype in ("int64", "uint32") else "int32")
    return ~key if is_largest else key


def key_type(dtype: str) -> str:
    """Return the type of the keys of a tensor's elements."""
    return "int64" if dtype in ("float64", "int64", "uint32", "uint64") else "int32"


def largest_key(kind: str) -> tirx.Expr:
    """Return the key that comes last."""
    return tirx.const(2**63 - 1 if kind == "int64" else 2**31 - 1, kind)
