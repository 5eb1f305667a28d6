"""Split fused groups that cannot be one kernel, because they bind too many buffers or no operator family takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from romou.compiler.graph.relax_rewriter import MainRewriter, rebuild_main
from romou.compiler.operators.families import template_of
from romou.compiler.scheduling.blocks import is_view
from romou.compiler.tir.origin import bindings_of


@dataclass(frozen=True)
class _Piece:
    """Operators of a group that become a kernel. Only the last result is read outside.

    inputs: variables that the operators read from outside.
    """

    bindings: Sequence[relax.Binding]
    inputs: Sequence[relax.Var]

    @property
    def output(self) -> relax.Var:
        return self.bindings[-1].var


def split_groups(mod: tvm.IRModule, max_buffers: int | None) -> tvm.IRModule:
    """Split groups that bind more than `max_buffers` buffers.

    y = fused_conv2d_add_add_relu(x, w, bias, skip)
    ->      t = fused_conv2d_add_add_relu_0(x, w, bias)
            y = fused_conv2d_add_add_relu_1(t, skip)

    The pass runs between fusion and `FuseTIR`, when a group is a Relax function of calls. A single operator that binds
    too many buffers stays as it is.
    """
    if max_buffers is None:
        return mod
    return _split(
        mod, lambda group, _name: _longest_pieces(group, max_buffers) if len(group.params) >= max_buffers else []
    )


def split_untaken(mod: tvm.IRModule) -> tvm.IRModule:
    """Split groups that no operator family takes, to leave the fewest operators without a family.

    y = fused_conv2d_add_sigmoid_multiply(x, w, bias, map)
    ->      gate = fused_conv2d_add_sigmoid(x, w, bias)
            y = multiply(gate, map)

    TVM fuses a contraction with a product that broadcasts its result, which no operator family takes as one function.
    The pass runs between fusion and `FuseTIR`.
    """
    untaken = {var.name_hint for var, func in relax.transform.FuseTIR()(mod).functions_items() if _is_untaken(func)}
    return _split(mod, lambda group, name: _taken_pieces(mod, group) if name in untaken else [])


def _split(mod: tvm.IRModule, pieces_of: Callable[[relax.Function, str], Sequence[_Piece]]) -> tvm.IRModule:
    """Return `mod` with each piece of a group as a separate kernel.

    pieces_of: pieces of a group, given its name. A group of fewer than two pieces stays whole.
    """
    pieces = {
        var.name_hint: group_pieces
        for var, group in mod.functions_items()
        if var.name_hint != "main"
        and isinstance(group, relax.Function)
        and len(group_pieces := pieces_of(group, var.name_hint)) > 1
    }

    class Splitter(MainRewriter):
        def visit(self, binding: relax.VarBinding) -> None:
            call = binding.value
            name = call.op.name_hint if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.GlobalVar) else None
            if name not in pieces:
                super().visit(binding)
                return
            group = mod[name]
            inside = dict(zip(group.params, map(self.plain_expr, call.args), strict=True))
            for number, piece in enumerate(pieces[name]):
                function = self.variant(f"{name}_{number}", (), functools.partial(_function_of, piece, group))
                inside[piece.output] = self.bb.emit(relax.Call(function, [inside[var] for var in piece.inputs]))
            self.plain[binding.var] = inside[pieces[name][-1].output]

    return rebuild_main(mod, Splitter()) if pieces else mod


def _bindings_of(group: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a group, or none if it cannot be split because its last operator is not its result."""
    bindings = bindings_of(group)
    can_be_split = (
        bindings
        and bindings[-1].var == group.body.body
        and not any(isinstance(binding, relax.MatchCast) for binding in bindings)
    )
    return _in_order_of_use(bindings) if can_be_split else []


def _pieces_from(bindings: Sequence[relax.Binding], start: int) -> list[tuple[int, _Piece]]:
    """Return the ends of the pieces that begin at `start`, with the pieces, the shortest first."""
    pieces = []
    for end in range(start + 1, len(bindings) + 1):
        later = set(_read(bindings[end:]))
        if not any(binding.var in later for binding in bindings[start : end - 1]):
            pieces.append((end, _Piece(bindings[start:end], _read(bindings[start:end]))))
    return pieces


