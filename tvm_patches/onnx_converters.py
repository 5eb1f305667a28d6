"""Replacements for ONNX converters of the wheel that import one cheap operator as many.

Clip: the wheel emits opaque TIR whose bounds are computed at run time from NaN checks; it neither fuses with a
convolution nor changes layout. Max and Min: the wheel broadcasts and stacks all operands and reduces the stack.
Drop either when the test in tests/tvm_patches/test_onnx_converters.py says that the wheel emits the simple form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend


class Clip(onnx_frontend.Clip):
    """Clip(x, lo, hi) -> minimum(maximum(x, lo), hi) where the bounds are constants other than NaN."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        dtype = str(inputs[0].ty.dtype)
        bounds = [relax.const(attr[name], dtype) if name in attr else None for name in ("min", "max")]
        return cls._impl_v13(bb, [inputs[0], *bounds], attr, params)

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        bounds = [inputs[i] if len(inputs) > i else None for i in (1, 2)]
        if any(b is not None and not _is_plain_scalar(b) for b in bounds):
            return super()._impl_v13(bb, inputs, attr, params)
        value = inputs[0]
        for op, bound in zip((relax.op.maximum, relax.op.minimum), bounds, strict=True):
            if bound is not None:
                scalar = bound.value.numpy().reshape(())
                value = bb.normalize(op(value, relax.const(scalar, scalar.dtype.name)))
        return value


def _is_plain_scalar(bound: relax.Expr) -> bool:
    return isinstance(bound, tvm.ir.GenericConst) and bound.value.numpy().size == 1 and not np.isnan(bound.value.numpy()).any()


class Max(onnx_frontend.Max):
    """Max(a, b, …) -> maximum(maximum(a, b), …)."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        return cls._impl_dynamic(bb, inputs)


class Min(onnx_frontend.Min):
    """Min(a, b, …) -> minimum(minimum(a, b), …)."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        return cls._impl_dynamic(bb, inputs)


@contextmanager
def patched_converters() -> Iterator[None]:
    """Make the wheel's importer use the converters of this file inside the `with` block."""
    original = onnx_frontend._get_convert_map

    def patched() -> dict[str, Any]:
        return {**original(), "Clip": Clip, "Max": Max, "Min": Min}

    onnx_frontend._get_convert_map = patched
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = original
