"""Replaces ONNX converters of the wheel: wrong ones, missing ones, and ones that import a cheap operator as several.

Each file of this folder enters converters in a table by operator. Its first line gives the reason. The importer is the
wheel's, extended by domains, names that kernels may have, and errors that name the node.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_patches import host_nodes
from tvm_patches.domains import MICROSOFT
from tvm_patches.errors import ImporterError
from tvm_patches.onnx_converters.node import CONVERTERS, Node, attributes_of, key_of, shape_of, type_name
from tvm_patches.short_types import STORAGE, stored

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

# Names that mean operators of onnxruntime's domain com.microsoft in the wheel. The standard's operators of the same
# names are others.
_MICROSOFT = {
    "AllClassNMS",
    "Attention",
    "BiasGelu",
    "EmbedLayerNormalization",
    "FastGelu",
    "Gelu",
    "MatMulInteger16",
    "SkipLayerNormalization",
}

# Operators whose second operand opset 6 aligns by an attribute.
_AXIS_UNTIL_7 = {"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"}


def reason_of(error: Exception) -> str:
    """Return the helpful line of an importer's or a pass's error, without the exception's type."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    text = lines[-1].strip() if lines else type(error).__name__
    text = text.removeprefix("# Metadata omitted. Use show_meta=True in script() method to show it.").strip()
    return f"it does not know {text}" if isinstance(error, KeyError) else text


def can_import(node: onnx.NodeProto) -> bool:
    """Return whether there is a converter for the node's operator and domain."""
    if node.op_type == host_nodes.OPERATOR:
        return True
    if key_of(node.op_type, node.domain) in CONVERTERS:
        return True
    if node.domain == MICROSOFT:
        return node.op_type in _MICROSOFT
    is_standard = node.domain in ("", "ai.onnx")
    return is_standard and node.op_type in onnx_frontend._get_convert_map() and node.op_type not in _MICROSOFT


