"""Import an ONNX model as a Relax module with static shapes, folded constants and no batch norm.

Shapes are fixed first, so that onnxslim can fold the shape arithmetic that depends on them. Relax folds the batch norms
that remain. Nodes in `host_table.py` run on the host, and so do nodes that cannot be imported. The latter are searched
for only after the import of the whole model has failed, so other models pay nothing.
"""

from __future__ import annotations

import difflib
import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import tvm

from romou import models
from romou.base.errors import ModelError, UsageError
from romou.base.open_dimensions import check_closed, contradiction
from romou.compiler.frontend.axes import with_vectors_of_axes
from romou.compiler.frontend.control_flow import unroll
from romou.compiler.frontend.damage import check_weights
from romou.compiler.frontend.declared import Settled, settle_declared
from romou.compiler.frontend.dequantized import with_integer_products, with_quantized_constants
from romou.compiler.frontend.expand import expand_functions, inline_functions
from romou.compiler.frontend.explicit_windows import explicit_windows
from romou.compiler.frontend.float_weights import float_weights
from romou.compiler.frontend.fold import fold
from romou.compiler.frontend.fp16 import Fp16Plan, to_fp16, with_fp16_borders, without_batch_norms
from romou.compiler.frontend.host_groups import CARRIED, SHORT
from romou.compiler.frontend.host_table import unserved
from romou.compiler.frontend.imported import ImportedModel, imported_with
from romou.compiler.frontend.infer import infer, is_open, keep_own_outputs, without_outputs
from romou.compiler.frontend.merged_products import merge_products
from romou.compiler.frontend.microsoft import with_microsoft_domain
from romou.compiler.frontend.onnx_graph import Graph, attributes_of, check, rule, type_name
from romou.compiler.frontend.precision import AS_GIVEN, FP16, Precision, fp32_nodes
from romou.compiler.frontend.qlinear import with_standard_operators
from romou.compiler.frontend.quantized import (
    check_products,
    with_packed_weights,
    with_packed_weights_of_few_rows,
)
from romou.compiler.frontend.scaled_sums import scale_factors
from romou.compiler.frontend.scikit_learn import with_standard_definitions
from romou.compiler.frontend.sizes import check_ranges, check_sizes
from romou.compiler.frontend.to_host import with_more_on_host
from romou.compiler.frontend.to_relax import to_relax
from romou.compiler.frontend.wide_nodes import widened

_LARGEST = 2**31 - 1
# Depth of nested loops.
_MAX_NESTING = 4

logger = logging.getLogger("romou")


def import_onnx(
    model: onnx.ModelProto | str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    precision: Precision | None = None,
) -> ImportedModel:
    """Read, check and import an ONNX model.

    model: path of an ONNX file, or a loaded model.
    shapes: shape by input name, for inputs whose shape the model leaves open (or to override it).
    precision: precision to compute with. None: the precision of the model.

    Raises
    ------
    ModelError
        The file is missing or broken, or holds an operator that TVM's importer lacks.
    UsageError
        An input stays dynamic, or `shapes` names an unknown input or has another rank.
    """
    proto = inline_functions(load_onnx(model))
    _check_types(proto)
    check_ranges(proto)
    proto = fix_shapes(proto, _checked_shapes(shapes or {}))
    check_products(proto)
    check_sizes(proto)
    asked = precision or Precision()
    if asked.io == FP16:
        proto = with_fp16_borders(proto)
    packed = with_packed_weights(with_quantized_constants(with_standard_operators(with_standard_definitions(proto))))
    # fp16 has no sums of that size.
    products = with_integer_products(packed) if asked.kind == AS_GIVEN else packed
    products = with_packed_weights_of_few_rows(products)
    simple, settled = simplify(products)
    folded, unconverted, inputs = without_batch_norms(without_constants(simple)), None, _inputs_of(proto)
    folded = scale_factors(
        widened(folded), onnx.TensorProto.FLOAT16 if asked.kind == AS_GIVEN else onnx.TensorProto.FLOAT
    )
    folded = merge_products(folded)
    if asked.kind != AS_GIVEN:
        unconverted = folded
        asked = replace(asked, kept=fp32_nodes(unconverted, asked, inputs))
        folded = to_fp16(Fp16Plan(unconverted, asked.kept))
    on_host = frozenset(unserved(folded))
    outputs = tuple(o.name for o in proto.graph.output)
    imported = ImportedModel(
        mod=tvm.IRModule(),
        onnx_model=proto,
        inputs=inputs,
        outputs=outputs,
        folded=folded,
        on_host=on_host,
        precision=asked,
        unconverted=unconverted,
        settled=settled,
        short_outputs=_short_outputs(proto),
        float_weights=float_weights(products, folded, asked),
    )
    try:
        return imported_with(imported, on_host)
    except ModelError as error:
        return with_more_on_host(imported, error)


