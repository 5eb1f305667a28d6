"""An ONNX model becomes a Relax module with static shapes, folded constants and no batch norm.

The order matters: shapes are fixed first, so that onnxslim can fold the shape arithmetic that depends on them;
what is left of batch norm after that is folded in Relax.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import tvm
from tvm import relax

from romou.core.errors import ModelError, UsageError
from romou.frontend.declared import settle_declared
from romou.frontend.expand import expand_functions, inline_functions
from romou.frontend.fold import fold
from romou.frontend.graph import shapes_of, types_of
from romou.tvm_patches.onnx_converters import from_onnx

# Types of ONNX that kernels carry; 0: not known, where a later step may find it.
_CARRIED = {0} | {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(code)) for code in "?bBhHiIqQefd"}

_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A checked model in both forms.

    mod: Relax module with one function `main`, weights embedded as constants.
    onnx_model: the same model with its input shapes fixed, for the onnxruntime reference.
    inputs: name -> (shape, numpy dtype name), in call order.
    outputs: names, in the order in which the module returns them.
    """

    mod: tvm.IRModule
    onnx_model: onnx.ModelProto
    inputs: dict[str, tuple[tuple[int, ...], str]]
    outputs: tuple[str, ...]


def import_onnx(model: onnx.ModelProto | str | Path, shapes: Mapping[str, Sequence[int]] | None = None) -> ImportedModel:
    """Read, check and import an ONNX model.

    Parameters
    ----------
    model
        Path of an ONNX file, or a loaded model.
    shapes
        Shape by input name, for inputs whose shape the model leaves open (or to override it).

    Raises
    ------
    ModelError
        If the file is missing or broken, or holds an operator that TVM's importer lacks.
    UsageError
        If an input stays dynamic, or `shapes` names an input that is not there or has another rank.
    """
    proto = inline_functions(_load(model))
    proto = _fix_shapes(proto, _checked_shapes(shapes or {}))
    mod = _to_relax(simplify(proto))
    return ImportedModel(mod=mod, onnx_model=proto, inputs=_inputs_of(proto), outputs=tuple(o.name for o in proto.graph.output))