def from_onnx(model: onnx.ModelProto) -> tuple[tvm.IRModule, dict[str, relax.Expr]]:
    """Convert a model of static shapes. Return the module, and the expression of each tensor by its name.

    Raises
    ------
    ImporterError
        If a node has no converter, or its converter fails. The fields `operator` and `node` name it.
    """
    unknown = [node for node in model.graph.node if not can_import(node)]
    if unknown:
        names = ", ".join(
            sorted({f"{n.domain}.{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in unknown})
        )
        raise ImporterError(
            f"the model uses ONNX operators that TVM cannot import: {names}; replace them, or export with another"
            " opset",
            operator=unknown[0].op_type,
            node=unknown[0].name,
        )
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _Importer({}, {}, keep_params_in_input=False)
    importer.pending = iter(model.graph.node)
    importer.kinds = _kinds_of(model.graph)
    importer.declared = {
        v.name: s for v in (*model.graph.value_info, *model.graph.output) if (s := _declared_shape(v)) is not None
    }
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # On a failure the importer prints to stdout, which belongs to the caller. Its warning about new names of inputs
        # does not apply, because inputs keep the names of the model.
        warnings.filterwarnings("ignore", "Renaming name")
        mod = importer.from_onnx(model.graph, opset)
    return mod, importer._nodes


def _kinds_of(graph: onnx.GraphProto) -> dict[str, str]:
    """Return tensor -> NumPy's name of its type, if the model gives it."""
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return {
        name: type_name(kind)
        for name, kind in types.items()
        if kind not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    }


def _declared_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = value.type.tensor_type
    is_static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
    return tuple(d.dim_value for d in tensor.shape.dim) if is_static else None


class _Importer(onnx_frontend.ONNXGraphImporter):
    """The wheel's importer with this folder's converters.

    pending: nodes still to be converted, in the wheel's order.
    declared: tensor name -> shape, if the model gives it.
    kinds: tensor name -> its type in ONNX, if the model gives it.
    """

    pending: Iterator[onnx.NodeProto]
    declared: dict[str, tuple[int, ...]]
    kinds: dict[str, str]

    def _sanitize_name(self, name: str) -> str:
        sanitized: str = super()._sanitize_name(re.sub(r"\W", "_", name, flags=re.ASCII))
        return sanitized

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        """Enter the graph's inputs. The wheel would take an extent of zero for an unknown one."""
        for value in graph.input:
            self._num_input += 1
            if value.name in self._nodes:
                continue  # an initializer
            tensor = value.type.tensor_type
            shape, dtype = [int(d.dim_value) for d in tensor.shape.dim], onnx_frontend.get_type(tensor.elem_type)
            dtype = STORAGE.get(dtype, dtype)
            self._input_names.append(value.name)
            self._nodes[value.name] = self._inputs[value.name] = self._new_var(
                self._sanitize_name(value.name), shape=shape, dtype=dtype
            )

    def _parse_array(self, tensor: onnx.TensorProto) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(stored(onnx.numpy_helper.to_array(tensor).reshape(tuple(tensor.dims))))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Check nothing, because `from_onnx` checks operators with their domains."""

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> relax.Expr:
        node = next(self.pending)
        assert node.op_type == op_name
        try:
            if opset < 7 and "axis" in attrs and op_name in _AXIS_UNTIL_7:
                inputs[1] = self._aligned(inputs[0], inputs[1], attrs.pop("axis"))
            elif opset < 7 and op_name == "PRelu" and len(shape_of(inputs[1])) == 1 and len(shape_of(inputs[0])) > 1:
                inputs[1] = self._aligned(inputs[0], inputs[1], 1)
            if op_name == host_nodes.OPERATOR:
                expr: relax.Expr = host_nodes.call_host_nodes(self.bb, inputs, attrs["text"].decode())
                return self.bb.normalize(expr)
            if key_of(op_name, node.domain) in CONVERTERS:
                return self._converted(node, inputs, attrs, opset)
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception as error:  # converters raise by many types for one cause: a node that they cannot express
            shown = f"{op_name} (node {node.name!r})" if node.name else op_name
            raise ImporterError(
                f"TVM's ONNX importer rejected the graph: {shown}: {reason_of(error)}", operator=op_name, node=node.name
            ) from error

    def _converted(self, proto: onnx.NodeProto, inputs: list[Any], attrs: dict[str, Any], opset: int) -> relax.Expr:
        key = key_of(proto.op_type, proto.domain)
        node = Node(
            operator=proto.op_type,
            inputs=tuple(self._tensor(value) for value in inputs),
            attributes=attributes_of(
                key, opset, {name: value for name, value in attrs.items() if name != "tvm_custom"}
            ),
            opset=opset,
            outputs=tuple(self.declared.get(name) if name else None for name in proto.output),
            is_wanted=tuple(bool(name) for name in proto.output),
            builder=self.bb,
            kinds=tuple(self.kinds.get(name) for name in proto.input),
        )
        result = CONVERTERS[key](node)
        return self.bb.normalize(
            relax.Tuple([self.bb.normalize(value) for value in result]) if isinstance(result, Sequence) else result
        )

    def _aligned(self, first: relax.Expr, second: relax.Expr, axis: int) -> relax.Expr:
        """Reshape `second` so that its first axis meets axis `axis` of `first`, as opset 6 broadcasts."""
        rank, shape = len(shape_of(first)), shape_of(second)
        return self.bb.normalize(relax.op.reshape(second, [*shape, *[1] * (rank - axis % rank - len(shape))]))

    def _tensor(self, value: Any) -> relax.Expr | None:
        """Return an input as a tensor. The wheel's converters may pass a shape or one of its dimensions."""
        if isinstance(value, relax.ShapeExpr):
            return relax.const([int(d) for d in value.values], "int64")
        if value is not None and tvm.ir.is_prim_expr(value):
            return relax.const(value.value, str(value.ty.dtype) if hasattr(value.ty, "dtype") else "int64")
        return self.bb.normalize(value) if isinstance(value, relax.Expr) else value
