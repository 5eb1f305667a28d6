"""Concatenations and slices of channels without copies: kernels read and write slices of the whole buffer in place.

    a = conv(x);  b = conv(y);  c = concat(a, b);  d = conv(c)      ->      c = conv'(x);  c = conv'(y, c);  d = conv(c)
    b = slice(a, 4, 8);  c = conv(b)                                ->      c = conv'(a)

A function' is a variant whose accesses are moved along the channels (`romou/compiler/tir/slices.py`), so nothing is
asked of the device's memory: it holds for any batch, for images, for captured graphs. Slices are whole texels; what has
a copy of its own in the graph (see `_Places`) keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad

from romou.compiler.graph.rewrite import Walker, outputs_of, rebuild_main
from romou.compiler.scheduling.blocks import find_blocks, is_regular, is_scheduled, is_view
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.expressions import dtype_of, static_shape
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.slices import AXIS, Slice, with_slices

_RANK = 5


def share_buffers(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main` of a fused module, images placed; its signature and the numbers stay."""
    places = _Places(mod)
    return rebuild_main(mod, _Sharer(mod, places)) if places.free else mod


@dataclass(frozen=True)
class _Copied:
    """A range that a function copies from the parameter at a position. begin: in the parameter.
    first: in the output.
    extent: of the range.
    """

    parameter: int
    begin: int
    first: int
    extent: int


def copied_ranges(func: tirx.PrimFunc) -> list[_Copied]:
    """The ranges along channels that the output of a function on packed tensors is put together from, in order; none if
    it is made in another way.
    """
    blocks = find_blocks(func) if is_regular(func) else []
    shapes = [[int(d) for d in p.shape] for p in func.params] if len(blocks) == 1 else [[]]
    others = [[extent for axis, extent in enumerate(shape) if axis != AXIS] for shape in shapes]
    if len(shapes[-1]) != _RANK or shapes[-1][-1] != LANES or any(one != others[-1] for one in others):
        return []
    (block,) = blocks
    if len(block.iter_vars) != _RANK:
        return []
    found: list[_Copied] = []
    waiting = [(0, shapes[-1][AXIS])]
    while waiting:
        first, end = waiting.pop()
        one = _copied(func, block, first, end)
        if one is None and end - first == 1:
            return []
        if one is None:
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
        elif found and (last := found[-1]).parameter == one.parameter and last.begin + last.extent == one.begin:
            found[-1] = _Copied(last.parameter, last.begin, last.first, last.extent + one.extent)
        else:
            found.append(one)
    return found


def _copied(func: tirx.PrimFunc, block: s_tir.SBlock, first: int, end: int) -> _Copied | None:
    """Channels `first` up to `end` of the output as one range of a parameter; None where they are none, or it cannot be
    seen of all of them at once.
    """
    analyzer = tvm.sym.Analyzer()
    for at, axis in enumerate(block.iter_vars):
        analyzer.bind(axis.var, tvm.ir.Range(first, end) if at == AXIS else axis.dom)
    value = analyzer.simplify(block.body.value)
    if not isinstance(value, TensorLoad):
        return None
    position = next((i for i, p in enumerate(func.params) if p.same_as(value.source)), None)
    moved = [analyzer.simplify(index - axis.var) for index, axis in zip(value.indices, block.iter_vars, strict=True)]
    if position is None or not all(
        isinstance(m, tirx.IntImm) and (i == AXIS or int(m) == 0) for i, m in enumerate(moved)
    ):
        return None
    return _Copied(position, first + int(moved[AXIS]), first, end - first)


