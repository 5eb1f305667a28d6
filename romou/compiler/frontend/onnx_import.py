"""Check the types of an ONNX model's inputs, and fix their shapes."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence

import onnx

from romou.base.errors import ModelError, UsageError
from romou.base.open_dimensions import check_closed, contradiction
from romou.compiler.frontend.explicit_windows import explicit_windows
from romou.compiler.frontend.host_groups import CARRIED
from romou.compiler.frontend.infer import infer, keep_own_outputs, without_outputs
from romou.compiler.frontend.onnx_file import graph_inputs

_LARGEST = 2**31 - 1
_WITHOUT_ZIPMAP = "Export the classifier without ZipMap: skl2onnx.to_onnx(model, x, options={'zipmap': False})."


def check_types(proto: onnx.ModelProto) -> None:
    """Raise ModelError for a graph input or output that no device tensor can hold."""
    for what, values in (("input", graph_inputs(proto)), ("output", proto.graph.output)):
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


def checked_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
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
    shapes = checked_shapes(shapes)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    names = [i.name for i in graph_inputs(fixed)]
    for name in shapes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(
                f"shape given for {name!r}, but the model's inputs are {', '.join(names)}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    check_closed(fixed, shapes)
    changed = False
    for value in graph_inputs(fixed):
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
        for value in graph_inputs(proto)
        if value.name in shapes
        for extent, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=False)
        if extent.dim_param
    }
