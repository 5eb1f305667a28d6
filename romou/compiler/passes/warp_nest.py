"""A nest that is marked for tensor cores: the loads of each work-item of a warp, and the position of its sums.

A step of the reduction is 16 deep. Work-item (x = t, y % 8 = g) loads for it

    weights   for its output texels, the four depths of input texel `group` = t
    data      for every pair of own pixels, input texel t at the pixel of column g: pixel g % 2 of work-item x = g / 2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from romou.base.errors import BuildError
from romou.compiler.tir.calls import is_conditional, is_fp16_conversion, is_fp16_load
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.traversal import has_var, nodes_in, statements_of, substitute
from romou.devices.backends.dialect import Dialect, load_texel

# Work-items of a warp along y, and in all.
ROWS, WARP = 8, 32
# Pixels of a work-item in one instruction, and texels that one load may read.
PAIR = 2
# A texel of floats in registers.
FLOATS = "float32x4"


class WarpNest:
    """The nest of a marked statement.

    before: statements in front of it, such as a barrier.
    store: its innermost statement.
    condition: of the store, the same for a whole work group, or None. Kernels of any size have it.
    texels, pixels: size of a work-item's tile, in texels of output channels and in pixels.
    fp16_texel: type of four fp16 values in registers (`Dialect.fp16_texel`).
    calls_vectors: whether the language has functions of vectors.

    Raises
    ------
    BuildError
        The nest does not sum up products over (group, lane, texel, pixel, lane).
    """

    def __init__(self, marked: tirx.Stmt, threads: Mapping[str, tirx.Var], dialect: Dialect) -> None:
        *self.before, nest = statements_of(marked)
        loops: list[tirx.For] = []
        store: Any = nest
        while isinstance(store, tirx.For):
            loops.append(store)
            store = store.body
        self.condition: tirx.Expr | None = None
        if isinstance(store, tirx.IfThenElse) and store.else_case is None:
            own = [*(loop.loop_var for loop in loops), *(var for tag, var in threads.items() if "thread" in tag)]
            if not any(has_var(store.condition, var) for var in own):
                self.condition, store = store.condition, store.then_case
        is_sum = (
            isinstance(store, tirx.BufferStore)
            and isinstance(store.value, tirx.Add)
            and isinstance(store.value.b, tirx.Mul)
        )
        if len(loops) not in (4, 5) or not is_sum:
            raise BuildError(
                "a nest that is marked for tensor cores adds up products over (group, lane, texel, pixel, lane); this"
                f" one does not: {nest}"
            )
        self.store = store
        self._group, self._ilane, *self._tile, self._w, self._lane = (loop.loop_var for loop in loops)
        self.pixels, self.texels = int(loops[-2].extent), int(loops[2].extent) if self._tile else 1
        self.t, self.y, self.z = threads["threadIdx.x"], threads["threadIdx.y"], threads.get("threadIdx.z")
        self.g = self.y % ROWS
        self.fp16_texel, self.calls_vectors = dialect.fp16_texel, dialect.has_vector_arithmetic
        self.analyzer = tvm.sym.Analyzer()

    def weight(self, texel: int, depth: int) -> tirx.Expr:
        """Return the first lane of the weight, for an own output texel and one of the four depths of t."""
        return substitute(self.store.value.b.b, self._at({self._ilane: depth, **dict.fromkeys(self._tile, texel)}))

    def data(self, pixel: int) -> tirx.Expr:
        """Return the first lane of input texel t for the pixel of column g in a pair of own pixels.

        The pair begins with `pixel`.
        """
        # In one step: t replaces the group of channels, but its own replacement belongs to the work-item of column g.
        return substitute(
            self.store.value.b.a, self._at({self._ilane: 0, self._w: pixel + self.g % PAIR, self.t: self.g // PAIR})
        )

    def place(self, texel: int, pixel: int, number: int) -> int:
        """Return the position in registers of the sum of a lane."""
        (index,) = self.store.indices
        return int(
            self.analyzer.simplify(
                substitute(index, self._at({self._w: pixel, self._lane: number, **dict.fromkeys(self._tile, texel)}))
            )
        )

    def texel_of(self, factor: tirx.Expr) -> tirx.Expr:
        """Return the texel that starts with a factor of the product, zeros if the factor is zero.

        The texel is four fp32 values, perhaps made of integers, or the bits of four fp16 values.
        """
        if is_conditional(factor):
            condition, value, otherwise = factor.args
            texel = self.texel_of(value)
            is_zero = isinstance(otherwise, tirx.FloatImm) and float(otherwise.value) == 0
            return tirx.if_then_else(
                condition, texel, _zero(str(texel.ty.dtype)) if is_zero else self.texel_of(otherwise)
            )
        if isinstance(factor, tirx.Sub) and isinstance(factor.b, tirx.FloatImm):
            return self.texel_of(factor.a) - tirx.Broadcast(factor.b, LANES)
        if isinstance(factor, tirx.Cast) and isinstance(factor.value, tvm.ir.TensorLoad):
            return self._loaded(factor.value).astype(f"float32x{LANES}")
        if isinstance(factor, tvm.ir.TensorLoad) and str(factor.ty.dtype) == "float32":
            return self._loaded(factor)
        if is_fp16_load(factor):
            _, index, pointer = factor.args
        elif is_fp16_conversion(factor):
            bits = factor.args[1]
            (index,), pointer = bits.indices, bits.source.data
        else:
            raise BuildError(f"tensor cores multiply fp16 or fp32 that is read from memory, not {factor}")
        return load_texel(
            self.analyzer.simplify(index // LANES), pointer, self.fp16_texel, is_staged=_is_staged(pointer)
        )

    def _loaded(self, load: tvm.ir.TensorLoad) -> tirx.Expr:
        """Return the texel that starts with an element of a buffer."""
        (index,) = load.indices
        first = self.analyzer.simplify(index)
        if self.calls_vectors and str(load.ty.dtype) == "float32":
            # OpenCL's vload4 takes any address, so that compilers load the floats one by one.
            pointer = load.source.data
            return load_texel(self.analyzer.simplify(index // LANES), pointer, FLOATS, is_staged=_is_staged(pointer))
        return tirx.BufferLoad(load.source, [tirx.Ramp(first, tirx.const(1, "int32"), LANES)])

    def _at(self, values: Mapping[tirx.Var, Any]) -> dict[tirx.Var, tirx.Expr]:
        numbers = {
            var: tirx.const(value, "int32") if isinstance(value, int) else value for var, value in values.items()
        }
        return {self._lane: tirx.const(0, "int32"), self._group: self.t, **numbers}


def _is_staged(pointer: tirx.Expr) -> bool:
    return any(str(getattr(var.ty, "storage_scope", "")) == "shared" for var in nodes_in(pointer, tirx.Var))


def _zero(dtype: str) -> tirx.Expr:
    kind = tvm.DataType(dtype)
    scalar, lanes = dtype.partition("x")[0], int(kind.lanes)
    number = tirx.const(0.0 if scalar.startswith("float") else 0, scalar)
    return tirx.Broadcast(number, lanes) if lanes > 1 else number
