"""The knob `functions`: exponentials within OpenCL's error, or the instructions of the device."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx

from romou.base.knob import Choice, Knob
from romou.base.space import Config
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.primitives import NATIVE_FUNCTIONS
from romou.compiler.tir.traversal import nodes_in

ACCURATE, NATIVE = "accurate", "native"
FUNCTIONS = Knob(
    name="functions",
    choices=(ACCURATE, NATIVE),
    default=NATIVE,
    help="exponentials, and quotients beside them: within OpenCL's error, or the device's own instructions",
    devices="OpenCL: mobile GPUs",
    exists_on=lambda limits: limits.has_native_functions and limits.is_mobile,
    absent=ACCURATE,
)
_EXPONENTIALS = ("tirx.exp", "tirx.sigmoid")


def function_choices(func: tirx.PrimFunc) -> Sequence[Choice]:
    """Return the choices of the knob `FUNCTIONS`. Empty for a function without exponentials."""
    calls = nodes_in(func.body, tvm.ir.Call)
    return FUNCTIONS.choices if any(op_name(call) in _EXPONENTIALS for call in calls) else ()


def with_functions(func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
    """Return a scheduled function with the exponentials of `config`."""
    return func.with_attr(NATIVE_FUNCTIONS, True) if config.get(FUNCTIONS.name) == NATIVE else func
