"""Move a Relax graph to channels packed by four, and its weights with it.

    conv2d(x: NCHW, w: OIHW) -> add -> relu -> max_pool      ->      pack(x) -> conv2d -> add -> relu -> max_pool -> unpack

Convolutions demand packed channels; element-wise operators, pooling, global means, resizing, concatenations and slices of whole texels keep
them; every other operator gets its plain layout back. So a transform stands only where packed and plain parts of the graph meet.
Weights and per-channel constants are packed here, once.

The lanes that pad the last texel of a tensor hold finite values of no meaning: weights are zero there, so nothing that
is stored depends on them. An operator that could make an infinity or NaN out of a zero (division) keeps the plain
layout where the last texel is not full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.layout.rewrite import Shape, Walker, dtype_of, is_constant, rebuild_main, shape_of, static_shape, with_main
from romou.schedules import FAMILIES
from romou.schedules.workload import LANES, BatchMatmul, Conv2d, Conv2dTranspose, Dense
from romou.tir.calls import op_name

FLOATS = ("float32", "float16")
# TVM's pattern kinds for "an operator that element-wise consumers may be fused into" and "one that nothing is fused with".
OUT_ELEMWISE_FUSABLE, OPAQUE = 4, 8

# Operators of one tensor whose value at zero is finite; further arguments are scalars.
UNARY = {
    f"relax.{name}"
    for name in [
        "abs",
        "ceil",
        "clip",
        "cos",
        "erf",
        "exp",
        "floor",
        "negative",
        "round",
        "sigmoid",
        "sin",
        "sqrt",
        "square",
        "tanh",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.leakyrelu",
        "nn.relu",
        "nn.relu6",
        "nn.silu",
        "nn.softplus",
    ]
}
BINARY = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")}
POOL = {"relax.nn.max_pool2d", "relax.nn.avg_pool2d"}
# What has a kernel of its own, with which element-wise operators after it are fused.
ROOTS = POOL | {"relax.nn.conv2d", "relax.nn.conv2d_transpose", "relax.mean"}


def pack_channels(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main` of `mod` (static shapes, weights as constants); its signature stays as it is."""
    mod = split_into_slices(mod)
    packer = _Packer()
    for block in mod["main"].body.blocks:
        packer.users.update(relax.analysis.udchain(block))
        packer.bound.update((binding.var, binding.value) for binding in block.bindings)
    return rebuild_main(mod, packer)


def split_into_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """a, b = split(x); exp(a)      ->      exp(slice(x))

    A kernel that writes several tensors fuses with nothing; a slice is read where it is used, without a copy.
    """

    def slices(call: relax.Call, _matched: object) -> relax.Expr:
        data, axis, cut = call.args[0], int(call.attrs.axis), call.attrs.indices_or_sections
        extent = data.ty.shape.values[axis]
        if not isinstance(extent, tirx.IntImm):
            return call
        end = int(extent)
        at = list(range(0, end, math.ceil(end / int(cut)))) if isinstance(cut, tirx.IntImm) else [0, *map(int, cut)]
        return relax.Tuple([relax.op.strided_slice(data, [axis], [low], [high]) for low, high in zip(at, [*at[1:], end], strict=True)])

    return with_main(mod, rewrite_call(is_op("relax.split")(wildcard()), slices, mod["main"]))


@dataclass(frozen=True)
class _Operand:
    """Of a product of matrices: `source` with its axes in another order, times a number.

    axes: the axis of `source` that holds each axis of the operand.
    """

    source: relax.Expr
    axes: tuple[int, ...]
    scale: float


