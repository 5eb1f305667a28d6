"""What a fused function computes, read off its blocks: for the families that no block names."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map, structural_walk

from romou.compiler.scheduling.splice import as_module, contains, find_blocks, nests_of, with_root
from romou.compiler.tir.calls import is_conditional, op_name, takes_vectors
from romou.compiler.tir.traversal import nodes_in

_REDUCTION = 2
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


def split_tuples(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A block that reduces two things at once (a sum and a sum of squares) as two blocks, where neither looks at what
    the other one has so far.

    a[i], b[i] = a[i] + x[i, k], b[i] + x[i, k] * x[i, k]
        ->  a[i] = a[i] + x[i, k];  b[i] = b[i] + x[i, k] * x[i, k]
    """

    def split(nest: tirx.Stmt) -> list[tirx.Stmt]:
        (block,) = [block for block in find_blocks(func) if contains(nest, block)]
        stores = _stores_of(block)
        if stores is None:
            return [nest]
        made = []
        for store, start in stores:
            own = s_tir.SBlock(
                block.iter_vars,
                block.reads,
                [w for w in block.writes if w.source.same_as(store.buffer)],
                str(store.buffer.name),
                store,
                start,
            )
            made.append(with_own_axes(structural_map(nest, (s_tir.SBlock, lambda _, own=own: own))))
        return made

    func = _without_idle_axes(func)
    if all(len(block.writes) == 1 for block in find_blocks(func)):
        return func
    body = tirx.SeqStmt([own for nest in nests_of(func) for own in split(nest)])
    return with_root(func, body, func.body.block.alloc_buffers)


def _without_idle_axes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A block of a scalar without the axis of extent 1 that TVM gives it, where others reduce: v = axis(1); out[()] = s[()] / 8
    ->  out[()] = s[()] / 8
    """  # noqa: E501

    def drop(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        block = realize.block
        is_idle = (
            isinstance(block.body, tirx.BufferStore)
            and not block.body.indices
            and len(block.iter_vars) == 1
            and not reduced_axes(block)
        )
        if not is_idle:
            return realize
        own = s_tir.SBlock([], block.reads, block.writes, block.name_hint, block.body, annotations=block.annotations)
        return s_tir.SBlockRealize([], realize.predicate, own)

    return (
        func.with_body(structural_map(func.body, (s_tir.SBlockRealize, drop)))
        if reductions_of(func) and not func.params[-1].shape
        else func
    )


def with_own_axes(nest: tirx.Stmt) -> tirx.Stmt:
    """Return the nest with loop variables of its own."""
    found: list[tirx.Var] = []
    structural_walk(
        nest,
        [
            (tirx.For, lambda loop: found.append(loop.loop_var)),
            (s_tir.SBlock, lambda block: found.extend(i.var for i in block.iter_vars)),
        ],
    )
    own = {var: tirx.Var(var.name, var.ty) for var in found}
    return structural_map(nest, (tirx.Var, lambda var: own.get(var, var)))


def _stores_of(block: s_tir.SBlock) -> list[tuple[tirx.BufferStore, tirx.BufferStore]] | None:
    """The stores of a block with what each begins with, if each is made of its own buffer alone."""
    if len(block.writes) < 2 or not isinstance(block.body, tirx.SeqStmt) or not isinstance(block.init, tirx.SeqStmt):
        return None
    bound = {stmt.var: stmt.value for stmt in block.body.seq if isinstance(stmt, tirx.Bind)}
    stores = [stmt for stmt in block.body.seq if isinstance(stmt, tirx.BufferStore)]
    if (
        len(stores) != len(block.writes)
        or len(block.init.seq) != len(stores)
        or len(bound) + len(stores) != len(block.body.seq)
    ):
        return None
    values = [
        bound.get(store.value, store.value) if isinstance(store.value, tirx.Var) else store.value for store in stores
    ]
    for store, value in zip(stores, values, strict=True):
        if any(
            load.source.same_as(other.buffer)
            for load in loads_of(value)
            for other in stores
            if not other.same_as(store)
        ):
            return None
    return [
        (tirx.BufferStore(s.buffer, v, s.indices), start)
        for s, v, start in zip(stores, values, block.init.seq, strict=True)
    ]


def is_regular(func: tirx.PrimFunc) -> bool:
    """Whether every block gives one tensor, each element at its own place, all shapes are static, and only the last
    parameter is written.

    A mere reshape is not: TVM makes it a view.
    """
    if not all(
        isinstance(p, tirx.Buffer) and all(isinstance(d, tirx.IntImm) and int(d) > 0 for d in p.shape)
        for p in func.params
    ):
        return False
    blocks = find_blocks(func)
    written = [block.writes[0].source for block in blocks if len(block.writes) == 1]
    is_output = [any(w.same_as(p) for w in written) for p in func.params]
    return (
        len(written) == len(blocks) > 0
        and len(func.params) > 1
        and is_output[-1]
        and sum(is_output) == 1
        and all(map(_is_plain, blocks))
        and not is_view(func)
    )


def has_vector_form(func: tirx.PrimFunc) -> bool:
    """Whether all that a function calls may be called for vectors: TVM takes a vectorized loop with anything else in it
    apart into lanes.
    """
    calls: list[tvm.ir.Call] = []
    structural_walk(func.body, (tvm.ir.Call, calls.append))
    return all(is_conditional(call) or takes_vectors(call) for call in calls)


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether a function came with a schedule, of TVM's."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", False))


def is_view(func: tirx.PrimFunc) -> bool:
    """Whether TVM makes a view of a call of a function instead of a kernel: a reshape."""
    if not relax.analysis.has_reshape_pattern(func):
        return False
    # The pattern alone fits what takes the first elements of a tensor as well.
    read, written = (math.prod(int(d) for d in func.params[at].shape) for at in (0, -1))
    return read == written


def _is_plain(block: s_tir.SBlock) -> bool:
    """Whether the block is one store, at the values of its spatial axes, of an expression without side effects."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or block.match_buffers or block.alloc_buffers:
        return False
    spatial = [i.var for i in block.iter_vars if int(i.iter_type) != _REDUCTION]
    return len(spatial) == len(store.indices) and all(a.same_as(b) for a, b in zip(spatial, store.indices, strict=True))


