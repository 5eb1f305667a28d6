"""The converter of nodes that run on the host.

It writes a call of a packed function that Romou registers (`romou/runtime/module/host_nodes.py`).

The call contains the sub-model as text, so a compiled model contains it, too.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from tvm_patches.short_types import STORAGE

DOMAIN = "romou"
OPERATOR = "RomouHostNodes"
FUNCTION = "romou.host_nodes"


class HostNodes(OnnxOpConverter):
    """Convert RomouHostNodes(x, ..., text) to call_pure_packed("romou.host_nodes", text, x, ...)."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        text = attr["text"].decode()
        types = [_type(dtype, dims) for dtype, dims in json.loads(text)["outputs"]]
        # The function puts its outputs on the device of its first tensor.
        tensors = list(inputs) or [relax.const(np.zeros(1, "int32"))]
        return bb.emit(
            relax.op.call_pure_packed(
                FUNCTION, text, *tensors, ty_args=types[0] if len(types) == 1 else relax.TupleType(types)
            )
        )


def _type(dtype: str, dims: list[int] | int | None) -> relax.TensorType:
    dtype = STORAGE.get(dtype, dtype)
    if isinstance(dims, list):
        return relax.TensorType(dims, dtype)
    return relax.TensorType(dtype=dtype, ndim=-1 if dims is None else dims)
