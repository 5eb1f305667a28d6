"""Compute products of small integers with packed bytes or in floats, which are both exact.

    matmul(int32(x) - zero, weight: int32)      ->      integer_product(packed_bytes(x), packed weight) - zero * sums

for a constant matrix of at most 8 bits and x of 8 bits: the weight stays one byte an element
(`operators/kernels/quantized/integer_matrix.py`). Other products, and those of many rows on a GPU without dot products,
are computed in floats:

    matmul(int32(x) - zero, weight: int32)      ->      int32(matmul(float32(int32(x) - zero), weight: float32))

fp32 has all integers up to 2^24. No order of a sum makes a larger number than the sum of the magnitudes of its terms.
If that is more, the sum is cut along the input channels, and its parts are added as integers, or as floats if a
float is made of the sum. So operators of quantized models (MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv) get
the tuned kernels of floats. TF32 has all factors of 8 bits, too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from romou.base.limits import Limits
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.operators.kernels.quantized.integer_matrix import IntegerMatrix, IntegerProduct
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import dtype_of, is_constant, shape_of, static_shape
from romou.compiler.tir.origin import bindings_of

if TYPE_CHECKING:
    from romou.devices.targets import Target

# The largest sum of magnitudes that is exact in fp32.
_MOST = 2**24
# Parts of a sum, each one a kernel.
_MOST_PARTS = 8
_PRODUCTS = frozenset({"relax.matmul", *(f"relax.nn.conv{rank}d" for rank in (1, 2, 3))})
_MOVES = frozenset(
    f"relax.{name}" for name in ("reshape", "permute_dims", "squeeze", "expand_dims", "strided_slice", "broadcast_to")
)
# Operator of constants -> number of its tensors, and its result.
_EVALUATED: dict[str, tuple[int, Callable[..., np.ndarray]]] = {
    "relax.astype": (1, lambda call, x: x.astype(dtype_of(call))),
    "relax.subtract": (2, lambda _call, x, y: x - y),
    "relax.reshape": (1, lambda call, x: x.reshape(static_shape(call))),
    "relax.permute_dims": (1, lambda call, x: x.transpose(call.attrs.axes and [int(axis) for axis in call.attrs.axes])),
}


# Most rows of activations for which packed bytes pay on a GPU without dot products. For 64 rows, Mesa's compilers count
# 2.19, 1.93 and 1.98 instructions for each multiply-add on Adreno 630, Mali-G76 and G610, and 1.33, 1.38 and 1.56 in
# kernels of floats. Few rows are bound by the bytes of the weight.
_MOST_FEW = 8
# Pattern kind of TVM for functions into which element-wise consumers are fused.
_OUT_ELEMWISE_FUSABLE = 4
_BYTES = ("int8", "uint8")


def rewrite_integer_products(mod: tvm.IRModule, target: Target, has_sizes: bool = False) -> tvm.IRModule:
    """Rewrite the integer products in `main` (static shapes). Return `mod` itself if it has none.

    has_sizes: whether rows are sizes at run time, so that few and many of them have one kind of kernel.
    """
    values = [binding.value for binding in bindings_of(mod["main"])]
    has_products = any(op_name(value) in _PRODUCTS and dtype_of(value) == "int32" for value in values)
    return rebuild_main(mod, _IntegerProducts(target.limits, has_sizes=has_sizes)) if has_products else mod


class _Bytes(NamedTuple):
    """Activations of 8 bits less a zero point.

    zero: None for zero.
    """

    data: relax.Expr
    zero: relax.Expr | None


class _IntegerProducts(MainRewriter):
    """Rewriter with the packed or float form of each product, and the float form of sums of products.

    has_mixed_dots: whether the device multiplies unsigned with signed bytes.
    most_rows: most rows of activations of packed products. None for no limit.
    words: packed activations by tensor, rows and columns, so that products share them.
    bound: variable of the old graph -> its expression.
    floats: variable of the old graph -> its numbers in fp32. A sum of several may be rounded more than once.
    """

    def __init__(self, limits: Limits, *, has_sizes: bool) -> None:
        super().__init__()
        self._has_mixed_dots = limits.dot_products == "mixed"
        has_limit = not (has_sizes or limits.is_cpu or limits.dot_products is not None)
        self._most_rows = _MOST_FEW if has_limit else None
        self._words: dict[tuple[relax.Expr, int, int], relax.Var] = {}
        self._bound: dict[relax.Var, relax.Expr] = {}
        self._floats: dict[relax.Var, relax.Expr] = {}

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding. A product of integers becomes one of floats, or several."""
        var, value = binding.var, binding.value
        self._bound[var] = value
        name, is_integer = op_name(value), dtype_of(value) == "int32" if shape_of(var) is not None else False
        if name == "relax.astype" and dtype_of(value) == "float32" and value.args[0] in self._floats:
            self.plain[var] = self._floats[value.args[0]]
            return
        packed = self._packed_product(value) if name == "relax.matmul" and is_integer else None
        if packed is not None:
            self.plain[var] = packed
            return
        parts = self._parts(value) if name in _PRODUCTS and is_integer else []
        if parts:
            integers = [self.bb.emit(relax.op.astype(part, "int32")) for part in parts]
            self.plain[var], self._floats[var] = self._sum(integers), self._sum(parts)
            return
        super().visit(binding)
        if name == "relax.add" and is_integer and any(arg in self._floats for arg in value.args):
            self._floats[var] = self._sum([self._float(arg) for arg in value.args])

    def _packed_product(self, product: relax.Call) -> relax.Expr | None:
        """Return the product with the weight in packed bytes. None if a factor has no bytes, or the weight varies."""
        left, right = product.args
        shape, weight, activations = shape_of(left), self._constant(right), self._bytes_of(left)
        if weight is None or weight.ndim != 2 or not weight.size or activations is None or not shape:
            return None
        matrix = IntegerMatrix.pack(weight)
        rows = math.prod(shape[:-1])
        if matrix is None or not rows or (self._most_rows is not None and rows > self._most_rows):
            return None
        total = self._product(activations, matrix)
        if matrix.offsets is not None:
            ones = IntegerMatrix.pack(np.ones((matrix.k, 1), np.int64))
            assert ones is not None, "ones have 8 bits"
            sums = self.bb.emit(self._product(_Bytes(activations.data, None), ones))
            total = self.bb.emit(
                relax.op.add(self.bb.emit(total), relax.op.multiply(sums, relax.const(matrix.offsets, "int32")))
            )
        return self.bb.emit(relax.op.reshape(total, shape_of(product))) if len(shape) != 2 else self.bb.emit(total)

    def _product(self, activations: _Bytes, matrix: IntegerMatrix) -> relax.Expr:
        """Return the product (rows, n) with a packed weight."""
        data, zero = activations.data, activations.zero
        shape, value = static_shape(data), None if zero is None else self._constant(zero)
        is_fixed = zero is None or (value is not None and value.size == 1)
        kind = "none" if is_fixed else "one" if math.prod(static_shape(zero)) == 1 else "rows"
        work = IntegerProduct(
            m=math.prod(shape[:-1]), k=matrix.k, n=matrix.n, is_signed=not self._has_mixed_dots, zero=kind
        )
        key = data, work.m, work.k
        if key not in self._words:
            self._words[key] = self.bb.emit_te(work.pack, self.plain_expr(data), primfunc_name_hint="packed_bytes")
        correction = matrix.correction(work.moved(dtype_of(data)))
        if value is not None and is_fixed:
            correction = (correction - value.astype(np.int64).item() * matrix.sums.astype(np.int64)).astype(np.int32)
        operands = [self._words[key], relax.const(matrix.words), relax.const(correction)]
        if not is_fixed:
            # The bytes that it widens, if it does, so that no kernel does only that.
            widened = self._bytes_of(zero)
            points = self.plain_expr(zero if widened is None or widened.zero is not None else widened.data)
            shape = () if kind == "one" else (work.m,)
            if shape_of(zero) != shape:
                points = self.bb.emit(relax.op.reshape(points, shape))
            operands += [relax.const(matrix.sums), points]
        return self.bb.emit_te(
            work.define,
            *operands,
            primfunc_name_hint="integer_product",
            primfunc_attrs={"op_pattern": _OUT_ELEMWISE_FUSABLE},
        )

    def _bytes_of(self, expr: relax.Expr) -> _Bytes | None:
        """Return the 8-bit tensor that an expression widens, with its zero points, or None."""
        value: Any = self._bound.get(expr) if isinstance(expr, relax.Var) else expr
        if op_name(value) == "relax.astype" and dtype_of(value.args[0]) in _BYTES:
            is_variable = isinstance(value.args[0], relax.Var)
            return _Bytes(value.args[0], None) if is_variable and shape_of(value.args[0]) is not None else None
        if op_name(value) != "relax.subtract" or shape_of(value.args[1]) is None:
            return None
        data, zero = self._bytes_of(value.args[0]), static_shape(value.args[1])
        if data is None or data.zero is not None:
            return None
        is_of_rows = zero == (*static_shape(data.data)[:-1], 1)
        return _Bytes(data.data, value.args[1]) if math.prod(zero) == 1 or is_of_rows else None

    def _sum(self, terms: Sequence[relax.Expr]) -> relax.Expr:
        return functools.reduce(lambda total, term: self.bb.emit(relax.op.add(total, term)), terms)

    def _float(self, integers: relax.Expr) -> relax.Expr:
        known = self._floats.get(integers)
        return known if known is not None else self.bb.emit(relax.op.astype(self.plain_expr(integers), "float32"))

    def _parts(self, product: relax.Call) -> list[relax.Expr]:
        """Return float products with the sum `product`, each one exact. Empty if they would be too many."""
        cuts = self._cuts(product)
        count = len(cuts) - 1
        if not 1 <= count <= _MOST_PARTS or (count > 1 and int(getattr(product.attrs, "groups", 1)) > 1):
            return []
        axes = _summed_axes(product)
        return [
            self.bb.emit(self._float_product(product, [(axis, begin, end) for axis in axes] if count > 1 else []))
            for begin, end in itertools.pairwise(cuts)
        ]

    def _float_product(self, product: relax.Call, cuts: Sequence[tuple[int, int, int]]) -> relax.Expr:
        """Return the product of both operands as floats. cuts: for each operand an axis and its range, if it is cut."""
        operands = []
        for arg, cut in itertools.zip_longest(product.args, cuts):
            constant = self._constant(arg)
            if constant is not None:
                taken = constant if cut is None else constant.take(range(*cut[1:]), cut[0])
                operands.append(relax.const(taken.astype("float32"), "float32"))
                continue
            integers = self.plain_expr(arg)
            if cut is not None:
                axis, begin, end = cut
                axes = [axis % len(static_shape(arg))]
                integers = self.bb.emit(relax.op.strided_slice(integers, axes, [begin], [end]))
            operands.append(self.bb.emit(relax.op.astype(integers, "float32")))
        if op_name(product) == "relax.matmul":
            return relax.op.matmul(*operands)
        names = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
        convolution: Callable[..., relax.Expr] = getattr(relax.op.nn, op_name(product).removeprefix("relax.nn."))
        return convolution(*operands, **{name: getattr(product.attrs, name) for name in names})

    def _cuts(self, product: relax.Call) -> list[int]:
        """Return where to cut the sum, so that no part has too large a sum of magnitudes. Empty without a bound."""
        data, weight = product.args
        most = self._magnitude(data)
        if most is None or shape_of(data) is None or shape_of(weight) is None:
            return []
        constant, is_matrix = self._constant(weight), op_name(product) == "relax.matmul"
        of_data, of_weight = _summed_axes(product)
        if constant is not None:
            # A row for each index that is summed over, a column for each output.
            rows = np.moveaxis(np.abs(constant.astype(np.float64)), of_weight, 0)
            magnitudes = rows.reshape(len(rows), -1) if is_matrix else rows.sum(tuple(range(2, rows.ndim)))
        elif is_matrix and (factor := self._magnitude(weight)) is not None:
            magnitudes = np.full((static_shape(data)[of_data], 1), factor)
        else:
            return []
        cuts, sums = [0], np.zeros(magnitudes.shape[1])
        for index, row in enumerate(most * magnitudes):
            if row.max(initial=0) > _MOST:
                return []
            sums = sums + row
            if sums.max(initial=0) > _MOST:
                cuts.append(index)
                sums = row
        return [*cuts, len(magnitudes)] if len(magnitudes) else []

    def _magnitude(self, expr: relax.Expr) -> float | None:
        """Return a bound of the magnitude of an integer expression, or None."""
        limits = self._range(expr)
        return None if limits is None else max(abs(limits[0]), abs(limits[1]))

    def _range(self, expr: relax.Expr) -> tuple[float, float] | None:
        if is_constant(expr):
            array = expr.value.numpy()
            return (float(array.min()), float(array.max())) if array.size else None
        value: Any = self._bound.get(expr) if isinstance(expr, relax.Var) else expr
        name = op_name(value)
        if name in _MOVES or isinstance(value, relax.Var):
            return self._range(value if isinstance(value, relax.Var) else value.args[0])
        if name == "relax.astype" and dtype_of(value).startswith(("int", "uint")):
            source = dtype_of(value.args[0])
            if source in ("int8", "uint8", "int16", "uint16"):
                return float(np.iinfo(source).min), float(np.iinfo(source).max)
            return self._range(value.args[0]) if source == "int32" else None
        if name == "relax.subtract":
            left, right = map(self._range, value.args)
            return None if left is None or right is None else (left[0] - right[1], left[1] - right[0])
        return None

    def _constant(self, expr: relax.Expr) -> np.ndarray | None:
        """Return the value of a constant that was converted or moved, with or without its zero point."""
        value: Any = self._bound.get(expr) if isinstance(expr, relax.Var) else expr
        if value is None or is_constant(value):
            return None if value is None else value.value.numpy()
        if op_name(value) not in _EVALUATED or shape_of(value) is None:
            return None
        count, evaluate = _EVALUATED[op_name(value)]
        operands = [self._constant(arg) for arg in value.args[:count]]
        return None if any(operand is None for operand in operands) else evaluate(value, *operands)


def _summed_axes(product: relax.Call) -> tuple[int, int]:
    """Return the summed axes of the data and of the weight. A factor may be a vector."""
    if op_name(product) != "relax.matmul":
        return 1, 1
    return -1, max(-2, -len(static_shape(product.args[1])))
