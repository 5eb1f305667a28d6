"""Queries of unscheduled functions, by their blocks and not by names of operators.

    root block
      for i, j, k:  block "sum"     axes i, j (spatial), k (reduced)      a nest: one block and the loops around it
      for i, j:     block "relu"    axes i, j

`romou/compiler/scheduling/rewrites.py` holds the functions that change such a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad
from tvm_ffi.structural import structural_map, structural_walk

from romou.compiler.tir.calls import is_conditional, op_name, takes_vectors
from romou.compiler.tir.expressions import extents_of, is_equal, is_one, largest
from romou.compiler.tir.traversal import nodes_in, statements_of

_REDUCTION = 2
_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


# Blocks and the nests around them


def find_blocks(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Return all blocks below the root block, in program order."""
    return nodes_in(func.body.block.body, s_tir.SBlock)


def tensors_between(func: tirx.PrimFunc) -> list[tirx.Buffer]:
    """Return the tensors between the fused operators of a function."""
    return [buffer for block in nodes_in(func.body, s_tir.SBlock) for buffer in block.alloc_buffers]


def has_long_integers(func: tirx.PrimFunc) -> bool:
    """Return whether a parameter, or a tensor between fused operators, has 64-bit integers.

    TVM casts a float to int32 by way of int64.
    """
    return any("int64" in str(buffer.dtype) for buffer in (*func.params, *tensors_between(func)))


def nests_of(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    """Return the statements of the root block: one loop nest for each block of an unscheduled function."""
    return list(statements_of(func.body.block.body))


def contains(nest: tirx.Stmt, block: s_tir.SBlock) -> bool:
    """Return whether a loop nest contains `block`."""
    return any(b.same_as(block) for b in nodes_in(nest, s_tir.SBlock))


def axes_of(block: s_tir.SBlock) -> dict[tirx.Var, int]:
    """Return the axes of a block with their extents, which may be expressions of sizes at run time."""
    extents = extents_of(axis.dom.extent for axis in block.iter_vars)
    return dict(zip((axis.var for axis in block.iter_vars), extents, strict=True))


def read_buffers(block: s_tir.SBlock) -> list[tirx.Buffer]:
    """Return the buffers that a block reads, in order of first use."""
    reads: list[tirx.Buffer] = []
    for region in block.reads:
        if not any(region.source.same_as(b) for b in reads):
            reads.append(region.source)
    return reads


# Loads and variables of an expression


def loads_of(node: tirx.Expr | tirx.Stmt) -> list[TensorLoad]:
    """Return every load in an expression or statement."""
    return nodes_in(node, TensorLoad)


def has_load(node: tirx.Expr | tirx.Stmt, tensor: tirx.Buffer) -> bool:
    """Return whether an expression or statement loads an element of `tensor`."""
    return any(load.source.same_as(tensor) for load in loads_of(node))


def replace_loads(expr: tirx.Expr, tensor: tirx.Buffer, by: Callable[[TensorLoad], tirx.Expr]) -> tirx.Expr:
    """Replace each load of `tensor` by `by(load)`."""
    return structural_map(expr, (TensorLoad, lambda load: by(load) if load.source.same_as(tensor) else load))


# Properties of a function


def is_regular(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel can be written out from the function's blocks.

    All shapes are static. Every block stores one tensor at its own spatial axes. Only the last parameter is written. A
    reshape is not regular: TVM makes it a view.
    """
    if not all(isinstance(parameter, tirx.Buffer) and _is_static(parameter) for parameter in func.params):
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


def _is_static(buffer: tirx.Buffer) -> bool:
    return all(isinstance(extent, tirx.IntImm) and int(extent) > 0 for extent in buffer.shape)


def _is_plain(block: s_tir.SBlock) -> bool:
    """Return whether a block is one store at the values of its spatial axes."""
    store = block.body
    if is_of_scalar(block):
        return True
    if not isinstance(store, tirx.BufferStore) or block.match_buffers or block.alloc_buffers:
        return False
    spatial = [i.var for i in block.iter_vars if int(i.iter_type) != _REDUCTION]
    return len(spatial) == len(store.indices) and all(a.same_as(b) for a, b in zip(spatial, store.indices, strict=True))


def is_of_scalar(block: s_tir.SBlock) -> bool:
    """Return whether a block stores a scalar under the one axis of extent 1 that TVM gives it."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and not store.indices
        and len(block.iter_vars) == 1
        and not reduced_axes(block)
        and not (block.match_buffers or block.alloc_buffers)
    )


def has_vector_form(func: tirx.PrimFunc) -> bool:
    """Return whether every call in the function accepts vectors.

    TVM splits a vectorized loop with any other call into scalar code.
    """
    calls: list[tvm.ir.Call] = []
    structural_walk(func.body, (tvm.ir.Call, calls.append))
    return all(is_conditional(call) or takes_vectors(call) for call in calls)


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Return whether TVM already scheduled the function."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", False))


