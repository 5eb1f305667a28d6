"""TVM's `FlattenBuffer`, with correct quotients.

TVM simplifies addresses there as iterators of loops, and computes quotients of shifted or decreasing numbers wrongly.
Other passes compute them correctly.

    x[(1 - i) % 3]               ->      x[i % -3 * -1]                   the 1 is lost
    x[(8 - i) // 3]              ->      x[i // -3 + 2]                   rounded in the other direction
    x[(i * 2 + j + 5) // 2 % 3]  ->      x[((j + 1) // 2 + i) % 3]        the 4 of the 5 is lost

So these quotients are calls of an unknown function during `FlattenBuffer`. In a function that TVM's own pipeline
lowers, they are made of quotients that round towards zero, which TVM leaves as they are. Drop this when FlattenBuffer
leaves all of them as they are (tests/passes/test_flat_buffers.py).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from romou.compiler.tir.calls import extern_name
from romou.compiler.tir.traversal import function_pass, rewriting
from romou.devices.backends.dialect import dialects_of

_FUNCTIONS: dict[str, type] = {"romou_floor_mod": tirx.FloorMod, "romou_floor_div": tirx.FloorDiv}
_NAMES = {kind: name for name, kind in _FUNCTIONS.items()}


def _hidden(expr: tirx.FloorMod | tirx.FloorDiv, mutator: Any) -> tirx.Expr:
    new = mutator.default_mutate(expr)
    return tirx.call_pure_extern(str(new.ty), _NAMES[type(new)], new.a, new.b) if _is_shifted(new.a) else new


def _shown(call: tvm.ir.Call, mutator: Any) -> tirx.Expr:
    new = mutator.default_mutate(call)
    kind = _FUNCTIONS.get(extern_name(new) or "")
    return new if kind is None else kind(*new.args[1:])


def _is_shifted(numerator: tirx.Expr, factor: int = 1) -> bool:
    """Return whether a sum has a constant, or a term with a negative factor."""
    match numerator:
        case tirx.IntImm():
            return factor * int(numerator) != 0
        case tirx.Add():
            return _is_shifted(numerator.a, factor) or _is_shifted(numerator.b, factor)
        case tirx.Sub():
            return _is_shifted(numerator.a, factor) or _is_shifted(numerator.b, -factor)
        case tirx.Mul() if isinstance(numerator.b, tirx.IntImm):
            return _is_shifted(numerator.a, factor * int(numerator.b))
        case tirx.Mul() if isinstance(numerator.a, tirx.IntImm):
            return _is_shifted(numerator.b, factor * int(numerator.a))
    return factor < 0


def _truncated(expr: tirx.FloorMod | tirx.FloorDiv, mutator: Any) -> tirx.Expr:
    new = mutator.default_mutate(expr)
    if not _is_shifted(new.a):
        return new
    remainder = tirx.truncmod(tirx.truncmod(new.a, new.b) + new.b, new.b)
    return remainder if isinstance(new, tirx.FloorMod) else tirx.truncdiv(new.a - remainder, new.b)


_hide, _show = rewriting(((tirx.FloorMod, tirx.FloorDiv), _hidden)), rewriting((tvm.ir.Call, _shown))
_truncate = rewriting(((tirx.FloorMod, tirx.FloorDiv), _truncated))


def with_truncated_quotients(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write quotients by positive numbers in a way that TVM's own pipeline leaves as it is."""
    return func.with_body(_truncate(func.body))


@function_pass
def hide_quotients(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace quotients by calls, before `FlattenBuffer`."""
    return func.with_body(_hide(func.body))


@function_pass
def show_quotients(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the calls by quotients, after `FlattenBuffer`."""
    return func.with_body(_show(func.body))


flatten_buffers = tvm.transform.Sequential(
    [hide_quotients, tirx.transform.FlattenBuffer(), show_quotients], name="flatten_buffers"
)


@tvm.transform.module_pass(opt_level=0)
def flatten_without_images(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Flatten buffers before vectors are made, if no image needs the tensors' axes.

    TVM's own schedules for CUDA vectorize other axes than the last.
    """
    return mod if all(dialect.has_images for dialect in dialects_of(mod)) else flatten_buffers(mod)
