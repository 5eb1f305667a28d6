"""The structure of a lowered kernel, before any address is evaluated: its work group, its main loop, its staging and
its sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_walk

from romou.compiler.operators.analysis.expressions import (
    LOCAL,
    PRIVATE,
    TENSOR_CORE_DEPTH,
    array_bytes,
    dtype_of,
    multiply_adds_of,
    scope_of,
)
from romou.compiler.tir.calls import (
    is_async_copy,
    is_fp16_load,
    is_fp16_store,
    is_matrix_product,
    is_tensor_core_fma,
    is_texel_load,
    op_name,
    texel_bytes,
    texels_for_tensor_cores,
)
from romou.compiler.tir.expressions import lanes_of
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import dialect_of
from romou.devices.backends.launch import launch_size, thread_extents

# Function of tensor cores -> its instructions as a multiple of fp16's.
_MATRIX_INSTRUCTIONS = {"tensor_core_fma": 1, "tensor_core_fma_tf32": 2, "tensor_core_fma_tf32x3": 6}


class KernelStructure:
    """Facts of one lowered device function.

    The main loop is the innermost loop that both reads data or weight and adds to sums. It is None if no loop is left,
    or if the kernel sums no products.

    operands: names of data and weight
    has_main_loop: whether there is a main loop. Otherwise all of the kernel counts as one iteration.
    """

    def __init__(self, func: tirx.PrimFunc, operands: Container[str], *, has_main_loop: bool) -> None:
        self.func = func
        self.has_main_loop = has_main_loop
        self.extents = thread_extents(func)
        self.groups, self.group_size = launch_size(self.extents)
        self.is_staged = False
        self.has_copies = False
        self.on_tensor_cores = False
        self.matrix_instructions = 1
        self.iterations_ahead = 0
        self.local_memory_bytes = 0
        self._operands = operands
        self._sums: dict[tuple[str, str], int] = {}
        # Registers that are initialized before anything is summed up, and registers on the way to local memory.
        self._begun: set[str] = set()
        self._carrying: set[str] = set()
        structural_walk(func.body, (tirx.BufferStore, self._start_of_sum))
        handlers = [
            (tirx.AllocBuffer, self._allocation),
            (tirx.BufferStore, self._store),
            (tvm.ir.Call, self._call),
            (tirx.Broadcast, self._broadcast),
        ]
        structural_walk(func.body, handlers)
        loops = nodes_in(func.body, tirx.For)
        loops.reverse()  # the walk visits inner ones first
        candidates = [
            loop
            for loop in loops
            if has_main_loop and self._is_main(loop) and not any(map(self._is_main, nodes_in(loop.body, tirx.For)))
        ]
        main = max(candidates, key=products_in, default=None)
        # The main loop and the loops around it, from the outside.
        self.way_to_main = [
            loop
            for loop in loops
            if main is not None and (loop.same_as(main) or any(map(main.same_as, nodes_in(loop.body, tirx.For))))
        ]
        self.body: tirx.Stmt = func.body if main is None else main.body

    @property
    def iterations(self) -> int:
        """Iterations of the main loop, including the loops around it."""
        return math.prod(int(loop.extent) for loop in self.way_to_main)

    @property
    def multiplies_fp16(self) -> bool:
        """True if the main loop multiplies in fp16."""
        return any(
            multiply_adds_of(e) and dtype_of(e).startswith("float16")
            for e in nodes_in(self.body, tvm.ir.Call, tirx.Mul)
        )

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one iteration."""
        return products_in(self.body)

    @property
    def summed_outputs(self) -> int:
        """Numbers that the whole launch sums up. The pieces of a split reduction, along z, sum up the same ones.

        They meet in local memory. Without it, work-items along z have other rows.
        """
        is_split = self.local_memory_bytes > 0
        items = math.prod(extent for tag, extent in self.extents.items() if not (is_split and tag == "threadIdx.z"))
        return items * sum(self._sums.values())

    def loads_in(self, node: Any) -> Iterator[tvm.ir.TensorLoad | tvm.ir.Call]:
        """Yield the loads of data and weight from buffers, images or, in fp16, through a pointer."""
        found = nodes_in(node, tvm.ir.TensorLoad, tvm.ir.Call)
        # The argument of address_of is a load, but nothing is loaded.
        pointed = [e.args[0] for e in found if op_name(e) == "tirx.address_of"]
        for load in found:
            if any(map(load.same_as, pointed)):
                continue
            if isinstance(load, tvm.ir.TensorLoad):
                if scope_of(load) not in (PRIVATE, *LOCAL) and parameter_name(load.source) in self._operands:
                    yield load
            elif (is_texel_load(load) and parameter_name(load.args[0]) in self._operands) or (
                pointer_lanes(load) and parameter_name(load.args[2]) in self._operands
            ):
                yield load

    def has_loads(self, node: Any) -> bool:
        """Return whether a node loads data or weight."""
        return any(True for _ in self.loads_in(node))

    def is_ahead(self, store: Any) -> bool:
        """Return whether a store writes registers that are staged in local memory in a later
        iteration, and is no sum.
        """
        return (
            isinstance(store, tirx.BufferStore)
            and self.has_main_loop
            and str(store.buffer.name) in self._carrying
            and not products_in(store.value)
        )

    def is_staging(self, node: Any) -> bool:
        """Return whether a node stages data or weight in local memory.

        The window of a convolution that is summed up immediately and staged next counts as well.
        """
        if is_async_copy(getattr(node, "value", None)):
            return True
        if not isinstance(node, tirx.BufferStore):
            return False
        scope = str(node.buffer.scope())
        return scope in LOCAL or (scope == PRIVATE and products_in(node.value) > 0 and not self._accumulates(node))

    def _start_of_sum(self, stmt: tirx.BufferStore) -> None:
        value = stmt.value.value if isinstance(stmt.value, tirx.Broadcast) else stmt.value
        if str(stmt.buffer.scope()) == PRIVATE and isinstance(value, tirx.FloatImm):
            self._begun.add(str(stmt.buffer.name))

    def _allocation(self, stmt: tirx.AllocBuffer) -> None:
        if str(stmt.buffer.scope()) in LOCAL:
            self.local_memory_bytes += array_bytes(stmt.buffer)

    def _store(self, stmt: tirx.BufferStore) -> None:
        if str(stmt.buffer.scope()) in LOCAL:
            self.is_staged |= self.has_loads(stmt.value)
            structural_walk(stmt.value, (tvm.ir.TensorLoad, lambda load: self._carrying.add(str(load.source.name))))
        if self._accumulates(stmt):
            self._sums[str(stmt.buffer.name), str(stmt.indices[0])] = lanes_of(stmt.value)

    def _broadcast(self, expr: tirx.Broadcast) -> None:
        # Without vector arithmetic (CUDA), a lane of a copy is the scalar itself.
        if (
            "float" in dtype_of(expr)
            and not isinstance(expr.value, tirx.FloatImm)
            and dialect_of(self.func).has_vector_arithmetic
        ):
            self.has_copies = True

    def _call(self, call: tvm.ir.Call) -> None:
        if is_async_copy(call):
            self.is_staged = True
        if op_name(call) == "tirx.call_extern" and str(call.args[0].value) == "wait_for_copies":
            # Its argument is the number of groups that may still be in flight. Those of the iteration are waited for.
            self.iterations_ahead = max(self.iterations_ahead, int(call.args[1]) + 1)
        if is_matrix_product(call):
            self.on_tensor_cores = True
            self._sums[parameter_name(call.args[1]), ""] = multiply_adds_of(call) // TENSOR_CORE_DEPTH
        if is_tensor_core_fma(call):
            self.on_tensor_cores = True
            self.matrix_instructions = _MATRIX_INSTRUCTIONS[str(call.args[0].value)]
            # A number, counted from the first one, for each pixel and lane.
            self._sums[parameter_name(call.args[2]), str(call.args[1])] = multiply_adds_of(call) // TENSOR_CORE_DEPTH

    def _accumulates(self, store: tirx.BufferStore) -> bool:
        """Return whether products are added to the sums of earlier iterations."""
        return str(store.buffer.name) in self._begun and products_in(store.value) > 0

    def _is_main(self, loop: tirx.For) -> bool:
        calls = nodes_in(loop.body, tvm.ir.Call)
        sums = any(map(self._accumulates, nodes_in(loop.body, tirx.BufferStore))) or any(
            is_tensor_core_fma(c) or is_matrix_product(c) for c in calls
        )
        return sums and self.has_loads(loop.body)


