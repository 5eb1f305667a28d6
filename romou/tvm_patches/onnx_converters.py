"""Replaces ONNX converters of the wheel that import one cheap operator as many, or as another one.

Clip: the wheel emits opaque TIR that computes its bounds at run time; it neither fuses with a convolution nor changes layout.
Max, Min: the wheel broadcasts and stacks all operands and reduces the stack.
ConvTranspose: the wheel ignores the attribute `output_shape` and gives a tensor of another shape.
Input names: kernels name their parameters after them, and the wheel leaves characters that no kernel may have ("/conv1/x", "an input").
Drop each when tests/tvm_patches/test_onnx_converters.py says that the wheel emits the simple form.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from romou.tvm_patches import host_nodes


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


class ConvTranspose(onnx_frontend.ConvTranspose):
    """ConvTranspose(output_shape=s) -> ConvTranspose(pads=p) of that shape."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
        if "output_shape" not in attr:
            return super()._impl_v1(bb, inputs, attr, params)
        extents, kernel = ([int(d) for d in inputs[i].ty.shape.values[2:]] for i in (0, 1))
        ones = [1] * len(extents)
        strides, dilations, more = (
            list(attr.get(name, default)) for name, default in (("strides", ones), ("dilations", ones), ("output_padding", [0] * len(ones)))
        )
        # A shape may have been given with batch and channels.
        wanted = list(attr["output_shape"])[-len(extents) :]
        total = [s * (i - 1) + a + (k - 1) * d + 1 - o for s, i, a, k, d, o in zip(strides, extents, more, kernel, dilations, wanted, strict=True)]
        is_upper = attr.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", "SAME_UPPER")
        before = [t // 2 if is_upper else t - t // 2 for t in total]
        given = {name: value for name, value in attr.items() if name not in ("output_shape", "auto_pad")}
        return super()._impl_v1(bb, inputs, {**given, "pads": before + [t - b for t, b in zip(total, before, strict=True)]}, params)


@contextmanager
def patched_converters() -> Iterator[None]:
    """Make the wheel's importer use the converters of this file inside the `with` block."""
    original = onnx_frontend._get_convert_map
    importer = onnx_frontend.ONNXGraphImporter
    sanitize = importer._sanitize_name

    def patched() -> dict[str, Any]:
        return {**original(), "Clip": Clip, "Max": Max, "Min": Min, "ConvTranspose": ConvTranspose, host_nodes.OPERATOR: host_nodes.HostNodes}

    onnx_frontend._get_convert_map = patched
    importer._sanitize_name = lambda self, name: sanitize(self, re.sub(r"\W", "_", name, flags=re.ASCII))
    try:
        with warnings.catch_warnings():
            # Whoever runs the model still sees the inputs' own names.
            warnings.filterwarnings("ignore", "Renaming name")
            yield
    finally:
        onnx_frontend._get_convert_map = original
        importer._sanitize_name = sanitize