def import_alone(model: onnx.ModelProto) -> ImportedModel:
    """Import a model that was split off another one, without changes."""
    return ImportedModel(
        mod=to_relax(model),
        onnx_model=model,
        inputs=_inputs_of(model),
        outputs=tuple(o.name for o in model.graph.output),
        folded=model,
    )


_WITHOUT_ZIPMAP = "Export the classifier without ZipMap: skl2onnx.to_onnx(model, x, options={'zipmap': False})."


def _check_types(proto: onnx.ModelProto) -> None:
    """Raise ModelError for a graph input or output that no device tensor can hold."""
    for what, values in (("input", _graph_inputs(proto)), ("output", proto.graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                zipped = any(node.op_type == "ZipMap" and value.name in node.output for node in proto.graph.node)
                raise ModelError(
                    f"{what} {value.name!r} is of {str(kind).removesuffix('_type')} type; only tensors can enter and"
                    " leave a compiled model",
                    hint=_WITHOUT_ZIPMAP if zipped else None,
                )
            if value.type.tensor_type.elem_type not in CARRIED:
                kind = value.type.tensor_type.elem_type
                name = (
                    onnx.TensorProto.DataType.Name(kind).lower()
                    if kind in onnx.TensorProto.DataType.values()
                    else f"the unknown type {kind}"
                )
                raise ModelError(
                    f"{what} {value.name!r} is a tensor of {name}, which no device tensor holds; cast it inside the"
                    " model"
                )


# Attribute of a Constant -> type of its value.
_PLAIN_VALUES = {"value_int": "int64", "value_ints": "int64", "value_float": "float32", "value_floats": "float32"}


@rule("Constant")
def without_constants(node: onnx.NodeProto, graph: Graph) -> None:
    """Make initializers of the values of Constant nodes, if they are plain tensors of numbers."""
    given = attributes_of(node)
    kind = next((kind for kind in ("value", *_PLAIN_VALUES) if kind in given), None)
    if kind is not None and node.output[0] not in graph.returned:
        value = given[kind]
        graph.replace(node)
        graph.define(node.output[0], value if kind == "value" else np.array(value, _PLAIN_VALUES[kind]))


def simplify(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Settled, ...]]:
    """Return the graph to import, and inputs that it no longer reads.

    Inputs that shapes determine become constants, functions without a converter are replaced by their bodies, and
    constants are folded.
    """
    promised = _with_own_outputs(proto)
    settled = settle_declared(promised)
    folded = fold(expand_functions(promised))
    if settled:
        names = ", ".join(dict.fromkeys(entry.name for entry in settled))
        logger.warning("the shapes that the model declares decide %s: a run with another value is refused", names)
    for _ in range(_MAX_NESTING):
        unrolled = unroll(folded)
        if unrolled is None:
            break
        folded = fold(expand_functions(unrolled))
    return folded, tuple(settled)


def _with_own_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with computed instead of declared shapes of outputs, if folding finds them."""
    promised = onnx.ModelProto()
    promised.CopyFrom(proto)
    bare = infer(without_outputs(proto))
    if any(is_open(output) for output in bare.graph.output):
        keep_own_outputs(promised, fold(expand_functions(bare)))
    return promised


def load_onnx(model: onnx.ModelProto | str | Path) -> onnx.ModelProto:
    """Read and check a model. Raise ModelError if it is not valid."""
    if not isinstance(model, onnx.ModelProto | str | Path):
        raise UsageError(f"a model is the path of an ONNX file, or an onnx.ModelProto; got {type(model).__name__}")
    where = "the model" if isinstance(model, onnx.ModelProto) else str(model)
    model = models.bundled(model) or model
    if not isinstance(model, onnx.ModelProto):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"{path}: no such file; give the path of an ONNX model", hint=models.hint(str(path)))
        try:
            model = onnx.load(path)
        except Exception as error:  # protobuf and missing external data raise many types
            raise ModelError(
                f"{path}: not a readable ONNX file ({type(error).__name__}: {error}); export the model again"
            ) from error
    try:
        model = with_microsoft_domain(model)
        check(model)
        model = with_vectors_of_axes(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{where}: not a valid ONNX model: {str(error).strip()}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: a name in the model is not UTF-8 ({error}); export the model again") from error
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output, *graph.initializer)] + [
        n for node in graph.node for n in (*node.input, *node.output)
    ]
    # protobuf returns text that is not UTF-8 as bytes.
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{where}: the name {name!r} in the model is not UTF-8; export the model again")
    check_weights(model, where)
    if not model.graph.node:
        raise ModelError(f"{where}: the graph has no nodes; nothing to compile")
    return model


def _graph_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {t.name for t in proto.graph.initializer}
    return [i for i in proto.graph.input if i.name not in weights]


def _checked_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Return whole numbers by name. Raise UsageError for anything else.

    Numbers that NumPy treats as integers are accepted, 8.5 is not.
    """
    if not isinstance(shapes, Mapping):
        raise UsageError(f"shapes={shapes!r}: expected {{name: sizes}}, for example {{'input': (1, 3, 224, 224)}}")
    checked: dict[str, Sequence[int]] = {}
    for name, sizes in shapes.items():
        try:
            checked[name] = [operator.index(size) for size in sizes]
        except TypeError as error:
            raise UsageError(
                f"shapes: {name!r} is {sizes!r}; expected whole numbers, for example (1, 3, 224, 224)"
            ) from error
        if any(size > _LARGEST for size in checked[name]):
            raise UsageError(f"shapes: {name!r} is {tuple(checked[name])}; no dimension can be larger than {_LARGEST}")
    return checked


def fix_shapes(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Write `shapes` into the graph's inputs. Raise UsageError for an input that stays dynamic."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    names = [i.name for i in _graph_inputs(fixed)]
    for name in shapes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"shape given for {name!r}, but the model's inputs are {', '.join(names)}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    check_closed(fixed, shapes)
    changed = False
    for value in _graph_inputs(fixed):
        dims = value.type.tensor_type.shape.dim
        if value.name in shapes:
            wanted = [int(d) for d in shapes[value.name]]
            if value.type.tensor_type.HasField("shape") and len(wanted) != len(dims):
                raise UsageError(
                    f"input {value.name!r} has {len(dims)} dimensions in the model, but the shape given is"
                    f" {tuple(wanted)}"
                )
            if any(d < 0 for d in wanted):
                raise UsageError(f"input {value.name!r}: no dimension may be negative, got {tuple(wanted)}")
            changed |= any(d.HasField("dim_value") and d.dim_value != w for d, w in zip(dims, wanted, strict=False))
            del dims[:]
            for d in wanted:
                dims.add().dim_value = d
    if changed:
        # Shapes recorded for intermediate tensors belong to the old input shapes. Inference finds the new ones.
        del fixed.graph.value_info[:]
        for output in fixed.graph.output:
            for d in output.type.tensor_type.shape.dim:
                d.Clear()
    for node in fixed.graph.node:
        if node.op_type == "MeanVarianceNormalization" and not node.attribute:
            # Inference of the body fails without the attribute, so write its default.
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))
    fixed = explicit_windows(fixed)
    try:
        keep_own_outputs(fixed, infer(without_outputs(fixed), is_strict=True))
        return infer(fixed, is_strict=True)
    except ModelError as error:
        raise contradiction(proto, _named_sizes(proto, shapes)) or error from None


def _named_sizes(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes that shapes of inputs give to named dimensions."""
    return {
        extent.dim_param: int(size)
        for value in _graph_inputs(proto)
        if value.name in shapes
        for extent, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=False)
        if extent.dim_param
    }


def _short_outputs(proto: onnx.ModelProto) -> dict[str, str]:
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
    return {name: type_name(kind) for name, kind in kinds.items() if kind in SHORT}


def _inputs_of(proto: onnx.ModelProto) -> dict[str, tuple[tuple[int, ...], str]]:
    signature = {}
    for value in _graph_inputs(proto):
        tensor = value.type.tensor_type
        dtype = type_name(tensor.elem_type)
        signature[value.name] = (tuple(d.dim_value for d in tensor.shape.dim), dtype)
    return signature
