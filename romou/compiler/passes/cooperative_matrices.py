"""Sums of products on tensor cores that take whole matrices: VK_KHR_cooperative_matrix, GLSL's coopMatMulAdd.

The driver does not reveal which elements of a matrix a work-item holds, so operands come from local memory and sums
return through it. A work-item loads the same operands as for PTX's `mma` (`tensor_cores.py`, `warp_nest.py`), and
stores them for its warp, in matrices of 16 x 16:

    weights   two matrices for each own output texel: row 4 * (g % 4) + lane of matrix g / 4, depth 4 * t + depth
    data      one matrix for each two pairs of own pixels: column 8 * pair + g, depth 4 * t + lane

While the loops around the nest run, the sums of a warp are matrices too. After the loops they are stored, one output
texel and two pairs of pixels at a time. Every work-item adds the sums of its tile to its registers, which no other
statement has touched meanwhile:

    for k: for group in 4: for ilane in 4:              sums = 0
      for o, w, lane:                                   for k:
        acc[o, w, lane] += data * weight         ->       wait for the warp
                                                          store texels
                                                          wait for the warp
                                                          sums += weights * data
                                                        for o, pairs:
                                                          wait for the warp
                                                          store sums
                                                          wait for the warp
                                                          acc[o, pairs] += own sums

If the nests of several steps follow each other, their texels are loaded, stored and waited for together. The mark gives
the number of steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi.structural import structural_mutate

from romou.base.errors import BuildError
from romou.compiler.passes.warp_nest import FLOATS, PAIR, ROWS, WARP, WarpNest
from romou.compiler.tir.primitives import LANES, TENSOR_CORES
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.dialect import MATRICES, MATRIX, MatricesInMemory, multiply_matrices, store_matrix
from romou.devices.backends.launch import thread_extents

# Texels from one column of a matrix in local memory to the next, of fp16 and of floats. The padding avoids bank
# conflicts: work-items read from different banks of 4 bytes. Each column begins at a multiple of 16 bytes, as drivers
# require.
_STRIDE, _SUMS_STRIDE = MATRIX // LANES + 2, MATRIX // LANES + 1
_FP16_BYTES, _FLOAT_BYTES = 2 * LANES, 4 * LANES
# Own pixels whose sums are columns of one matrix, and texels of floats in local memory: the sums of an output texel
# with such pixels.
_QUAD = 2 * PAIR
_SUMS = 2 * MATRIX * _SUMS_STRIDE


def local_memory_bytes(texels: Any, pixels: Any, steps: Any) -> Any:
    """Return the bytes of local memory of one warp. Arguments are numbers of one config, or columns of many.

    texels, pixels: a work-item's tile, in texels of output channels and in pixels.
    steps: steps of the reduction staged together.
    """
    return _operands(texels, pixels, steps) * _FP16_BYTES + _SUMS * _FLOAT_BYTES


def _operands(texels: Any, pixels: Any, steps: Any) -> Any:
    """Return the fp16 texels that a warp stages in local memory."""
    return steps * (2 * texels + pixels // _QUAD) * MATRIX * _STRIDE


def multiply_in_local_memory(func: tirx.PrimFunc, nest_of: Callable[[tirx.AttrStmt], WarpNest]) -> tirx.PrimFunc:
    """Multiply matrices in the marked nests of a device function. nest_of: parses a marked nest.

    Raises
    ------
    BuildError
        The tile of a work-item does not fill matrices.
    """

    def sequence(stmt: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        marked = [i for i, child in enumerate(stmt.seq) if _marked_in(child)]
        if not marked:
            return stmt
        before, inside, after = stmt.seq[: marked[0]], stmt.seq[marked[0] : marked[-1] + 1], stmt.seq[marked[-1] + 1 :]
        nest = nest_of(_marked_in(inside[0])[0])
        if any(_accesses(child, nest.store.buffer) for child in inside):
            # The loop that begins with zeros is further inside.
            return mutator.default_mutate(stmt)
        steps = int(_marked_in(inside[0])[0].value)
        return tirx.SeqStmt([*before, *_Product(func, nest_of, nest, steps).around(inside), *after])

    return func.with_body(structural_mutate(func.body, (tirx.SeqStmt, sequence)))


def _marked_in(stmt: tirx.Stmt) -> list[tirx.AttrStmt]:
    return [mark for mark in nodes_in(stmt, tirx.AttrStmt) if mark.attr_key == TENSOR_CORES]


def _is_marked(stmt: tirx.Stmt) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == TENSOR_CORES


def _accesses(stmt: tirx.Stmt, buffer: tirx.Var) -> bool:
    """Return whether a statement reads or writes a buffer outside of marked nests."""
    without = structural_mutate(
        stmt, (tirx.AttrStmt, lambda s, mutator: tirx.Evaluate(0) if _is_marked(s) else mutator.default_mutate(s))
    )
    loads, stores = nodes_in(without, tvm.ir.TensorLoad), nodes_in(without, tirx.BufferStore)
    return any(load.source.same_as(buffer) for load in loads) or any(store.buffer.same_as(buffer) for store in stores)


class _Product:
    """The matrices of the warps of one kernel.

    nest: the first marked nest. All have the same tile.
    steps: nests whose operands are staged together.
    """

    def __init__(
        self, func: tirx.PrimFunc, nest_of: Callable[[tirx.AttrStmt], WarpNest], nest: WarpNest, steps: int
    ) -> None:
        extents = thread_extents(func)
        items = math.prod(extents.get(f"threadIdx.{axis}", 1) for axis in "xyz")
        if nest.pixels % _QUAD or extents["threadIdx.x"] * ROWS != WARP or extents["threadIdx.y"] % ROWS:
            raise BuildError(
                f"warps of 4 x {ROWS} work-items with {_QUAD} pixels each fill matrices; this tile does not:"
                f" {nest.store}"
            )
        self.nest_of, self.nest = nest_of, nest
        self.quads = nest.pixels // _QUAD
        self.steps = steps
        size, warps = _operands(nest.texels, nest.pixels, steps), items // WARP
        warp = nest.y // ROWS if nest.z is None else nest.z * (extents["threadIdx.y"] // ROWS) + nest.y // ROWS
        self.operands = tirx.decl_buffer([warps * size], nest.fp16_texel, "operands", scope="shared")
        self.stored = tirx.decl_buffer([warps * _SUMS], FLOATS, "stored_sums", scope="shared")
        self.start, self.stored_start = warp * size, warp * _SUMS
        self.sums = tirx.decl_buffer([2 * nest.texels * self.quads], "float32", "sums", scope=MATRICES)

    def around(self, statements: Sequence[tirx.Stmt]) -> Iterator[tirx.Stmt]:
        """Yield the statements with their marked nests replaced, between zeros and the addition to the work-items'
        sums.
        """
        yield from map(tirx.AllocBuffer, (self.operands, self.stored, self.sums))
        yield from self._replaced(statements)
        yield from self._own_sums()

    def _replaced(self, statements: Sequence[tirx.Stmt]) -> Iterator[tirx.Stmt]:
        """Yield statements with marked nests replaced. Each run of nests first loads the operands of `steps` nests."""

        def marked(stmt: tirx.AttrStmt, mutator: Any) -> tirx.Stmt:
            return tirx.SeqStmt(list(self._replaced([stmt]))) if _is_marked(stmt) else mutator.default_mutate(stmt)

        inside = [
            (tirx.SeqStmt, lambda stmt, _mutator: tirx.SeqStmt(list(self._replaced(stmt.seq)))),
            (tirx.AttrStmt, marked),
        ]
        for is_run, run in itertools.groupby(statements, _is_marked):
            if not is_run:
                yield from (structural_mutate(stmt, inside) for stmt in run)
                continue
            nests = list(map(self.nest_of, run))
            for first in range(0, len(nests), self.steps):
                moved = [self._moves(nest, step) for step, nest in enumerate(nests[first : first + self.steps])]
                yield from itertools.chain.from_iterable(loads for loads, _ in moved)
                yield _wait_for_warp()
                yield from itertools.chain.from_iterable(stores for _, stores in moved)
                yield _wait_for_warp()
                yield from (
                    multiply_matrices(self.sums, self._rows(step), self._columns(step)) for step in range(len(moved))
                )

    def _rows(self, step: int) -> MatricesInMemory:
        start = self.start + step * (2 * self.nest.texels + self.quads) * MATRIX * _STRIDE
        return MatricesInMemory(buffer=self.operands, start=start, stride=_STRIDE, count=2 * self.nest.texels)

    def _columns(self, step: int) -> MatricesInMemory:
        start = self._rows(step).start + 2 * self.nest.texels * MATRIX * _STRIDE
        return MatricesInMemory(buffer=self.operands, start=start, stride=_STRIDE, count=self.quads)

    def _moves(self, nest: WarpNest, step: int) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """Return the loads into registers and the stores to local memory of a work-item, for one step."""
        loads, stores = list(nest.before), list[tirx.Stmt]()
        if nest.condition is not None:
            raise BuildError(f"a warp fills its matrices without a condition, not under {nest.condition}")

        def move(name: str, factor: tirx.Expr, position: tirx.Expr) -> None:
            texel = nest.texel_of(factor)
            if str(texel.ty.dtype) != nest.fp16_texel:
                raise BuildError(f"cooperative matrices multiply fp16, not {factor}")
            variable = tirx.Var(name, str(texel.ty.dtype))
            loads.append(tirx.Bind(variable, texel))
            stores.append(tirx.BufferStore(self.operands, variable, [position]))

        for texel, depth in itertools.product(range(nest.texels), range(LANES)):
            matrix, column = 2 * texel + nest.g // LANES, nest.t * LANES + depth
            move(
                "weight",
                nest.weight(texel, depth),
                self._rows(step).start + (matrix * MATRIX + column) * _STRIDE + nest.g % LANES,
            )
        for pair in range(nest.pixels // PAIR):
            move("data", nest.data(pair * PAIR), self._columns(step).start + (pair * ROWS + nest.g) * _STRIDE + nest.t)
        return loads, stores

    def _own_sums(self) -> Iterator[tirx.Stmt]:
        nest, acc = self.nest, self.nest.store.buffer
        for texel, quad in itertools.product(range(nest.texels), range(self.quads)):
            yield _wait_for_warp()
            for half in range(2):
                into = MatricesInMemory(
                    buffer=self.stored, start=self.stored_start + half * MATRIX * _SUMS_STRIDE, stride=_SUMS_STRIDE
                )
                yield store_matrix(self.sums, (2 * texel + half) * self.quads + quad, into)
            yield _wait_for_warp()
            for pixel in range(_QUAD):
                column = nest.g // LANES * MATRIX + pixel // PAIR * ROWS + nest.t * PAIR + pixel % PAIR
                own = tirx.Var("own", FLOATS)
                yield tirx.Bind(
                    own, tirx.BufferLoad(self.stored, [self.stored_start + column * _SUMS_STRIDE + nest.g % LANES])
                )
                at = tirx.Ramp(
                    tirx.const(nest.place(texel, quad * _QUAD + pixel, 0), "int32"), tirx.const(1, "int32"), LANES
                )
                yield tirx.BufferStore(acc, tirx.BufferLoad(acc, [at]) + own, [at])


def _wait_for_warp() -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "warp"))
