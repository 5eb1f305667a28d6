"""Pack the channels of a Relax graph and of its weights by four.

    conv2d(x: NCHW, w: OIHW) -> add -> relu -> max_pool
        ->      pack(x) -> conv2d -> add -> relu -> max_pool -> unpack

Operator families rewrite their operators in the layout that they need (`romou/compiler/operators/families`). Other
operators stay packed if `keep_packed.py` has a rule for them, and otherwise get their plain layout back. So layout
transforms occur only between packed and plain regions of the graph. Weights and per-channel constants are packed at
compile time. Rows and volumes are packed as images (`romou/compiler/tir/images.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.base.rung import Rung
from romou.compiler.graph.channel_groups import Rows, keep_rows, open_rows, reduce_rows
from romou.compiler.graph.keep_packed import keep_packed
from romou.compiler.graph.origins import NO_RUNGS, Rungs, nodes_from
from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main, with_main
from romou.compiler.operators.families import families
from romou.compiler.operators.family import Family
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, shape_of, static_shape
from romou.compiler.tir.images import as_images, index_in_images, index_of_pixel
from romou.compiler.tir.origin import NOWHERE, Origin
from romou.compiler.tir.primitives import LANES


def pack_channels(mod: tvm.IRModule, rungs: Rungs = NO_RUNGS) -> tvm.IRModule:
    """Rewrite `main` of `mod` (static shapes, weights as constants). Its signature stays.

    rungs: nodes on the rung `RULES` or below keep their plain layout.
    """
    mod = _split_into_slices(mod)
    packer = _Packer(nodes_from(rungs, Rung.RULES))
    for block in mod["main"].body.blocks:
        packer.users.update(relax.analysis.udchain(block))
        packer.bound.update((binding.var, binding.value) for binding in block.bindings)
    return rebuild_main(mod, packer)


def _split_into_slices(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace splits by slices.

    exp(split(x)[0])      ->      exp(slice(x))

    A kernel with several outputs cannot be fused. A slice is read in place by its reader, without a copy.
    """

    def slices(call: relax.Call, _matched: object) -> relax.Expr:
        data, axis, cut = call.args[0], int(call.attrs.axis), call.attrs.indices_or_sections
        extent = data.ty.shape.values[axis]
        if not isinstance(extent, tirx.IntImm):
            return call
        end = int(extent)
        at = list(range(0, end, math.ceil(end / int(cut)))) if isinstance(cut, tirx.IntImm) else [0, *map(int, cut)]
        return relax.Tuple(
            [relax.op.strided_slice(data, [axis], [low], [high]) for low, high in zip(at, [*at[1:], end], strict=True)]
        )

    return with_main(mod, rewrite_call(is_op("relax.split")(wildcard()), slices, mod["main"]))