def reductions_of(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """The blocks that reduce, in order."""
    return [block for block in find_blocks(func) if reduced_axes(block)]


def reduced_axes(block: s_tir.SBlock) -> list[tirx.IterVar]:
    """The axes over which a block reduces."""
    return [i for i in block.iter_vars if int(i.iter_type) == _REDUCTION]


def operations_of(func: tirx.PrimFunc) -> int:
    """Arithmetic operations and calls of functions on floating-point numbers, each block over its whole domain."""
    total = 0
    for block in find_blocks(func):
        of_floats = [
            e
            for e in nodes_in(block.body, *_OPERATIONS, tvm.ir.Call)
            if "float" in str(getattr(e, "ty", "")) and op_name(e) != "prim.if_then_else"
        ]
        total += len(of_floats) * math.prod(int(i.dom.extent) for i in block.iter_vars)
    return total


def inlined(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every spatial block but the last one computed where it is used."""
    if len(find_blocks(func)) == 1:
        return as_module(func)["main"]
    # A copy: TVM's scheduler may change a function in place.
    sch = s_tir.Schedule(copy.deepcopy(as_module(func)))
    root = sch.get_sblock("root")
    (output,) = sch.get_output_blocks(root)
    for block in sch.get_child_blocks(root):
        if not sch.get(block).same_as(sch.get(output)) and not reduced_axes(sch.get(block)):
            sch.compute_inline(block)
    return sch.mod["main"]


def loads_of(node: tirx.Expr | tirx.Stmt) -> list[TensorLoad]:
    """Every load in an expression or statement."""
    return nodes_in(node, TensorLoad)


def replace_loads(expr: tirx.Expr, tensor: tirx.Buffer, by: Callable[[TensorLoad], tirx.Expr]) -> tirx.Expr:
    """An expression in which something else stands for the loads of a tensor."""
    return structural_map(expr, (TensorLoad, lambda load: by(load) if load.source.same_as(tensor) else load))


@dataclass(frozen=True)
class Reduction:
    """A block that reduces: buffer[i] = combine over the axes `reduced` of `term`, beginning with `start`."""

    block: s_tir.SBlock
    operation: type
    start: tirx.Expr
    term: tirx.Expr

    @property
    def buffer(self) -> tirx.Buffer:
        """What it gives."""
        return self.block.body.buffer

    @property
    def reduced(self) -> list[tirx.IterVar]:
        """The axes over which it reduces."""
        return reduced_axes(self.block)

    @property
    def is_of_one_tensor(self) -> bool:
        """Whether a tensor tells all that is reduced apart, so that each of its numbers has one place: not so for a
        product of two that share axes, as in a matrix product.
        """
        axes = [axis.var for axis in self.block.iter_vars if int(axis.dom.extent) > 1]
        for load in loads_of(self.term):
            found = [var for index in load.indices for var in nodes_in(index, tirx.Var)]
            if all(any(var.same_as(axis) for var in found) for axis in axes):
                return True
        return False

    def combine(self, a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        """Two partial results as one."""
        return self.operation(a, b)

    def unbounded(self, expr: tirx.Expr) -> tirx.Expr:
        """`expr`, of which a maximum or minimum is taken, with infinity for the outermost number, which TVM begins and
        pads with: that may be more than all there is, -inf.
        """
        if self.operation not in (tirx.Max, tirx.Min):
            return expr
        worst = tvm.te.min_value if self.operation is tirx.Max else tvm.te.max_value

        def infinite(number: tirx.FloatImm) -> tirx.Expr:
            bound = worst(str(number.ty)).value
            return tirx.FloatImm(number.ty, math.copysign(math.inf, bound)) if number.value == bound else number

        return structural_map(expr, (tirx.FloatImm, infinite))


def reduction_of(block: s_tir.SBlock) -> Reduction | None:
    """A block as a reduction by +, *, min or max; None for any other."""
    value, start = block.body.value, block.init
    if not isinstance(value, tirx.Add | tirx.Mul | tirx.Min | tirx.Max) or not isinstance(start, tirx.BufferStore):
        return None
    sides = [isinstance(side, TensorLoad) and side.source.same_as(block.body.buffer) for side in (value.a, value.b)]
    if sum(sides) != 1 or not reduced_axes(block):
        return None
    found = Reduction(block, type(value), start.value, value.b if sides[0] else value.a)
    return replace(found, start=found.unbounded(found.start))


def is_elementwise_of(block: s_tir.SBlock, tensor: tirx.Buffer) -> bool:
    """Whether each element that a block gives is made of the one at the same place of `tensor`, and of other tensors."""  # noqa: E501
    axes = [axis.var for axis in block.iter_vars]
    loads = [load for load in loads_of(block.body.value) if load.source.same_as(tensor)]
    is_in_place = all(
        len(load.indices) == len(axes) and all(a.same_as(b) for a, b in zip(load.indices, axes, strict=True))
        for load in loads
    )
    same = [int(d) for d in block.body.buffer.shape] == [int(d) for d in tensor.shape]
    return bool(loads) and same and is_in_place and not reduced_axes(block)
