"""Groups of operators that read and write more buffers than a kernel may bind, in several kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from romou.layout.rewrite import Walker, rebuild_main


@dataclass(frozen=True)
class _Piece:
    """Operators of a group that are to be a kernel: what they read from outside, and the one result that is used outside, which comes last."""

    bindings: Sequence[relax.Binding]
    inputs: Sequence[relax.Var]

    @property
    def output(self) -> relax.Var:
        return self.bindings[-1].var


def split_groups(mod: tvm.IRModule, most_buffers: int) -> tvm.IRModule:
    """y = fused_conv2d_add_add_relu(x, w, bias, skip)   ->   t = fused_conv2d_add_add_relu_0(x, w, bias);  y = fused_conv2d_add_add_relu_1(t, skip)

    Run between fusion and `FuseTIR`, when a group is a Relax function of calls. An operator that takes too much by itself stays as it is.
    """

    class Splitter(Walker):
        def visit(self, binding: relax.Binding) -> None:
            if isinstance(binding, relax.MatchCast):
                return self.match_cast(binding)
            call = binding.value
            group = mod[call.op] if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.GlobalVar) else None
            pieces = _pieces(group, most_buffers) if isinstance(group, relax.Function) and len(group.params) >= most_buffers else []
            if group is None or len(pieces) < 2:
                self.plain[binding.var] = self.bb.emit(self.plain_expr(call))
                return None
            inside = dict(zip(group.params, map(self.plain_expr, call.args), strict=True))
            for number, piece in enumerate(pieces):
                function = self.variant(f"{call.op.name_hint}_{number}", (), functools.partial(_function_of, piece, group))
                inside[piece.output] = self.bb.emit(relax.Call(function, [inside[var] for var in piece.inputs]))
            self.plain[binding.var] = inside[pieces[-1].output]
            return None

    return rebuild_main(mod, Splitter())


def _pieces(group: relax.Function, most_buffers: int) -> list[_Piece]:
    """The longest pieces one after the other that keep within the limit; none where the group's result is not that of its last operator."""
    bindings = [binding for block in group.body.blocks for binding in block.bindings]
    if not bindings or bindings[-1].var != group.body.body or any(isinstance(binding, relax.MatchCast) for binding in bindings):
        return []
    bindings = _in_order_of_use(bindings)
    pieces: list[_Piece] = []
    start = 0
    while start < len(bindings):
        one = [_Piece(bindings[start:end], _read(bindings[start:end])) for end in range(start + 1, len(bindings) + 1)]
        later = {end: set(_read(bindings[end:])) for end in range(start + 1, len(bindings) + 1)}
        fitting = [
            (end, piece)
            for end, piece in enumerate(one, start + 1)
            if len(piece.inputs) < most_buffers and not any(binding.var in later[end] for binding in piece.bindings[:-1])
        ]
        start, piece = fitting[-1] if fitting else (start + 1, one[0])
        pieces.append(piece)
    return pieces


def _in_order_of_use(bindings: Sequence[relax.Binding]) -> list[relax.Binding]:
    """What the last binding needs, each right before the first that reads it, so that few values are alive at a time: fusion puts what is read first first."""
    made, found, waiting = {binding.var: binding for binding in bindings}, {}, [bindings[-1]]
    while waiting:
        missing = next((made[var] for var in _read([waiting[-1]]) if var in made and var not in found), None)
        if missing is not None:
            waiting.append(missing)
        else:
            done = waiting.pop()
            found[done.var] = done
    return list(found.values())


def _read(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    """The variables that bindings read and do not make, in the order in which they are read."""
    found: dict[relax.Var, None] = {}
    for binding in bindings:
        relax.analysis.post_order_visit(binding.value, lambda expr: found.setdefault(expr) if isinstance(expr, relax.Var) else None)
    made = {binding.var for binding in bindings}
    return [var for var in found if var not in made]


def _function_of(piece: _Piece, group: relax.Function) -> relax.Function:
    walker = _Copy()
    params = [relax.Var(f"x{i}", var.ty) for i, var in enumerate(piece.inputs)]
    walker.plain.update(zip(piece.inputs, params, strict=True))
    bb = walker.bb
    with bb.function("piece", params, attrs=dict(group.attrs)):
        with bb.dataflow():
            for binding in piece.bindings[:-1]:
                walker.visit(binding)
            result = bb.emit_output(walker.plain_expr(piece.bindings[-1].value))
        bb.emit_func_output(result)
    return bb.finalize()["piece"].without_attr("global_symbol")


class _Copy(Walker):
    def visit(self, binding: relax.Binding) -> None:
        self.plain[binding.var] = self.bb.emit(self.plain_expr(binding.value))
