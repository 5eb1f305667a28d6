"""The converter of nodes that run on the host.

It writes a call of a packed function that Romou registers (`romou/runtime/module/host_nodes.py`).

The call contains the sub-model as text, so a compiled model contains it, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_patches.short_types import STORAGE

if TYPE_CHECKING:
    from tvm import relax

DOMAIN = "romou"
OPERATOR = "RomouHostNodes"
FUNCTION = "romou.host_nodes"


def call_host_nodes(builder: relax.BlockBuilder, inputs: Sequence[relax.Expr], text: str) -> relax.Expr:
    """Convert RomouHostNodes(x, ..., text) to call_pure_packed("romou.host_nodes", text, x, ...)."""
    from tvm import relax

    def type_of(dtype: str, dims: list[int] | int | None) -> relax.TensorType:
        dtype = STORAGE.get(dtype, dtype)
        if isinstance(dims, list):
            return relax.TensorType(dims, dtype)
        return relax.TensorType(dtype=dtype, ndim=-1 if dims is None else dims)

    types = [type_of(dtype, dims) for dtype, dims in json.loads(text)["outputs"]]
    # The function puts its outputs on the device of its first tensor.
    tensors = list(inputs) or [relax.const(np.zeros(1, "int32"))]
    call = relax.op.call_pure_packed(
        FUNCTION, text, *tensors, ty_args=types[0] if len(types) == 1 else relax.TupleType(types)
    )
    return builder.emit(call)
