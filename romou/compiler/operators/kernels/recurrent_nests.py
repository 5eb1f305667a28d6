"""The loop nests of a recurrent operator's function. Each becomes a kernel, or a part of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from romou.compiler.tir.expressions import extents_of
from romou.compiler.tir.traversal import statements_of
from tvm_patches.onnx_converters.recurrent_loop import SUMMED, TIME_LOOP


def below_time(stage: tirx.For) -> list[tirx.For] | None:
    """Return the nests of the time loop, or None for a nest of units."""
    if TIME_LOOP not in stage.annotations:
        return None
    return list(statements_of(stage.body))


@dataclass(frozen=True, kw_only=True)
class Nest:
    """The three loops of a nest, and the statements for a unit. The batch may be an expression of a run-time size."""

    axes: list[tirx.Var]
    extents: list[Any]
    steps: list[tirx.Stmt]


def nest_of(stage: tirx.For) -> Nest:
    axes, extents, body = [], [], stage
    for _ in range(3):
        axes.append(body.loop_var)
        extents += extents_of([body.extent])
        body = body.body
    return Nest(axes=axes, extents=extents, steps=list(statements_of(body)))


def product_of(nest: Nest) -> tirx.For | None:
    """Return the loop that sums up the products with the states, or None."""
    return next((step for step in nest.steps if isinstance(step, tirx.For) and SUMMED in step.annotations), None)