class _Packer(MainRewriter):
    """Rewriter that holds each variable in its plain form, its packed form, or both.

    It implements the interfaces `romou.compiler.operators.family.Graph` and
    `romou.compiler.graph.keep_packed.PackedGraph`, which describe the other attributes.
    """

    def __init__(self, left_alone: Origin = NOWHERE) -> None:
        super().__init__()
        self._left_alone = left_alone
        self.packed: dict[relax.Var, relax.Expr] = {}
        self.bound: dict[relax.Var, relax.Expr] = {}
        self.users: dict[relax.Var, Sequence[relax.Var]] = {}
        self.rewritten: dict[relax.Var, Family] = {}
        self.packing = frozenset().union(*(family.operators for family in families() if family.is_packed))
        # Flattened images: matrix whose rows are whole images -> the packed tensor. The reshape is emitted when a
        # reader needs it plain.
        self._flattened: dict[relax.Var, relax.Var] = {}
        # Rows of channel groups in the order of packed channels.
        self._rows: dict[relax.Var, Rows] = {}

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """Return the plain form of a variable, and unpack it if necessary."""
        if var not in self.plain:
            if var in self.packed:
                self.plain[var] = self._unpack(self.packed[var], static_shape(var))
            elif var in self._rows:
                rows = self._rows[var]
                image = self._unpack(self.bb.emit(relax.op.reshape(rows.value, rows.packed_shape)), rows.shape)
                self.plain[var] = self.bb.emit(relax.op.reshape(image, static_shape(var)))
            elif var in self._flattened:
                self.plain[var] = self.bb.emit(
                    relax.op.reshape(self.plain_expr(self._flattened[var]), static_shape(var))
                )
        return super().plain_var(var)

    def packed_expr(self, expr: relax.Expr) -> relax.Expr:
        """Return the packed form of a float tensor with one to three spatial axes, and pack it if necessary."""
        if isinstance(expr, relax.Var) and expr in self.packed:
            return self.packed[expr]
        packed = self._pack(self.plain_expr(expr), static_shape(expr))
        if isinstance(expr, relax.Var):
            self.packed[expr] = packed
        return packed

    def flattened_source(self, expr: relax.Expr) -> relax.Var | None:
        """Return the packed tensor that `expr` reshapes to rows, or None for any other expression."""
        return self._flattened.get(expr)

    def _pack(self, x: relax.Expr, shape: Shape) -> relax.Expr:
        n, c, h, w = as_images(shape)
        if _is_row(shape):
            return self.bb.emit(relax.op.reshape(x, (n, c // LANES, 1, 1, LANES)))

        def pack(data: te.Tensor) -> te.Tensor:
            def value(n: tirx.Expr, o: tirx.Expr, y: tirx.Expr, x: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
                load = data[index_of_pixel(shape, n, o * LANES + lane, y, x)]
                return (
                    load if c % LANES == 0 else te.if_then_else(o * LANES + lane < c, load, tirx.const(0, data.dtype))
                )

            return te.compute((n, -(-c // LANES), h, w, LANES), value, name="pack")

        return self.bb.emit_te(pack, x, primfunc_name_hint="pack")

    def _unpack(self, x: relax.Expr, shape: Shape) -> relax.Expr:
        if _is_row(shape):
            return self.bb.emit(relax.op.reshape(x, shape))

        def unpack(data: te.Tensor) -> te.Tensor:
            def value(*index: tirx.Expr) -> tirx.Expr:
                n, c, y, x = index_in_images(shape, index)
                return data[n, c // LANES, y, x, c % LANES]

            return te.compute(shape, value, name="unpack")

        return self.bb.emit_te(unpack, x, primfunc_name_hint="unpack")

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding in the layout that its operator needs."""
        var, value = binding.var, binding.value
        if isinstance(value, relax.Var):
            for forms in (self.plain, self.packed, self._rows):
                if value in forms:
                    forms[var] = forms[value]
            if value not in self.plain and value not in self.packed and value not in self._rows:
                self.plain[var] = value
        elif not self._rewrite(var, value):
            super().visit(binding)

    def _rewrite(self, var: relax.Var, value: relax.Expr) -> bool:
        """Return whether a family, or a rule for packed channels, has rewritten the operator."""
        name = op_name(value) if isinstance(value, relax.Call) and not self.bb.origin & self._left_alone else ""
        for family in (family for family in families() if name in family.operators):
            form = family.rewrite(value, self)
            if form is not None:
                (self.packed if family.is_packed else self.plain)[var] = form
                self.rewritten[var] = family
                return True
        packed = keep_packed(value, self) if name else None
        if packed is not None:
            self.packed[var] = packed
            return True
        if name == "relax.reshape" and self._is_flattening(value.args[0], var):
            self._flattened[var] = value.args[0]
            return True
        return bool(name) and self._keep_rows(var, value)

    def _keep_rows(self, var: relax.Var, value: relax.Call) -> bool:
        """Return whether `value` makes rows of channel groups, works on them, or turns them back into channels."""
        source = value.args[0] if value.args else None
        if op_name(value) == "relax.reshape" and source in self._rows:
            if shape_of(var) != self._rows[source].shape:
                return False
            self.packed[var] = self.bb.emit(relax.op.reshape(self._rows[source].value, self._rows[source].packed_shape))
            return True
        if op_name(value) == "relax.reshape":
            rows = (
                open_rows(self.bb, self.packed[source], shape_of(source), shape_of(var))
                if source in self.packed
                else None
            )
        else:
            statistics = reduce_rows(self.bb, value, self._rows)
            if statistics is not None:
                self.plain[var] = statistics
                return True
            rows = keep_rows(self.bb, value, self._rows, self.plain_expr)
        if rows is None:
            return False
        self._rows[var] = rows
        return True

    def _is_flattening(self, source: relax.Var, var: relax.Var) -> bool:
        """Return whether a packed tensor without padded lanes is reshaped to one row per image."""
        if source not in self.packed:
            return False
        n, c, *pixels = static_shape(source)
        return len(pixels) == 2 and c % LANES == 0 and shape_of(var) == (n, c * math.prod(pixels))


def _is_row(shape: Shape) -> bool:
    """Return whether each batch element is one row of channels in whole texels, so that packing is a reshape."""
    return math.prod(shape[2:]) == 1 and shape[1] % LANES == 0
