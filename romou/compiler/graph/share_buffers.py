"""Replace concatenations and slices of channels by kernels that access slices of the whole buffer in place.

    a = conv(x)
    b = conv(y)                    c = conv'(x)
    c = concat(a, b)        ->     c = conv'(y, c)
    d = conv(c)                    d = conv(c)

    b = slice(a, 4, 8)
    c = conv(b)             ->     c = conv'(a)

A function' is a variant whose accesses are shifted along the channels (`romou/compiler/tir/slices.py`). The rewrite
does not depend on how a device allocates memory, so it holds for any batch, for images, and for captured graphs. Slices
are whole texels. `_Slices` decides which tensors keep a separate buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad

from romou.compiler.graph.relax_rewriter import MainRewriter, outputs_of, rebuild_main
from romou.compiler.scheduling.blocks import find_blocks, is_regular, is_scheduled, is_view
from romou.compiler.tir.calls import called_function
from romou.compiler.tir.expressions import dtype_of, static_shape
from romou.compiler.tir.origin import bindings_of
from romou.compiler.tir.primitives import LANES
from romou.compiler.tir.slices import AXIS, Slice, with_slices

_RANK = 5


def share_buffers(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite `main` of a fused module after `place_images`. Its signature and results stay."""
    layout = _Slices(mod)
    return rebuild_main(mod, _Sharer(mod, layout)) if layout.free else mod


@dataclass(frozen=True)
class _Copied:
    """A range of channels that a function copies from a parameter to its output.

    parameter: position of the parameter.
    begin: first channel in the parameter.
    first: first channel in the output.
    extent: channels of the range.
    """

    parameter: int
    begin: int
    first: int
    extent: int


def copied_ranges(func: tirx.PrimFunc) -> list[_Copied]:
    """Return the ranges of channels that a function on packed tensors copies to its output, in order.

    The list is empty if any channel is computed instead of copied.
    """
    blocks = find_blocks(func) if is_regular(func) else []
    shapes = [[int(d) for d in p.shape] for p in func.params] if len(blocks) == 1 else [[]]
    other_axes = [[extent for axis, extent in enumerate(shape) if axis != AXIS] for shape in shapes]
    if len(shapes[-1]) != _RANK or shapes[-1][-1] != LANES or any(axes != other_axes[-1] for axes in other_axes):
        return []
    (block,) = blocks
    if len(block.iter_vars) != _RANK:
        return []
    ranges: list[_Copied] = []
    waiting = [(0, shapes[-1][AXIS])]
    while waiting:
        first, end = waiting.pop()
        copied = _copied(func, block, first, end)
        if copied is None and end - first == 1:
            return []
        if copied is None:
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
        elif ranges and (last := ranges[-1]).parameter == copied.parameter and last.begin + last.extent == copied.begin:
            ranges[-1] = _Copied(last.parameter, last.begin, last.first, last.extent + copied.extent)
        else:
            ranges.append(copied)
    return ranges


def _copied(func: tirx.PrimFunc, block: s_tir.SBlock, first: int, end: int) -> _Copied | None:
    """Return the output channels from `first` to `end` as one range of a parameter.

    None if they are not copied from one range, or if the analyzer cannot prove it for all of them at once.
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


class _Slices:
    """The tensors of a graph that become slices of others.

    A tensor keeps a separate buffer if it is an input or output of the graph, if anything except one of Romou's
    functions uses it (a view), if it is already a slice, if one concatenation reads it twice, or if its memory has
    another scope or type.

    free: variables that need no kernel any more, namely concatenations whose inputs became slices, and slices.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.free: set[relax.Var] = set()
        self._parents: dict[relax.Var, tuple[relax.Var, int]] = {}
        # Computed tensor -> the arguments of the call that computes it.
        self._calls: dict[relax.Var, list[relax.Expr]] = {}
        self._held: set[relax.Var] = set()
        copies: list[tuple[relax.Var, list[_Copied]]] = []
        ours = {
            var.name_hint: func
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and not _is_foreign(func)
        }
        ranges = {name: copied_ranges(func) for name, func in ours.items()}
        for binding in bindings_of(mod["main"]):
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

    def whole_of(self, var: relax.Var) -> tuple[relax.Var, int]:
        """Return the tensor that holds `var` (itself if it is no slice), and the slice's first channel."""
        first = 0
        while var in self._parents:
            var, begin = self._parents[var]
            first += begin
        return var, first

    def _hold(self, expr: relax.Expr) -> None:
        self._held.update(relax.analysis.free_vars(expr))

    def _try(self, var: relax.Var, copied: Sequence[_Copied]) -> None:
        """Free a concatenation or a slice if all of its ranges may become slices."""
        fields = self._calls[var]
        if not all(isinstance(fields[copy.parameter], relax.Var) for copy in copied):
            return
        if len(copied) == 1:
            (copy,) = copied
            whole, ranges = fields[copy.parameter], {var: (copy.extent, copy.begin)}
        else:
            whole, ranges = var, {fields[copy.parameter]: (copy.extent, copy.first) for copy in copied}
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
        """Return whether a function would read and write one image, which OpenCL 1.2 does not allow."""
        for var, fields in self._calls.items():
            if var not in self.free and _memory(var)[1] != "global":
                whole = self.whole_of(var)[0]
                if any(isinstance(field, relax.Var) and self.whole_of(field)[0].same_as(whole) for field in fields):
                    return True
        return False


class _Sharer(MainRewriter):
    """Rewriter that calls functions on slices. plain: the last partial write of each whole tensor."""

    def __init__(self, mod: tvm.IRModule, slices: _Slices) -> None:
        super().__init__()
        self._mod = mod
        self._slices = slices

    def plain_var(self, var: relax.Var) -> relax.Expr:
        """Return the tensor that holds `var`."""
        return super().plain_var(self._slices.whole_of(var)[0])

    def visit(self, binding: relax.VarBinding) -> None:
        """Emit a binding, unless it is free."""
        var, value = binding.var, binding.value
        name = called_function(value)
        if name is None:
            super().visit(binding)
        elif var not in self._slices.free:
            fields = list(value.args[1].fields)
            slices = tuple(
                slice_ for i, field in enumerate([*fields, var]) if (slice_ := self._slice(i, field)) is not None
            )
            function = self.variant(name, slices, lambda: with_slices(self._mod[name], slices))
            arguments = [self.plain_expr(field) for field in fields]
            whole = self._slices.whole_of(var)[0]
            if whole in self.plain:
                call = relax.op.call_tir_inplace(
                    function, [*arguments, self.plain[whole]], len(arguments), out_ty=whole.ty
                )
            else:
                call = relax.call_tir(function, arguments, out_ty=outputs_of(whole.ty))
            self.plain[whole] = self.bb.emit(call)

    def _slice(self, position: int, field: relax.Expr) -> Slice | None:
        """Return the slice that the parameter at `position` accesses for the argument `field`, or None."""
        if not isinstance(field, relax.Var):
            return None
        whole, first = self._slices.whole_of(field)
        return (
            None
            if whole.same_as(field)
            else Slice(position, static_shape(field)[AXIS], static_shape(whole)[AXIS], first)
        )


def _is_foreign(func: tirx.PrimFunc) -> bool:
    """Return whether TVM has scheduled the function already, or will make it a view."""
    return is_scheduled(func) or is_view(func)


def _memory(var: relax.Var) -> tuple[str, str]:
    """Return the element type and the memory scope of a tensor."""
    device = var.ty.vdevice
    return dtype_of(var), "global" if device is None else str(device.memory_scope)
