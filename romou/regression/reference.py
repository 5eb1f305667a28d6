"""A model that no version of Romou changes: its time tells how fast the machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax

from romou.module import Summary, TunedModel

if TYPE_CHECKING:
    from romou.target import Target

_SIDE = 256


def reference_model(beside: TunedModel) -> TunedModel:
    """A product of two matrices of single precision by TVM's own schedule, for the device that another model runs on."""
    summary = Summary.unmeasured(target=str(beside.target), rows=(), seconds=0.0)
    inputs = dict.fromkeys(("a", "b"), ((_SIDE, _SIDE), "float32"))
    return TunedModel(
        _executable(beside.target),
        target=beside.target,
        inputs=inputs,
        outputs=("c",),
        summary=summary,
        device_index=beside.device_index,
        remote=beside.remote,
    )


def _executable(target: Target) -> relax.VMExecutable:
    builder = relax.BlockBuilder()
    a, b = (relax.Var(name, relax.TensorType((_SIDE, _SIDE), "float32")) for name in ("a", "b"))
    with builder.function("main", [a, b]):
        builder.emit_func_output(builder.emit(relax.op.matmul(a, b)))
    return tvm.compile(builder.finalize(), target=target.tvm_target)