def is_view(func: tirx.PrimFunc) -> bool:
    """Return whether TVM replaces a call of the function by a view: a reshape."""
    if not relax.analysis.has_reshape_pattern(func):
        return False
    # TVM's pattern also matches a function that copies the first elements of a tensor.
    read, written = (math.prod(int(d) for d in func.params[at].shape) for at in (0, -1))
    return read == written


def operations_of(func: tirx.PrimFunc) -> int:
    """Return the number of floating-point operations and calls, each block over its whole domain."""
    total = 0
    for block in find_blocks(func):
        of_floats = [
            e
            for e in nodes_in(block.body, *_OPERATIONS, tvm.ir.Call)
            if "float" in str(getattr(e, "ty", "")) and op_name(e) != "prim.if_then_else"
        ]
        total += len(of_floats) * math.prod(int(i.dom.extent) for i in block.iter_vars)
    return total


def is_elementwise_of(
    block: s_tir.SBlock, tensor: tirx.Buffer, bounds: Mapping[tirx.Var, int] = MappingProxyType({})
) -> bool:
    """Return whether each stored element reads `tensor` only at its own index.

    bounds: of sizes at run time. Tensors between blocks have these sizes.
    """
    axes = [axis.var for axis in block.iter_vars]
    loads = [load for load in loads_of(block.body.value) if load.source.same_as(tensor)]
    is_in_place = all(
        len(load.indices) == len(axes) and all(a.same_as(b) for a, b in zip(load.indices, axes, strict=True))
        for load in loads
    )
    shapes = ([largest(e, bounds) if bounds else e for e in shape] for shape in (block.body.buffer.shape, tensor.shape))
    has_same_shape = all(map(is_equal, *shapes))
    return bool(loads) and has_same_shape and is_in_place and not reduced_axes(block)


# Reductions


def reductions_of(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Return the blocks that reduce, in program order."""
    return [block for block in find_blocks(func) if reduced_axes(block)]


def reduced_axes(block: s_tir.SBlock) -> list[tirx.IterVar]:
    """Return the axes over which a block reduces."""
    return [i for i in block.iter_vars if int(i.iter_type) == _REDUCTION]


@dataclass(frozen=True)
class Reduction:
    """A block that reduces.

    buffer[i] = start
    for reduced axes: buffer[i] = operation(buffer[i], term)
    """

    block: s_tir.SBlock
    operation: type
    start: tirx.Expr
    term: tirx.Expr

    @property
    def buffer(self) -> tirx.Buffer:
        """The buffer that the block writes."""
        return self.block.body.buffer

    @property
    def reduced(self) -> list[tirx.IterVar]:
        """The axes over which the block reduces."""
        return reduced_axes(self.block)

    @property
    def is_of_one_tensor(self) -> bool:
        """True if some operand is indexed by every axis of the block: true for pooling, false for a matrix product."""
        axes = [axis.var for axis in self.block.iter_vars if not is_one(axis.dom.extent)]
        for load in loads_of(self.term):
            used = [var for index in load.indices for var in nodes_in(index, tirx.Var)]
            if all(any(var.same_as(axis) for var in used) for axis in axes):
                return True
        return False

    def combine(self, a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        """Combine two partial results."""
        return self.operation(a, b)

    def unbounded(self, expr: tirx.Expr) -> tirx.Expr:
        """Replace the finite identity of a maximum or minimum in `expr` by an infinite one.

        TVM begins and pads a maximum with the smallest finite number, which is larger than an input of -inf.
        """
        if self.operation not in (tirx.Max, tirx.Min):
            return expr
        worst = tvm.te.min_value if self.operation is tirx.Max else tvm.te.max_value

        def infinite(number: tirx.FloatImm) -> tirx.Expr:
            bound = worst(str(number.ty)).value
            return tirx.FloatImm(number.ty, math.copysign(math.inf, bound)) if number.value == bound else number

        return structural_map(expr, (tirx.FloatImm, infinite))


def reduction_of(block: s_tir.SBlock) -> Reduction | None:
    """Return a block as a reduction by +, *, min or max, or None for any other block."""
    value, start = block.body.value, block.init
    if not isinstance(value, tirx.Add | tirx.Mul | tirx.Min | tirx.Max) or not isinstance(start, tirx.BufferStore):
        return None
    sides = [isinstance(side, TensorLoad) and side.source.same_as(block.body.buffer) for side in (value.a, value.b)]
    if sum(sides) != 1 or not reduced_axes(block):
        return None
    reduction = Reduction(block, type(value), start.value, value.b if sides[0] else value.a)
    return replace(reduction, start=reduction.unbounded(reduction.start))