def parameter_name(var: Any) -> str:
    """Return the name of the parameter behind a buffer, a pointer, or a pointer made from either."""
    if isinstance(var, tvm.ir.TensorLoad):
        return parameter_name(var.source)
    return (
        parameter_name(var.args[-1])
        if isinstance(var, tvm.ir.Call)
        else str(getattr(var, "name", var)).removesuffix("_ptr")
    )


def images_of(func: tirx.PrimFunc) -> set[str]:
    """Return the names of the parameters that are read or written as images."""
    calls = nodes_in(func.body, tvm.ir.Call)
    return {
        parameter_name(call.args[0])
        for call in calls
        if op_name(call) in ("tirx.texture2d_load", "tirx.texture2d_store")
    }


def stores_in(node: Any, output: str) -> list[tirx.BufferStore | tvm.ir.Call]:
    """Return the stores of the output into a buffer, an image or, in fp16, through a pointer."""
    return [e for e in nodes_in(node, tirx.BufferStore, tvm.ir.Call) if _stored_to(e) == output]


def pointer_lanes(call: tvm.ir.Call) -> int:
    """Return the lanes of a call that reads fp16 through a pointer, or 0 for any other call."""
    if not is_fp16_load(call):
        return LANES * texels_for_tensor_cores(call)
    # Two numbers are the bits of one integer.
    return lanes_of(call) * (2 if dtype_of(call).startswith("uint") else 1)


