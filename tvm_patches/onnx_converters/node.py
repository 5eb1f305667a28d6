"""An ONNX node for converters, and the table of converters by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
import tvm
from tvm import relax, te
from tvm.relax.frontend.onnx import onnx_frontend

# One expression, or one for each output.
Result: TypeAlias = "relax.Expr | Sequence[relax.Expr]"
Converter = Callable[["Node"], Result]

# Operator, with its domain in front if that is not the standard's -> converter.
CONVERTERS: dict[str, Converter] = {}


def type_name(element: int) -> str:
    """Return NumPy's name of an ONNX element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name


def key_of(operator: str, domain: str) -> str:
    """Return an operator's key in the table."""
    return operator if domain in ("", "ai.onnx") else f"{domain}.{operator}"


def converter(*operators: str, domain: str = "", is_single: bool = False) -> Callable[[Converter], Converter]:
    """Enter a function in the table, for ONNX operators of a domain. It replaces the wheel's converter.

    is_single: see `in_single`.
    """

    def enter(function: Converter) -> Converter:
        for key in (key_of(operator, domain) for operator in operators):
            assert key not in CONVERTERS, key
            CONVERTERS[key] = in_single(function) if is_single else function
        return function

    return enter


def in_single(function: Converter) -> Converter:
    """Return the converter with inputs of fp16 cast to fp32, and its results cast back.

    For operators with sums, because fp16 holds no number above 65504.
    """

    def convert(node: Node) -> Result:
        is_fp16 = [value is not None and str(value.ty.dtype) == "float16" for value in node.inputs]
        if not any(is_fp16):
            return function(node)
        inputs = [
            node.emit(relax.op.astype(v, "float32")) if narrow else v
            for v, narrow in zip(node.inputs, is_fp16, strict=True)
        ]
        result = function(replace(node, inputs=tuple(inputs)))
        several = isinstance(result, Sequence)
        results = [node.builder.normalize(value) for value in (result if several else [result])]
        stored = [relax.op.astype(value, "float16") if str(value.ty.dtype) == "float32" else value for value in results]
        return stored if several else stored[0]

    return convert


@dataclass(frozen=True, kw_only=True)
class Node:
    """An ONNX node of static shapes, with Relax expressions as inputs.

    inputs: None for an optional one that is left out.
    attributes: texts as str and lists as tuples. With the operator's defaults, if ONNX has the operator.
    outputs: the shape of each, None if the model does not give it.
    is_wanted: whether the output has a name, that is, a reader.
    kinds: the type of each input in ONNX, by NumPy's name. None if the model does not give it.
    """

    operator: str
    inputs: tuple[relax.Expr | None, ...]
    attributes: dict[str, Any]
    opset: int
    outputs: tuple[tuple[int, ...] | None, ...]
    is_wanted: tuple[bool, ...]
    builder: relax.BlockBuilder
    kinds: tuple[str | None, ...] = ()

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> relax.Expr:
        """Return an input that the operator requires, or that `has` found."""
        value = self.inputs[index]
        assert value is not None
        return value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return shape_of(self.input(index))

    def kind(self, index: int) -> str:
        """Return an input's type in ONNX. A short type's tensor has another one (`tvm_patches.short_types`)."""
        return (self.kinds[index] if index < len(self.kinds) else None) or self.dtype(index)

    def dtype(self, index: int = 0) -> str:
        return str(self.input(index).ty.dtype)

    def constant(self, index: int) -> np.ndarray | None:
        """Return the value of a constant input. None if it is computed at run time or left out."""
        if not self.has(index):
            return None
        value = self.input(index)
        return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Return a constant as a tuple of integers. None if it is left out.

        Raises
        ------
        ValueError
            If it is there, but computed at run time.
        """
        if not self.has(index):
            return None
        value = self.constant(index)
        if value is None:
            raise ValueError(
                f"input {index} of {self.operator} is computed at run time; the result's shape depends on it"
            )
        return tuple(int(v) for v in value.reshape(-1))

    def result_shape(self) -> tuple[int, ...]:
        """The shape of the first output.

        Raises
        ------
        ValueError
            If the model does not give it.
        """
        if self.outputs[0] is None:
            raise ValueError("the shape of its result is not known before it runs")
        return self.outputs[0]

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable, so that it has a type and is computed once."""
        return self.builder.emit(value)

    def wheel(self, **attributes: Any) -> relax.Expr:
        """Convert the node by the wheel's converter, with `attributes` in place of the node's."""
        encoded = {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}
        convert = onnx_frontend._get_convert_map()[self.operator].get_converter(self.opset)
        expr: relax.Expr = convert(self.builder, onnx_frontend.onnx_input(self.inputs), encoded, [{}, {}])
        return expr

    def compute(self, function: Callable[..., te.Tensor | Sequence[te.Tensor]], *arguments: Any) -> relax.Expr:
        """Bind a tensor expression over Relax expressions to a variable."""
        # Kernels are named after the function, and a lambda's name is no valid name for a kernel.
        return self.builder.emit_te(function, *arguments, primfunc_name_hint=self.operator.lower())


def whole(value: relax.Expr, dtype: str) -> relax.Expr:
    """Return float values as integers, cut off. A number outside the type's range is its nearest float in the range."""
    kind = str(value.ty.dtype)
    wide = np.dtype(kind).type
    limits = np.iinfo(dtype)
    low, high = wide(limits.min), wide(limits.max)
    high = high if int(high) <= limits.max else np.nextafter(high, wide(0))
    bounded = relax.op.minimum(relax.op.maximum(value, relax.const(low, kind)), relax.const(high, kind))
    return relax.op.astype(bounded, dtype)


def shape_of(value: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape.values)


def attributes_of(key: str, opset: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return a node's attributes with the operator's defaults and decoded texts. key: see `key_of`."""
    defaults = {}
    if onnx.defs.has(key, opset):
        for name, attribute in onnx.defs.get_schema(key, opset).attributes.items():
            if attribute.default_value.type:
                defaults[name] = onnx.helper.get_attribute_value(attribute.default_value)
    return {name: _plain(value) for name, value in {**defaults, **given}.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return tuple(_plain(v) for v in value) if isinstance(value, (list, tuple)) else value
