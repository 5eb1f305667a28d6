"""The errors for dimensions that a model leaves open, or whose sizes contradict one another.

They read the file only, so that they come at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from romou.base.errors import UsageError
from romou.base.pages import page_of

if TYPE_CHECKING:
    import onnx

# Sizes for a line to paste: of the first axis, of an image's sides, of any other axis.
_FIRST, _SIDE, _LENGTH = 1, 224, 128
_IMAGE_AXES = 4
# Elements of a weight that may be a shape or axes, which inference reads
_MOST_ELEMENTS = 64
# Sizes that relations are sought with: no sum of two of them is one of them, and none is broadcast.
_PRIMES = (89, 97, 101, 103, 107, 109, 113, 127)


def check_closed(model: onnx.ModelProto, given: Collection[str], dims: Collection[str] = ()) -> None:
    """Check that no input has an open dimension, except the inputs in `given`, and named dimensions in `dims`.

    Raises
    ------
    UsageError
        An input is open. The hint has options to paste, with examples of sizes for all inputs.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in (*weights, *given)]
    is_open = [value for value in inputs if _open_axes(value, dims)]
    for value in is_open[:1]:
        name = value.name
        shape = f"the dynamic shape ({_shown(value)})" if _has_shape(value) else "no shape in the model"
        raise UsageError(f"input {name!r} has {shape}; fix it", hint=_hint(model, is_open, dims), name=name)


def terms_of(name: str, dims: Collection[str] = ()) -> tuple[str, ...]:
    """Return the terms of the sum that exporters name a dimension by, as `past + seq` and `past + 1`.

    dims: names with sizes of their own. A name among them is no sum.
    """
    return (name,) if name in dims else tuple(term.strip() for term in name.split("+"))


def contradiction(model: onnx.ModelProto, sizes: Mapping[str, int]) -> UsageError | None:
    """Return the error for sizes of named dimensions that contradict one another. None if none is seen.

    A relation is seen if shapes can be inferred only with it: total = past + seq.
    """
    found = _relation(model, sizes)
    if found is None or sizes[found[0]] == sum(sizes[term] for term in found[1]):
        return None
    name, terms = found
    text, size = " + ".join(terms), sum(sizes[term] for term in terms)
    given = ", ".join(f"{each}={sizes[each]}" for each in (name, *terms))
    return UsageError(
        f"{given}: in this model {name} is {text}, so {size}",
        hint=f"Give {name}={size}. None of them is free at run time: give a list of shapes ({page_of('shapes')}).",
        relation=f"{name} = {text}",
    )


def _relation(model: onnx.ModelProto, names: Collection[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return a dimension, and those that it is the sum of, if shapes can be inferred only so."""
    if not 2 <= len(names) <= len(_PRIMES):
        return None
    skeleton, primes = _skeleton(model), dict(zip(names, _PRIMES, strict=False))
    if _is_inferred(skeleton, primes):
        return None
    return next((each for each in _relations(names) if _is_inferred(skeleton, _with_relation(primes, *each))), None)


def _relations(names: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for count in (1, 2):
        for name in names:
            others = [other for other in names if other != name]
            yield from ((name, terms) for terms in itertools.combinations(others, count))


def _with_relation(sizes: Mapping[str, int], name: str, terms: Collection[str]) -> dict[str, int]:
    return {**sizes, name: sum(sizes[term] for term in terms)}


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the values of large weights and without recorded shapes."""
    import onnx

    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    known = {value.name for value in graph.input}
    for weight in model.graph.initializer:
        if math.prod(weight.dims) <= _MOST_ELEMENTS and not weight.external_data:
            graph.initializer.append(weight)
        elif weight.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    for output in model.graph.output:
        graph.output.append(onnx.helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, None))
    return skeleton


def _is_inferred(skeleton: onnx.ModelProto, sizes: Mapping[str, int]) -> bool:
    """Return whether shapes can be inferred with sizes of named dimensions."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(skeleton)
    for value in fixed.graph.input:
        for extent in value.type.tensor_type.shape.dim:
            if extent.dim_param in sizes:
                extent.dim_value = sizes[extent.dim_param]
    try:
        onnx.shape_inference.infer_shapes(fixed, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def _has_shape(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.HasField("shape"))


def _open_axes(value: onnx.ValueInfoProto, dims: Collection[str]) -> list[int]:
    """Return the axes without a size. [-1] if the number of axes is open, too."""
    if value.type.WhichOneof("value") != "tensor_type":
        return []
    if not _has_shape(value):
        return [-1]
    extents = value.type.tensor_type.shape.dim
    return [
        axis
        for axis, d in enumerate(extents)
        if (not d.HasField("dim_value") or d.dim_value < 0)
        and not all(term in dims or term.isdecimal() for term in terms_of(d.dim_param, dims))
    ]


def _shown(value: onnx.ValueInfoProto) -> str:
    return ", ".join(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else "?")
        for d in value.type.tensor_type.shape.dim
    )


def _hint(model: onnx.ModelProto, inputs: Iterable[onnx.ValueInfoProto], dims: Collection[str]) -> str:
    """Return options for the command line and for Python, by dimensions if all have names, else by shapes."""
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for value in inputs:
        extents = value.type.tensor_type.shape.dim
        open_axes = _open_axes(value, dims)
        if all(axis >= 0 and extents[axis].dim_param for axis in open_axes):
            terms = {term: axis for axis in open_axes for term in terms_of(extents[axis].dim_param)}
            wanted = {term: axis for term, axis in terms.items() if term not in dims and not term.isdecimal()}
            sizes |= {term: _size(axis, len(extents)) for term, axis in wanted.items()}
        elif open_axes == [-1]:
            shapes[value.name] = (_FIRST, 3, _SIDE, _SIDE)
        else:
            rank = len(extents)
            shapes[value.name] = tuple(
                _size(axis, rank) if axis in open_axes or extents[axis].dim_param else extents[axis].dim_value
                for axis in range(rank)
            )
    relation = _relation(model, sizes) if not shapes else None
    sizes = sizes if relation is None else _with_relation(sizes, *relation)
    ends = "" if relation is None else f" In this model {relation[0]} is {' + '.join(relation[1])}."
    words = [f"--dim {name}={size}" for name, size in sizes.items()]
    words += [f"--shape {name}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    python = [f"dims={sizes}"] if sizes else []
    python += [f"shapes={shapes}"] if shapes else []
    return f"Add {' '.join(words)} (in Python: {', '.join(python)}).{ends} Sizes are examples: {page_of('shapes')}."


def _size(axis: int, rank: int) -> int:
    if axis == 0:
        return _FIRST
    return _SIDE if rank == _IMAGE_AXES and axis > 1 else _LENGTH