class _Places:
    """Which tensors of a graph are slices of others, and which bindings are free by that.

    A tensor keeps memory of its own that comes from outside or leaves the graph, that something else than one of our
    functions uses (a view), that is a slice of another tensor already or twice of the same, or lies in memory of
    another kind.

    free: variables that nothing computes any more: concatenations whose inputs are slices of them, and what takes a
    slice.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.free: set[relax.Var] = set()
        self._parents: dict[relax.Var, tuple[relax.Var, int]] = {}
        # The computed tensors -> what they are computed from.
        self._calls: dict[relax.Var, list[relax.Expr]] = {}
        self._held: set[relax.Var] = set()
        copies: list[tuple[relax.Var, list[_Copied]]] = []
        ours = {
            var.name_hint: func
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and not _is_foreign(func)
        }
        ranges = {name: copied_ranges(func) for name, func in ours.items()}
        for binding in (binding for block in mod["main"].body.blocks for binding in block.bindings):
            name = None if isinstance(binding, relax.MatchCast) else called_function(binding.value)
            if name not in ours or not isinstance(binding.var.ty, relax.TensorType):
                self._hold(binding.value)
                self._held.add(binding.var)
                continue
            self._calls[binding.var] = list(binding.value.args[1].fields)
            if ranges[name]:
                copies.append((binding.var, ranges[name]))
        self._hold(mod["main"].body.body)
        for var, copied in copies:
            self._try(var, copied)

    def place(self, var: relax.Var) -> tuple[relax.Var, int]:
        """The tensor that a variable lies in, itself where it is no slice, and where it begins there."""
        first = 0
        while var in self._parents:
            var, begin = self._parents[var]
            first += begin
        return var, first

    def _hold(self, expr: relax.Expr) -> None:
        relax.analysis.post_order_visit(expr, lambda e: self._held.add(e) if isinstance(e, relax.Var) else None)

    def _try(self, var: relax.Var, copied: Sequence[_Copied]) -> None:
        """Free a concatenation or a slice, if that is allowed."""
        fields = self._calls[var]
        if not all(isinstance(fields[one.parameter], relax.Var) for one in copied):
            return
        if len(copied) == 1:
            (one,) = copied
            whole, ranges = fields[one.parameter], {var: (one.extent, one.begin)}
        else:
            whole, ranges = var, {fields[one.parameter]: (one.extent, one.first) for one in copied}
        if len(ranges) < len(copied) or not all(
            self._may_move(piece, extent, whole) for piece, (extent, _) in ranges.items()
        ):
            return
        self._parents.update({piece: (whole, begin) for piece, (_, begin) in ranges.items()})
        self.free.add(var)
        if self._reads_written_image():
            self.free.remove(var)
            for piece in ranges:
                del self._parents[piece]

    def _may_move(self, piece: relax.Var, extent: int, whole: relax.Var) -> bool:
        is_proper = extent == static_shape(piece)[AXIS] < static_shape(whole)[AXIS]
        return (
            is_proper
            and piece in self._calls
            and piece not in self._held
            and piece not in self._parents
            and _memory(piece) == _memory(whole)
        )

    def _reads_written_image(self) -> bool:
        """Whether a function would read and write one image, which OpenCL 1.2 does not allow."""
        for var, fields in self._calls.items():
            if var not in self.free and _memory(var)[1] != "global":
                whole = self.place(var)[0]
                if any(isinstance(field, relax.Var) and self.place(field)[0].same_as(whole) for field in fields):
                    return True
        return False


class _Sharer(Walker):
    """Emits calls of functions on slices. plain: of a tensor with slices, what was written of it so far."""

    def __init__(self, mod: tvm.IRModule, places: _Places) -> None:
        super().__init__()
        self._mod = mod
        self._places = places

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """The tensor that a variable lies in."""
        return super().plain_var(self._places.place(var)[0])

    def visit(self, binding: relax.Binding) -> None:
        """Emit a binding, unless it is free."""
        var, value = binding.var, binding.value
        name = called_function(value)
        if isinstance(binding, relax.MatchCast):
            self.match_cast(binding)
        elif name is None:
            self.plain[var] = self.bb.emit(self.plain_expr(value))
        elif var not in self._places.free:
            fields = list(value.args[1].fields)
            slices = tuple(one for i, field in enumerate([*fields, var]) if (one := self._slice(i, field)) is not None)
            function = self.variant(name, slices, lambda: with_slices(self._mod[name], slices))
            arguments = [self.plain_expr(field) for field in fields]
            whole = self._places.place(var)[0]
            if whole in self.plain:
                call = relax.op.call_tir_inplace(
                    function, [*arguments, self.plain[whole]], len(arguments), out_ty=whole.ty
                )
            else:
                call = relax.call_tir(function, arguments, out_ty=outputs_of(whole.ty))
            self.plain[whole] = self.bb.emit(call)

    def _slice(self, position: int, field: relax.Expr) -> Slice | None:
        """Return the slice that a parameter reads when it is handed `field`; None where it is no slice."""
        if not isinstance(field, relax.Var):
            return None
        whole, first = self._places.place(field)
        return (
            None
            if whole.same_as(field)
            else Slice(position, static_shape(field)[AXIS], static_shape(whole)[AXIS], first)
        )


def _is_foreign(func: tirx.PrimFunc) -> bool:
    """Whether TVM has scheduled a function already, or makes a view of it."""
    return is_scheduled(func) or is_view(func)


def _memory(var: relax.Var) -> tuple[str, str]:
    """Type and memory scope of a tensor."""
    device = var.ty.vdevice
    return dtype_of(var), "global" if device is None else str(device.memory_scope)