def simplify(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph that is imported: inputs that shapes decide are constants, some functions are their bodies, constants are folded."""
    settled = onnx.ModelProto()
    settled.CopyFrom(proto)
    settle_declared(settled)
    return fold(expand_functions(settled))


def _load(model: onnx.ModelProto | str | Path) -> onnx.ModelProto:
    if not isinstance(model, onnx.ModelProto | str | Path):
        raise UsageError(f"a model is the path of an ONNX file, or an onnx.ModelProto; got {type(model).__name__}")
    where = "the model" if isinstance(model, onnx.ModelProto) else str(model)
    if not isinstance(model, onnx.ModelProto):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"{path}: no such file; give the path of an ONNX model")
        try:
            model = onnx.load(path)
        except Exception as error:  # protobuf's DecodeError, or missing external data, by many types
            raise ModelError(f"{path}: not a readable ONNX file ({type(error).__name__}: {error}); export the model again") from error
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{where}: not a valid ONNX model: {str(error).strip()}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: a name in the model is not UTF-8 ({error}); export the model again") from error
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output, *graph.initializer)] + [n for node in graph.node for n in (*node.input, *node.output)]
    # protobuf gives a text that is not UTF-8 as bytes.
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{where}: the name {name!r} in the model is not UTF-8; export the model again")
    if not model.graph.node:
        raise ModelError(f"{where}: the graph has no nodes; nothing to compile")
    return model


def _graph_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {t.name for t in proto.graph.initializer}
    return [i for i in proto.graph.input if i.name not in weights]


def _checked_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Whole numbers by name; UsageError for anything else. What NumPy takes for a whole number is one, 8.5 is none."""
    if not isinstance(shapes, Mapping):
        raise UsageError(f"shapes={shapes!r}: expected {{name: sizes}}, for example {{'input': (1, 3, 224, 224)}}")
    found: dict[str, Sequence[int]] = {}
    for name, sizes in shapes.items():
        try:
            found[name] = [operator.index(size) for size in sizes]
        except TypeError as error:
            raise UsageError(f"shapes: {name!r} is {sizes!r}; expected whole numbers, for example (1, 3, 224, 224)") from error
        if any(size > _LARGEST for size in found[name]):
            raise UsageError(f"shapes: {name!r} is {tuple(found[name])}; no dimension can be larger than {_LARGEST}")
    return found


def _fix_shapes(proto: onnx.ModelProto, shapes: dict[str, Sequence[int]]) -> onnx.ModelProto:
    """Write `shapes` into the graph's inputs; every input must be static afterwards."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    names = [i.name for i in _graph_inputs(fixed)]
    for name in shapes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"shape given for {name!r}, but the model's inputs are {', '.join(names)}" + (f"; did you mean {near[0]!r}?" if near else ""))
    changed = False
    for value in _graph_inputs(fixed):
        dims = value.type.tensor_type.shape.dim
        if value.name in shapes:
            wanted = [int(d) for d in shapes[value.name]]
            if value.type.tensor_type.HasField("shape") and len(wanted) != len(dims):
                raise UsageError(f"input {value.name!r} has {len(dims)} dimensions in the model, but the shape given is {tuple(wanted)}")
            if any(d < 0 for d in wanted):
                raise UsageError(f"input {value.name!r}: no dimension may be negative, got {tuple(wanted)}")
            changed |= any(d.HasField("dim_value") and d.dim_value != w for d, w in zip(dims, wanted, strict=False))
            del dims[:]
            for d in wanted:
                dims.add().dim_value = d
        elif not value.type.HasField("tensor_type"):
            continue  # refused by name with the other types that no kernel carries
        elif not value.type.tensor_type.HasField("shape") or any(not d.HasField("dim_value") or d.dim_value < 0 for d in dims):
            shown = ", ".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in dims)
            raise UsageError(f"input {value.name!r} has the dynamic shape ({shown}); fix it with shapes={{{value.name!r}: (…)}} or --shape {value.name}=…")
    if changed:
        # Another static shape than the model's: shapes recorded for intermediate tensors are those of the old input; let inference find the new ones.
        del fixed.graph.value_info[:]
        for output in fixed.graph.output:
            for d in output.type.tensor_type.shape.dim:
                d.Clear()
    try:
        fixed = onnx.shape_inference.infer_shapes(fixed, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"shapes do not fit the graph: {str(error).strip()}") from error
    return fixed


def _to_relax(proto: onnx.ModelProto) -> tvm.IRModule:
    """Convert, check the types of all tensors against ONNX's, and fold what only Relax can.

    Raises
    ------
    ModelError
        If an operator cannot be imported, or became a tensor of another type.
    """
    _refuse_types(proto)
    try:
        mod, tensors = from_onnx(proto)
    except ModelError:
        raise
    except Exception as error:  # the importer raises by many types for one cause: a graph that it cannot express
        raise ModelError(f"TVM's ONNX importer rejected the graph: {type(error).__name__}: {_first_line(error)}") from error
    _check_types(proto, tensors)
    passes = [
        relax.transform.FoldBatchnormToConv2D(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(),
    ]
    try:
        return tvm.transform.Sequential(passes)(mod)
    except Exception as error:  # a pass evaluates operators on constants, and raises by many types
        raise ModelError(f"TVM cannot fold the graph's constants: {type(error).__name__}: {_first_line(error)}") from error


def _refuse_types(proto: onnx.ModelProto) -> None:
    """Refuse tensors of types that no kernel carries: text, sequences, and numbers of 16 bits and less that OpenCL does not have."""
    types = types_of(proto.graph)
    for value in _graph_inputs(proto):
        types[value.name] = value.type
        if not _is_carried(value.type):
            raise ModelError(f"the input {value.name!r} is {_type_name(value.type)}, which no kernel carries; convert it before the model")
    for tensor in proto.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for node in proto.graph.node:
        for name in (*node.input, *node.output):
            if name in types and not _is_carried(types[name]):
                where = f"{node.op_type} (node {node.name!r})" if node.name else node.op_type
                raise ModelError(
                    f"{where}: the tensor {name!r} is {_type_name(types[name])}, which no kernel carries; export the model with another type",
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
    """Refuse a graph of which a tensor has another shape or type in Relax than in ONNX: its numbers would be others, too."""
    declared = types_of(proto.graph)
    shapes = shapes_of(proto.graph)
    for node in proto.graph.node:
        for name in node.output:
            value = declared[name].tensor_type if name in declared and declared[name].HasField("tensor_type") else None
            if value is None or not value.elem_type or name not in tensors:
                continue
            found, wanted = tensors[name].ty, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.elem_type)).name
            if not isinstance(found, relax.TensorType):
                continue
            shape = tuple(int(d) for d in found.shape.values) if isinstance(found.shape, relax.ShapeExpr) and _is_static(found.shape) else None
            if str(found.dtype) != wanted or (name in shapes and shape != shapes[name]):
                where = f"{node.op_type} (node {node.name!r})" if node.name else node.op_type
                became = f"{found.dtype} of a shape computed at run time" if shape is None else f"{found.dtype}{list(shape)}"
                raise ModelError(
                    f"{where}: the output {name!r} was imported as {became}, but the model says {wanted}{list(shapes.get(name, ()))};"
                    " this is a limit of the importer",
                    operator=node.op_type,
                    node=node.name,
                )


def _is_static(shape: relax.ShapeExpr) -> bool:
    return all(isinstance(d, tvm.tirx.IntImm) for d in shape.values)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _inputs_of(proto: onnx.ModelProto) -> dict[str, tuple[tuple[int, ...], str]]:
    found = {}
    for value in _graph_inputs(proto):
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
        found[value.name] = (tuple(d.dim_value for d in tensor.shape.dim), dtype)
    return found
