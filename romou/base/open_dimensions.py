"""The error for dimensions that a model leaves open. It reads the file only, so that it comes at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from romou.base.errors import UsageError

if TYPE_CHECKING:
    import onnx

# Sizes for a line to paste: of the first axis, of an image's sides, of any other axis.
_FIRST, _SIDE, _LENGTH = 1, 224, 128
_IMAGE_AXES = 4


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
        raise UsageError(f"input {name!r} has {shape}; fix it", hint=_hint(is_open, dims), name=name)


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
        if (not d.HasField("dim_value") or d.dim_value < 0) and d.dim_param not in dims
    ]


def _shown(value: onnx.ValueInfoProto) -> str:
    return ", ".join(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else "?")
        for d in value.type.tensor_type.shape.dim
    )


def _hint(inputs: Iterable[onnx.ValueInfoProto], dims: Collection[str]) -> str:
    """Return options for the command line and for Python, by dimensions if all have names, else by shapes."""
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for value in inputs:
        extents = value.type.tensor_type.shape.dim
        open_axes = _open_axes(value, dims)
        if all(axis >= 0 and extents[axis].dim_param for axis in open_axes):
            sizes |= {extents[axis].dim_param: _size(axis, len(extents)) for axis in open_axes}
        elif open_axes == [-1]:
            shapes[value.name] = (_FIRST, 3, _SIDE, _SIDE)
        else:
            rank = len(extents)
            shapes[value.name] = tuple(
                _size(axis, rank) if axis in open_axes or extents[axis].dim_param else extents[axis].dim_value
                for axis in range(rank)
            )
    words = [f"--dim {name}={size}" for name, size in sizes.items()]
    words += [f"--shape {name}={','.join(map(str, shape))}" for name, shape in shapes.items()]
    python = [f"dims={sizes}"] if sizes else []
    python += [f"shapes={shapes}"] if shapes else []
    return f"Add {' '.join(words)} (in Python: {', '.join(python)}). The sizes are examples: docs/shapes.md."


def _size(axis: int, rank: int) -> int:
    if axis == 0:
        return _FIRST
    return _SIDE if rank == _IMAGE_AXES and axis > 1 else _LENGTH