def products_in(node: Any) -> int:
    """Return the multiply-adds by lanes, times the iterations of the loops in a node."""
    return _weighted(node, multiply_adds_of, (tvm.ir.Call, tirx.Mul))


def local_bytes_in(node: Any) -> int:
    """Return the bytes read from local memory, times the iterations of the loops in a node."""
    return _weighted(node, local_bytes_of, (tvm.ir.TensorLoad, tvm.ir.Call))


def local_bytes_of(load: tvm.ir.TensorLoad | tvm.ir.Call) -> int:
    """Return the bytes that an expression itself reads from local memory, without its operands."""
    texels = texels_for_tensor_cores(load)
    if not (texels or isinstance(load, tvm.ir.TensorLoad)) or scope_of(load) not in LOCAL:
        return 0
    return texels * texel_bytes(load) or lanes_of(load) * int(tvm.DataType(dtype_of(load)).bits) // 8


def _weighted(node: Any, count: Callable[[Any], int], kinds: tuple[type, ...]) -> int:
    """Return the sum of `count` over the nodes of some kinds, each times the iterations of the loops around it inside
    `node`.
    """
    if isinstance(node, tirx.For):
        return int(node.extent) * _weighted(node.body, count, kinds)
    if isinstance(node, tirx.SeqStmt):
        return sum(_weighted(child, count, kinds) for child in node.seq)
    if isinstance(node, tirx.AttrStmt):
        return _weighted(node.body, count, kinds)
    if isinstance(node, tirx.IfThenElse):
        return _weighted(node.then_case, count, kinds) + (
            0 if node.else_case is None else _weighted(node.else_case, count, kinds)
        )
    return sum(map(count, nodes_in(node, *kinds)))


def _stored_to(node: Any) -> str:
    """Return the name of the target of a store, or an empty text for any other node."""
    if isinstance(node, tirx.BufferStore):
        return str(node.buffer.name)
    if op_name(node) == "tirx.texture2d_store":
        return parameter_name(node.args[0])
    return parameter_name(node.args[3]) if is_fp16_store(node) else ""