class _Packer(Walker):
    """Walks the bindings in order; `plain` and `packed` hold the forms in which each variable is at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.packed: dict[relax.Var, relax.Expr] = {}
        # Rows of a matrix that are all that belongs to an image -> the packed tensor that they come from; emitted where they are needed plain.
        self.flattened: dict[relax.Var, relax.Var] = {}
        # Of the graph that is read: what variables are bound to, which others use them, and how its products of matrices were emitted.
        self.bound: dict[relax.Var, relax.Expr] = {}
        self.users: dict[relax.Var, Sequence[relax.Var]] = {}
        self.products: dict[relax.Var, tuple[BatchMatmul, _Operand, _Operand]] = {}

    # Forms of a value

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """The plain form of a variable, unpacked where needed."""
        if var not in self.plain:
            if var in self.packed:
                self.plain[var] = self._unpack(self.packed[var], static_shape(var))
            elif var in self.flattened:
                self.plain[var] = self.bb.emit(relax.op.reshape(self.plain_expr(self.flattened[var]), static_shape(var)))
        return super().plain_var(var)

    def packed_expr(self, expr: relax.Expr) -> relax.Expr:
        """The packed form of a 4-D float tensor, packing where needed."""
        if isinstance(expr, relax.Var) and expr in self.packed:
            return self.packed[expr]
        packed = self._pack(self.plain_expr(expr), static_shape(expr))
        if isinstance(expr, relax.Var):
            self.packed[expr] = packed
        return packed

    def _pack(self, x: relax.Expr, shape: Shape) -> relax.Expr:
        n, c, h, w = shape
        if h == w == 1 and c % LANES == 0:
            return self.bb.emit(relax.op.reshape(x, (n, c // LANES, 1, 1, LANES)))

        def pack(data: te.Tensor) -> te.Tensor:
            def value(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
                load = data[n, o * LANES + lane, y, x]
                return load if c % LANES == 0 else te.if_then_else(o * LANES + lane < c, load, tirx.const(0, data.dtype))

            return te.compute((n, -(-c // LANES), h, w, LANES), value, name="pack")

        return self.bb.emit_te(pack, x, primfunc_name_hint="pack")

    def _unpack(self, x: relax.Expr, shape: Shape) -> relax.Expr:
        if shape[2] == shape[3] == 1 and shape[1] % LANES == 0:
            return self.bb.emit(relax.op.reshape(x, shape))

        def unpack(data: te.Tensor) -> te.Tensor:
            return te.compute(shape, lambda n, c, y, x: data[n, c // LANES, y, x, c % LANES], name="unpack")

        return self.bb.emit_te(unpack, x, primfunc_name_hint="unpack")

    # Operators

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding in the layout that suits it."""
        var, value = binding.var, binding.value
        if isinstance(binding, relax.MatchCast):
            self.match_cast(binding)
            return
        if isinstance(value, relax.Var):
            for forms in (self.plain, self.packed):
                if value in forms:
                    forms[var] = forms[value]
            if value not in self.plain and value not in self.packed:
                self.plain[var] = value
            return
        name = value.op.name if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else ""
        packed = self._packed_form(name, var, value)
        if packed is not None:
            self.packed[var] = packed
            return
        if name == "relax.matmul":
            product = self._dense(value)
            if product is None:
                product = self._batch_matmul(var, value)
            if product is not None:
                self.plain[var] = product
                return
        if name == "relax.permute_dims" and value.args[0] in self.products:
            transposed = self._transposed_product(value)
            if transposed is not None:
                self.plain[var] = transposed
                return
        if name == "relax.reshape" and value.args[0] in self.packed and self._is_flattening(value.args[0], var):
            self.flattened[var] = value.args[0]
            return
        self.plain[var] = self.bb.emit(self.plain_expr(value))

    def _packed_form(self, name: str, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """The packed result, or None where the operator needs the plain layout."""
        shape = shape_of(var)
        if shape is None or len(shape) != 4 or dtype_of(var) not in FLOATS:
            return None
        if name == "relax.nn.conv2d":
            return self._conv2d(call)
        if name == "relax.nn.conv2d_transpose":
            return self._conv2d_transpose(call)
        if name in UNARY and call.args[0] in self.packed:
            return self.bb.emit(relax.Call(call.op, [self.packed[call.args[0]], *call.args[1:]], call.attrs))
        if name in BINARY and any(a in self.packed for a in call.args):
            return self._binary(call, shape)
        if name in POOL and call.args[0] in self.packed:
            return self._pool(call)
        if name == "relax.mean" and call.args[0] in self.packed and tuple(int(a) for a in call.attrs.axis or ()) == (2, 3) and call.attrs.keepdims:
            return self.bb.emit(relax.op.mean(self.packed[call.args[0]], axis=[2, 3], keepdims=True))
        if name == "relax.concat" and int(call.attrs.axis) == 1:
            return self._concat(call.args[0])
        if name == "relax.strided_slice" and call.args[0] in self.packed:
            return self._slice(call)
        if name == "relax.image.resize2d" and call.args[0] in self.packed and call.attrs.layout == "NCHW":
            return self._resize(call)
        return None

    def _conv2d(self, call: relax.Call) -> relax.Expr | None:
        data, weight = call.args
        attrs = call.attrs
        if (
            not is_constant(weight)
            or shape_of(data) is None
            or shape_of(weight) is None
            or (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW")
            or dtype_of(weight) != dtype_of(data)
        ):
            return None
        (n, c, h, w), (oc, _, kh, kw) = static_shape(data), static_shape(weight)
        work = Conv2d(
            batch=n,
            in_channels=c,
            in_hw=(h, w),
            out_channels=oc,
            kernel=(kh, kw),
            stride=tuple(int(s) for s in attrs.strides),
            padding=_four_sides(attrs.padding),
            dilation=tuple(int(d) for d in attrs.dilation),
            groups=int(attrs.groups),
            dtype=dtype_of(data),
        )
        family = next(FAMILIES[f] for f in ("conv2d", "depthwise", "group_conv2d") if FAMILIES[f].is_mine(work))
        return self._emit_family(family, work, self.packed_expr(data), weight)

    def _conv2d_transpose(self, call: relax.Call) -> relax.Expr | None:
        data, weight = call.args
        attrs = call.attrs
        layouts = (attrs.data_layout, attrs.kernel_layout)
        if not is_constant(weight) or shape_of(data) is None or layouts != ("NCHW", "IOHW") or dtype_of(weight) != dtype_of(data):
            return None
        (n, c, h, w), (_, outputs, kh, kw) = static_shape(data), static_shape(weight)
        work = Conv2dTranspose(
            batch=n,
            in_channels=c,
            in_hw=(h, w),
            out_channels=outputs * int(attrs.groups),
            kernel=(kh, kw),
            stride=tuple(int(s) for s in attrs.strides),
            padding=_four_sides(attrs.padding),
            dilation=tuple(int(d) for d in attrs.dilation),
            groups=int(attrs.groups),
            output_padding=tuple(int(p) for p in attrs.output_padding),
            dtype=dtype_of(data),
        )
        family = FAMILIES["conv2d_transpose"]
        return self._emit_family(family, work, self.packed_expr(data), weight) if family.is_mine(work) else None

    def _dense(self, call: relax.Call) -> relax.Expr | None:
        """matmul with a constant matrix on the right; leading dimensions of the left side become rows."""
        data, weight = call.args
        left, right = shape_of(data), shape_of(weight)
        if (
            not is_constant(weight)
            or left is None
            or right is None
            or len(right) != 2
            or len(left) < 2
            or dtype_of(data) not in FLOATS
            or dtype_of(weight) != dtype_of(data)
        ):
            return None
        rows = int(np.prod(left[:-1], dtype=np.int64))
        work = Dense(m=rows, k=left[-1], n=right[1], dtype=dtype_of(data))
        if data in self.flattened:
            # The weight's rows go where the packed channels are, so that nothing is to unpack.
            packed = self.flattened[data]
            _, c, h, w = static_shape(packed)
            order = weight.value.numpy().reshape(c // LANES, LANES, h, w, -1).transpose(0, 2, 3, 1, 4).reshape(right)
            return self._emit_family(FAMILIES["dense"], work, self.bb.emit(relax.op.reshape(self.packed[packed], left)), relax.const(order, work.dtype))
        plain = self.plain_expr(data)
        if len(left) == 2:
            return self._emit_family(FAMILIES["dense"], work, plain, weight)
        flat = self.bb.emit(relax.op.reshape(plain, (rows, left[-1])))
        return self.bb.emit(relax.op.reshape(self._emit_family(FAMILIES["dense"], work, flat, weight), (*left[:-1], right[1])))

    def _is_flattening(self, source: relax.Var, var: relax.Var) -> bool:
        """Whether a packed tensor without padded lanes becomes one row for each image."""
        n, c, h, w = static_shape(source)
        return c % LANES == 0 and shape_of(var) == (n, c * h * w)

    def _batch_matmul(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """matmul of two operands that are computed; transposes and scalar factors before it become part of how it reads and scales."""
        left, right = (shape_of(arg) for arg in call.args)
        dtype = dtype_of(call.args[0])
        if left is None or right is None or min(len(left), len(right)) < 2 or dtype not in FLOATS or dtype_of(call.args[1]) != dtype:
            return None
        lhs, rhs = self._operand(call.args[0], (-1,)), self._operand(call.args[1], (-1, -2))
        (*lhs_batch, m, k), (*rhs_batch, _, n) = left, right
        rank = max(len(lhs_batch), len(rhs_batch))
        lhs, rhs = (self._with_rank(operand, rank + 2) for operand in (lhs, rhs))
        if lhs.source.same_as(rhs.source):
            # A kernel that is handed one tensor twice has one parameter for both.
            return None
        left_batch, right_batch = ((1,) * (rank - len(batch)) + tuple(batch) for batch in (lhs_batch, rhs_batch))
        work = BatchMatmul(
            batch=tuple(map(max, left_batch, right_batch)),
            m=m,
            k=k,
            n=n,
            lhs_batch=left_batch,
            rhs_batch=right_batch,
            lhs_axes=lhs.axes,
            rhs_axes=rhs.axes,
            out_axes=tuple(range(rank + 2)),
            dtype=dtype,
        )
        self.products[var] = work, lhs, rhs
        return self._emit_product(work, lhs, rhs)

    def _operand(self, expr: relax.Expr, innermost: Sequence[int]) -> _Operand:
        """What `expr` is without the transposes and scalar factors before it, as far as one of the axes `innermost` stays the last one in memory."""
        rank = len(static_shape(expr))
        found = current = _Operand(expr, tuple(range(rank)), 1.0)
        while isinstance(current.source, relax.Var) and (value := self.bound.get(current.source)) is not None:
            name = op_name(value)
            if name == "relax.permute_dims":
                order = [int(a) for a in value.attrs.axes] if value.attrs.axes is not None else list(reversed(range(rank)))
                current = replace(current, source=value.args[0], axes=tuple(order[a] for a in current.axes))
            elif (scaled := _without_factor(value)) is not None:
                current = replace(current, source=scaled[0], scale=current.scale * scaled[1])
            elif isinstance(value, relax.Var):
                current = replace(current, source=value)
            else:
                break
            if current.axes.index(rank - 1) - rank in innermost:
                found = current
        return found

    def _with_rank(self, operand: _Operand, rank: int) -> _Operand:
        """With axes of extent 1 before the others, in its plain form."""
        missing = rank - len(operand.axes)
        if not missing:
            return replace(operand, source=self.plain_expr(operand.source))
        source = self.bb.emit(relax.op.reshape(self.plain_expr(operand.source), (*[1] * missing, *static_shape(operand.source))))
        return replace(operand, source=source, axes=(*range(missing), *(axis + missing for axis in operand.axes)))

    def _transposed_product(self, call: relax.Call) -> relax.Expr | None:
        """permute_dims of a product that nothing else uses: the product is written in that order, if its columns stay neighbours."""
        work, lhs, rhs = self.products[call.args[0]]
        rank = len(work.out_axes)
        order = [int(a) for a in call.attrs.axes] if call.attrs.axes is not None else list(reversed(range(rank)))
        if order[-1] != rank - 1 or len(self.users.get(call.args[0], ())) != 1:
            return None
        return self._emit_product(replace(work, out_axes=tuple(order.index(axis) for axis in range(rank))), lhs, rhs)

    def _emit_product(self, work: BatchMatmul, lhs: _Operand, rhs: _Operand) -> relax.Expr:
        define: Callable[..., te.Tensor] = lambda a, b: FAMILIES["batch_matmul"].define(work, a, b, lhs.scale * rhs.scale)
        return self.bb.emit_te(define, lhs.source, rhs.source, primfunc_name_hint="batch_matmul", primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE})

    def _emit_family(self, family, work: Conv2d | Dense, data: relax.Expr, weight: relax.Expr) -> relax.Expr:  # type: ignore[no-untyped-def]
        packed = family.pack_weight(work, weight.value.numpy())
        define: Callable[..., te.Tensor] = lambda d, w: family.define(work, d, w)
        return self.bb.emit_te(
            define, data, relax.const(packed, work.dtype), primfunc_name_hint=family.FAMILY, primfunc_attrs={"op_pattern": OUT_ELEMWISE_FUSABLE}
        )

    def _binary(self, call: relax.Call, shape: Shape) -> relax.Expr | None:
        divides = call.op.name == "relax.divide"
        operands = []
        for position, arg in enumerate(call.args):
            operand_shape = shape_of(arg)
            divisor = divides and position == 1
            if operand_shape is None or len(operand_shape) > 4:
                return None
            full = (1,) * (4 - len(operand_shape)) + operand_shape
            if int(np.prod(full)) == 1 and is_constant(arg):
                operands.append(relax.const(arg.value.numpy().reshape(()), dtype_of(arg)))
            elif full[1] == 1:
                # The same for all channels: one lane that broadcasts.
                if not is_constant(arg):
                    return None
                operands.append(relax.const(arg.value.numpy().reshape((*full, 1)), dtype_of(arg)))
            elif is_constant(arg):
                operands.append(relax.const(_pack_constant(arg.value.numpy().reshape(full), float(divisor)), dtype_of(arg)))
            elif len(operand_shape) == 4 and not (divisor and shape[1] % LANES):
                operands.append(arg)
            else:
                return None
        # Packed only now: a transform that is emitted for an operator which then stays plain would be left over.
        packed = [arg if is_constant(arg) else self.packed_expr(arg) for arg in operands]
        return self.bb.emit(relax.Call(call.op, packed, call.attrs))

    def _pool(self, call: relax.Call) -> relax.Expr:
        attrs = call.attrs
        op = relax.op.nn.max_pool2d if call.op.name == "relax.nn.max_pool2d" else relax.op.nn.avg_pool2d
        return self.bb.emit(
            op(
                self.packed[call.args[0]],
                pool_size=[int(p) for p in attrs.pool_size],
                strides=[int(s) for s in attrs.strides],
                padding=[int(p) for p in attrs.padding],
                dilation=[int(d) for d in attrs.dilation],
                ceil_mode=bool(attrs.ceil_mode),
                count_include_pad=bool(attrs.count_include_pad),
                layout=f"NCHW{LANES}c",
            )
        )

    def _concat(self, fields: relax.Expr) -> relax.Expr | None:
        if not isinstance(fields, relax.Tuple) or not any(f in self.packed for f in fields.fields):
            return None
        channels: Sequence[int] = [shape_of(f)[1] for f in fields.fields]  # type: ignore[index]
        if any(c % LANES for c in channels[:-1]):
            return None
        packed = [self.packed_expr(f) for f in fields.fields]
        if not self._is_free(fields.fields):
            return self.bb.emit(relax.op.concat(packed, axis=1))
        define: Callable[..., te.Tensor] = lambda *parts: topi.concatenate(parts, axis=1)
        return self.bb.emit_te(define, *packed, primfunc_name_hint="concatenate", primfunc_attrs={"op_pattern": OPAQUE})

    def _is_free(self, fields: Sequence[relax.Expr]) -> bool:
        """Whether a concatenation is expected to cost nothing by itself (`share_buffers`), and what is fused into it would make it a kernel.

        Where several inputs would need kernels of their own then, one for all is better.
        """

        def is_only_here(field: relax.Expr) -> bool:
            return isinstance(field, relax.Var) and sum(op_name(self.bound.get(user)) == "relax.concat" for user in self.users.get(field, ())) == 1

        has_pixels = all(static_shape(f)[2:] != (1, 1) for f in fields)
        return has_pixels and all(map(is_only_here, fields)) and len({*fields}) == len(fields) and sum(not self._ends_a_kernel(f) for f in fields) <= 1

    def _ends_a_kernel(self, expr: relax.Expr) -> bool:
        """Whether an input is the output of a kernel whether or not other operators follow."""
        value = self.bound.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and op_name(value) in UNARY | BINARY:
            return any(len(self.users.get(arg, ())) == 1 and self._ends_a_kernel(arg) for arg in value.args)
        return op_name(value) in ROOTS

    def _slice(self, call: relax.Call) -> relax.Expr | None:
        """A range of channels in whole texels."""
        data, *numbers = call.args
        if not all(isinstance(one, relax.Tuple) and len(one.fields) == 1 and isinstance(one.fields[0], tirx.IntImm) for one in numbers):
            return None
        axis, low, high, step = (*(int(one.fields[0]) for one in numbers), 1)[:4]
        channels = static_shape(data)[1]
        if axis % 4 != 1 or step != 1 or not 0 <= low < high or low % LANES or (high % LANES and high < channels):
            return None
        return self.bb.emit(relax.op.strided_slice(self.packed[data], [1], [low // LANES], [-(-min(high, channels) // LANES)]))

    def _resize(self, call: relax.Call) -> relax.Expr:
        data, size = call.args
        names = ("method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude", "extrapolation_value", "out_dtype")
        kept = {name: getattr(call.attrs, name) for name in names}
        region = [float(edge) for edge in call.attrs.roi]
        return self.bb.emit(relax.op.image.resize2d(self.packed[data], size, region, layout=f"NCHW{LANES}c", **kept))


def _four_sides(padding: Sequence[int]) -> tuple[int, int, int, int]:
    """Top, left, bottom, right of a padding that is given for both axes, for each axis, or for each side."""
    pads = [int(p) for p in padding]
    return tuple(pads * (4 // len(pads)))  # type: ignore[return-value]


def _without_factor(call: relax.Expr) -> tuple[relax.Expr, float] | None:
    """The operand and the number that a product of the two, or a quotient, is made of; None for all else."""
    if op_name(call) not in ("relax.multiply", "relax.divide"):
        return None
    left, right = call.args
    if (factor := _scalar(right)) is not None:
        return left, factor if op_name(call) == "relax.multiply" else 1 / factor
    factor = _scalar(left) if op_name(call) == "relax.multiply" else None
    return None if factor is None else (right, factor)


def _scalar(expr: relax.Expr) -> float | None:
    """The value of a finite constant of one number other than 0; None for all else."""
    if not is_constant(expr) or int(np.prod(static_shape(expr))) != 1 or len(static_shape(expr)) > 0:
        return None
    value = float(expr.value.numpy())
    return value if value and np.isfinite(value) else None


def _pack_constant(array: np.ndarray, fill: float) -> np.ndarray:
    """NCHW -> NCHW4c; the lanes that pad the last texel hold `fill`."""
    n, c, h, w = array.shape
    full = np.full((n, -(-c // LANES) * LANES, h, w), fill, array.dtype)
    full[:, :c] = array
    return np.ascontiguousarray(full.reshape(n, -1, LANES, h, w).transpose(0, 1, 3, 4, 2))
