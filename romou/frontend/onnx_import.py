"""An ONNX model becomes a Relax module with static shapes, folded constants and no batch norm.

The order matters: shapes are fixed first, so that onnxslim can fold the shape arithmetic that depends on them;
what is left of batch norm after that is folded in Relax.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import tvm
from tvm import relax

from romou.core.errors import ModelError, UsageError, as_build_error
from romou.frontend.sizes import check_sizes
from romou.tvm_patches.onnx_converters import patched_converters

logger = logging.getLogger("romou")

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
    proto = _load(model)
    proto = _fix_shapes(proto, _checked_shapes(shapes or {}))
    check_sizes(proto)
    slim = _fold(proto)
    mod = _to_relax(slim)
    return ImportedModel(mod=mod, onnx_model=proto, inputs=_inputs_of(proto), outputs=tuple(o.name for o in proto.graph.output))


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
            if any(d <= 0 for d in wanted):
                raise UsageError(f"input {value.name!r}: every dimension must be positive, got {tuple(wanted)}")
            changed |= wanted != [d.dim_value for d in dims]
            del dims[:]
            for d in wanted:
                dims.add().dim_value = d
        elif not value.type.tensor_type.HasField("shape") or any(d.dim_value <= 0 for d in dims):
            shown = ", ".join(d.dim_param or (str(d.dim_value) if d.dim_value > 0 else "?") for d in dims)
            raise UsageError(f"input {value.name!r} has the dynamic shape ({shown}); fix it with shapes={{{value.name!r}: (…)}} or --shape {value.name}=…")
    if changed:
        # Shapes recorded for intermediate tensors are those of the old input; let inference find the new ones.
        del fixed.graph.value_info[:]
        for output in fixed.graph.output:
            for d in output.type.tensor_type.shape.dim:
                d.Clear()
    try:
        fixed = onnx.shape_inference.infer_shapes(fixed, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"shapes do not fit the graph: {str(error).strip()}") from error
    return fixed


def _fold(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Fold constants and shape arithmetic with onnxslim; the graph's meaning stays the same."""
    import onnxslim  # imported here: it takes a second

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    try:
        slim: onnx.ModelProto = onnxslim.slim(copy)
    except Exception as error:  # an optimiser's failure must not stop a model that imports without it
        logger.warning("onnxslim failed (%s: %s); importing the graph as it is", type(error).__name__, error)
        return proto
    if [o.name for o in slim.graph.output] != [o.name for o in proto.graph.output] or [i.name for i in _graph_inputs(slim)] != [
        i.name for i in _graph_inputs(proto)
    ]:
        logger.warning("onnxslim changed the model's inputs or outputs; importing the graph as it is")
        return proto
    return slim


def _to_relax(proto: onnx.ModelProto) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    try:
        # On a failure the importer prints to stdout, where a caller may have its own output.
        with patched_converters(), contextlib.redirect_stdout(io.StringIO()):
            mod = from_onnx(proto, keep_params_in_input=False)
    except tvm.error.OpNotImplemented as error:
        raise ModelError(f"the model uses ONNX operators that TVM cannot import: {_first_line(error)}; replace them, or export with another opset") from error
    except Exception as error:  # the importer raises by many types for one cause: a graph that it cannot express
        raise ModelError(f"TVM's ONNX importer rejected the graph: {type(error).__name__}: {_first_line(error)}") from error
    passes = [
        relax.transform.FoldBatchnormToConv2D(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(),
    ]
    with as_build_error("the model's graph"):
        return tvm.transform.Sequential(passes)(mod)


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