def _longest_pieces(group: relax.Function, most_buffers: int) -> list[_Piece]:
    """Return greedily the longest pieces that keep within the limit."""
    bindings = _bindings_of(group)
    pieces: list[_Piece] = []
    start = 0
    while start < len(bindings):
        ends = _pieces_from(bindings, start)
        fitting = (choice for choice in reversed(ends) if len(choice[1].inputs) < most_buffers)
        start, piece = next(fitting, ends[0])
        pieces.append(piece)
    return pieces


def _taken_pieces(mod: tvm.IRModule, group: relax.Function) -> list[_Piece]:
    """Return the best pieces: fewest kernels without a family, then fewest kernels, then longest first pieces."""
    bindings = _bindings_of(group)
    # Start -> kernels without a family, number of kernels, and the pieces, from there to the end.
    best: dict[int, tuple[int, int, list[_Piece]]] = {len(bindings): (0, 0, [])}
    for start in reversed(range(len(bindings))):
        choices = []
        for end, piece in reversed(_pieces_from(bindings, start)):
            untaken, count, rest = best[end]
            choices.append((untaken + _is_untaken(_kernel_of(mod, piece, group)), count + 1, [piece, *rest]))
        best[start] = min(choices, key=lambda choice: choice[:2])
    return best[0][2]


def _kernel_of(mod: tvm.IRModule, piece: _Piece, group: relax.Function) -> tirx.PrimFunc:
    """Return a piece as one TIR function."""
    called = {
        call.args[0]
        for call in (binding.value for binding in piece.bindings)
        if isinstance(call.args[0], tvm.ir.GlobalVar)
    }
    bb = relax.BlockBuilder(tvm.IRModule({var: mod[var] for var in called}))
    function = bb.add_func(_function_of(piece, group), "piece")
    params = [relax.Var(f"x{i}", var.ty) for i, var in enumerate(piece.inputs)]
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(relax.Call(function, params))
        bb.emit_func_output(result)
    return relax.transform.FuseTIR()(bb.finalize())[function.name_hint]


def _is_untaken(func: tirx.PrimFunc | relax.Function) -> bool:
    """Return whether a function becomes a kernel that no family takes."""
    try:
        return isinstance(func, tirx.PrimFunc) and template_of(func) is None and not is_view(func)
    except Exception:  # `check_families` reports the function
        return False


def _in_order_of_use(bindings: Sequence[relax.Binding]) -> list[relax.Binding]:
    """Return the bindings that the last one needs, each right before its first reader, to keep live ranges short.

    Fusion orders them by their first input. Of the operands of a binding, the one with the most operators behind it
    comes first, so that a cast of the other factor stays beside their product.
    """
    made, ordered, waiting = {binding.var: binding for binding in bindings}, {}, [bindings[-1]]
    behind: dict[relax.Var, int] = {}
    for binding in bindings:
        behind[binding.var] = 1 + sum(behind.get(var, 0) for var in _read([binding]))
    while waiting:
        missing = [var for var in _read([waiting[-1]]) if var in made and var not in ordered]
        if missing:
            waiting.append(made[max(missing, key=lambda var: behind[var])])
        else:
            done = waiting.pop()
            ordered[done.var] = done
    return list(ordered.values())


def _read(bindings: Sequence[relax.Binding]) -> list[relax.Var]:
    """Return the variables that bindings read and do not bind, in the order of reading."""
    made = {binding.var for binding in bindings}
    read = (var for binding in bindings for var in relax.analysis.free_vars(binding.value))
    return [var for var in dict.fromkeys(read) if var not in made]


def _function_of(piece: _Piece, group: relax.Function) -> relax.Function:
    rewriter = MainRewriter()
    params = [relax.Var(f"x{i}", var.ty) for i, var in enumerate(piece.inputs)]
    rewriter.plain.update(zip(piece.inputs, params, strict=True))
    bb = rewriter.bb
    with bb.function("piece", params, attrs=dict(group.attrs)):
        with bb.dataflow():
            for binding in piece.bindings[:-1]:
                rewriter.visit(binding)
            result = bb.emit_output(rewriter.plain_expr(piece.bindings[-1].value))
        bb.emit_func_output(result)
    return bb.finalize()["piece"].without_attr("global_symbol")
