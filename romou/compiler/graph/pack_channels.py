"""Move a Relax graph to channels packed by four, and its weights with it.

    conv2d(x: NCHW, w: OIHW)
        ->  add -> relu -> max_pool      ->      pack(x) -> conv2d -> add -> relu -> max_pool -> unpack

Operator families take their operators and say which layout they want (`romou/compiler/operators/families`). Other
operators keep packed channels where `keep_packed.py` has a rule for them, and get their plain layout back where it has
none. So a transform stands only where packed and plain regions of the graph meet. Weights and per-channel constants are
packed here, once. Rows and volumes are packed as images (`romou/compiler/tir/images.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx
from tvm.relax.dpl import is_op, rewrite_call, wildcard

from romou.base.rung import Rung
from romou.compiler.graph.channel_groups import Rows, kept, opened, reduced
from romou.compiler.graph.keep_packed import keep_packed
from romou.compiler.graph.origins import NO_RUNGS, Rungs, nodes_from
from romou.compiler.graph.rewrite import Walker, rebuild_main, with_main
from romou.compiler.operators.families import families
from romou.compiler.operators.family import Family
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.expressions import Shape, shape_of, static_shape
from romou.compiler.tir.images import as_images, index_in_images, index_of_pixel
from romou.compiler.tir.origin import NOWHERE, Origin
from romou.compiler.tir.primitives import LANES


def pack_channels(mod: tvm.IRModule, rungs: Rungs = NO_RUNGS) -> tvm.IRModule:
    """Rewrite `main` of `mod` (static shapes, weights as constants); its signature stays as it is. rungs: nodes that no
    family is to take are left alone.
    """
    mod = _split_into_slices(mod)
    packer = _Packer(nodes_from(rungs, Rung.RULES))
    for block in mod["main"].body.blocks:
        packer.users.update(relax.analysis.udchain(block))
        packer.bound.update((binding.var, binding.value) for binding in block.bindings)
    return rebuild_main(mod, packer)


def _split_into_slices(mod: tvm.IRModule) -> tvm.IRModule:
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
        return relax.Tuple(
            [relax.op.strided_slice(data, [axis], [low], [high]) for low, high in zip(at, [*at[1:], end], strict=True)]
        )

    return with_main(mod, rewrite_call(is_op("relax.split")(wildcard()), slices, mod["main"]))


class _Packer(Walker):
    """Walks the bindings in order; `plain` and `packed` hold the forms in which each variable is at hand.

    The other attributes are those of `romou.compiler.operators.family.Graph` and
    `romou.compiler.graph.keep_packed.PackedGraph`.
    """

    def __init__(self, left_alone: Origin = NOWHERE) -> None:
        super().__init__()
        self._left_alone = left_alone
        self.packed: dict[relax.Var, relax.Expr] = {}
        self.bound: dict[relax.Var, relax.Expr] = {}
        self.users: dict[relax.Var, Sequence[relax.Var]] = {}
        self.rewritten: dict[relax.Var, Family] = {}
        self.packing = frozenset().union(*(family.operators for family in families() if family.is_packed))
        # Rows of a matrix that are all that belongs to an image -> the packed tensor that they come from; emitted where
        # they are needed plain.
        self._flattened: dict[relax.Var, relax.Var] = {}
        # Rows of channel groups in the order of packed channels.
        self._rows: dict[relax.Var, Rows] = {}

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """The plain form of a variable, unpacked where needed."""
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
        """The packed form of a float tensor with one to three spatial axes, packing where needed."""
        if isinstance(expr, relax.Var) and expr in self.packed:
            return self.packed[expr]
        packed = self._pack(self.plain_expr(expr), static_shape(expr))
        if isinstance(expr, relax.Var):
            self.packed[expr] = packed
        return packed

    def flattened_source(self, expr: relax.Expr) -> relax.Var | None:
        """The packed tensor of which an expression is the reshape to rows; None for any other expression."""
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

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding in the layout that suits it."""
        var, value = binding.var, binding.value
        if isinstance(binding, relax.MatchCast):
            self.match_cast(binding)
        elif isinstance(value, relax.Var):
            for forms in (self.plain, self.packed, self._rows):
                if value in forms:
                    forms[var] = forms[value]
            if value not in self.plain and value not in self.packed and value not in self._rows:
                self.plain[var] = value
        elif not self._rewrite(var, value):
            self.plain[var] = self.bb.emit(self.plain_expr(value))

    def _rewrite(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether a family took an operator, or a rule for packed channels did."""
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
        """Whether an operator makes rows of channel groups, works on them, or ends them."""
        source = value.args[0] if value.args else None
        if op_name(value) == "relax.reshape" and source in self._rows:
            if shape_of(var) != self._rows[source].shape:
                return False
            self.packed[var] = self.bb.emit(relax.op.reshape(self._rows[source].value, self._rows[source].packed_shape))
            return True
        if op_name(value) == "relax.reshape":
            rows = (
                opened(self.bb, self.packed[source], shape_of(source), shape_of(var)) if source in self.packed else None
            )
        else:
            statistics = reduced(self.bb, value, self._rows)
            if statistics is not None:
                self.plain[var] = statistics
                return True
            rows = kept(self.bb, value, self._rows, self.plain_expr)
        if rows is None:
            return False
        self._rows[var] = rows
        return True

    def _is_flattening(self, source: relax.Var, var: relax.Var) -> bool:
        """Whether a packed tensor without padded lanes becomes one row for each image."""
        if source not in self.packed:
            return False
        n, c, *pixels = static_shape(source)
        return len(pixels) == 2 and c % LANES == 0 and shape_of(var) == (n, c * math.prod(pixels))


def _is_row(shape: Shape) -> bool:
    """Whether the channels of a tensor are all that there is to an element of the batch, in whole texels, so that
    packing moves nothing.
    """
    return math.prod(shape[2:]) == 1 and shape[1] % LANES == 0
