"""Convert a simplified ONNX graph to a Relax module, and check its tensors against ONNX's types."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import tvm
from tvm import relax, tirx

from romou.base.errors import ModelError
from romou.compiler.frontend.constants import has_constant_call, reshape_constants
from romou.compiler.frontend.host_groups import CARRIED
from romou.compiler.frontend.onnx_graph import first_output, shapes_of, type_name, types_of
from romou.compiler.tir.calls import op_name
from romou.compiler.tir.origin import Origin, bindings_of, with_origins
from tvm_patches.errors import ImporterError
from tvm_patches.host_nodes import OPERATOR as HOST_NODES
from tvm_patches.onnx_converters import from_onnx, reason_of
from tvm_patches.short_types import STORAGE

# ONNX types that kernels support. 0: unknown, but a later step may find it.
_CARRIED = {0} | CARRIED


def to_relax(proto: onnx.ModelProto) -> tvm.IRModule:
    """Convert a graph, check the types of all tensors, and fold with Relax.

    Raises
    ------
    ModelError
        An operator cannot be imported, or has become a tensor of another type.
    """
    _refuse_types(proto)
    try:
        mod, tensors = from_onnx(proto)
    except ImporterError as error:
        raise ModelError(error.message, hint=error.hint, **error.fields) from error
    except Exception as error:  # the importer raises many types for graphs that it cannot express
        raise ModelError(f"TVM's ONNX importer rejected the graph: {reason_of(error)}") from error
    _check_types(proto, tensors)
    mod["main"] = _with_origins(proto, mod["main"], tensors)
    passes = [relax.transform.FoldBatchnormToConv2D(), relax.transform.DecomposeOpsForInference()]
    try:
        mod = reshape_constants(tvm.transform.Sequential(passes)(mod))
        # FoldConstant compiles a kernel for each operator on constants, and takes long to find that there are none.
        folds = [relax.transform.FoldConstant()] if has_constant_call(mod["main"]) else []
        mod = tvm.transform.Sequential([*folds, relax.transform.DeadCodeElimination()])(mod)
    except Exception as error:  # a pass evaluates operators on constants, and raises many types
        raise ModelError(f"TVM cannot fold the graph's constants: {reason_of(error)}") from error
    _check_static(mod["main"])
    return mod


def _with_origins(proto: onnx.ModelProto, main: relax.Function, tensors: Mapping[str, relax.Expr]) -> relax.Function:
    """Attach each node to the variables that its outputs are bound to (`romou.compiler.tir.origin`)."""
    bindings = bindings_of(main)
    vars_of: dict[relax.Expr, list[relax.Var]] = {binding.var: [binding.var] for binding in bindings}
    for binding in bindings:
        vars_of.setdefault(binding.value, []).append(binding.var)
    origins: dict[relax.Var, Origin] = {}
    for node in proto.graph.node:
        for var in (var for name in node.output if name in tensors for var in vars_of.get(tensors[name], ())):
            origins.setdefault(var, frozenset({first_output(node)}))
    return with_origins(main, origins)


def _refuse_types(proto: onnx.ModelProto) -> None:
    """Raise ModelError for nodes with tensors that no kernel supports: text, sequences, and short floats."""
    types = types_of(proto.graph)
    for tensor in proto.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for node in proto.graph.node:
        for name in (*node.input, *node.output) if node.op_type != HOST_NODES else ():
            if name in types and not _is_carried(types[name]):
                where = f"{node.op_type} (node {node.name!r})" if node.name else node.op_type
                raise ModelError(
                    f"{where}: the tensor {name!r} is {_type_name(types[name])}, which no kernel carries; export the"
                    " model with another type",
                    operator=node.op_type,
                    node=node.name,
                )


def _is_carried(value: onnx.TypeProto) -> bool:
    return value.WhichOneof("value") in (None, "tensor_type") and value.tensor_type.elem_type in _CARRIED


def _type_name(value: onnx.TypeProto) -> str:
    if not value.HasField("tensor_type"):
        return f"a {str(value.WhichOneof('value')).removesuffix('_type')}"
    return f"of type {onnx.TensorProto.DataType.Name(value.tensor_type.elem_type).lower()}"


def _check_types(proto: onnx.ModelProto, tensors: Mapping[str, relax.Expr]) -> None:
    """Raise ModelError if a tensor has another shape or type in Relax than in ONNX, because its values would differ."""
    declared = types_of(proto.graph)
    shapes = shapes_of(proto.graph)
    for node in proto.graph.node:
        for name in node.output if node.op_type != HOST_NODES else ():
            value = declared[name].tensor_type if name in declared and declared[name].HasField("tensor_type") else None
            if value is None or not value.elem_type or name not in tensors:
                continue
            imported, wanted = tensors[name].ty, type_name(value.elem_type)
            wanted = STORAGE.get(wanted, wanted)
            if not isinstance(imported, relax.TensorType):
                continue
            has_shape = isinstance(imported.shape, relax.ShapeExpr) and _is_static(imported.shape)
            shape = tuple(int(d) for d in imported.shape.values) if has_shape else None
            if str(imported.dtype) != wanted or (name in shapes and shape != shapes[name]):
                where = f"{node.op_type} (node {node.name!r})" if node.name else node.op_type
                extents = " of a shape computed at run time" if shape is None else str(list(shape))
                became = f"{imported.dtype}{extents}"
                raise ModelError(
                    f"{where}: the output {name!r} was imported as {became}, but the model says"
                    f" {wanted}{list(shapes.get(name, ()))}; this is a limit of the importer",
                    operator=node.op_type,
                    node=node.name,
                )


def _is_static(shape: relax.ShapeExpr) -> bool:
    return all(isinstance(d, tirx.IntImm) for d in shape.values)


def _check_static(main: relax.Function) -> None:
    """Raise ModelError if a kernel's tensor has a dynamic shape, or a result is no tensor.

    Host nodes may return tensors of dynamic shapes.
    """
    results = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    if not all(isinstance(result, relax.TensorType) for result in results):
        raise ModelError("TVM's ONNX importer made something else than tensors of the outputs")
    for binding in bindings_of(main):
        value = binding.value
        is_from_host = op_name(value) == "relax.call_pure_packed" or isinstance(
            value, relax.Var | relax.TupleGetItem | relax.Tuple
        )
        for ty in binding.var.ty.fields if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]:
            is_known = (
                isinstance(ty, relax.TensorType)
                and isinstance(ty.shape, relax.ShapeExpr)
                and all(isinstance(d, tirx.IntImm) for d in ty.shape)
            )
            if not is_known and not is_from_host and isinstance(ty, relax.TensorType):
                raise ModelError(f"the shape of what {op_name(value)} computes depends on data")
