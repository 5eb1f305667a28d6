"""Turn inputs fixed at compile time into constants, so that conditions and counts that depend on them fold.

sr: int64[] -> Equal(sr, 16000) -> If(...)      ->      the branch of 16000 Hz
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from romou.base.errors import UsageError, nearest_name
from romou.compiler.frontend.onnx_file import load_onnx

# Since this IR version, weights need not be listed as inputs.
_LISTS_NO_WEIGHTS = 4


def with_constants(
    model: onnx.ModelProto | str | Path, constants: Mapping[str, object] | None
) -> onnx.ModelProto | str | Path:
    """Return the model with `constants` as weights instead of inputs, or `model` itself if there are none.

    Raises
    ------
    ModelError
        If the model is missing or broken.
    UsageError
        If a name is no input, or a value does not have the input's type and shape.
    """
    if constants is None or (isinstance(constants, Mapping) and not constants):
        return model
    if not isinstance(constants, Mapping):
        raise UsageError(f"constants={constants!r}: expected {{name: value}}, for example {{'sr': 16000}}")
    fixed = onnx.ModelProto()
    fixed.CopyFrom(load_onnx(model))
    graph = fixed.graph
    inputs = {value.name: value for value in graph.input}
    for name, value in constants.items():
        if name not in inputs:
            near = nearest_name(str(name), inputs)
            hint = f"Did you mean {near!r}?" if near else None
            raise UsageError(
                f"a constant is given for {name!r}, but the model's inputs are {', '.join(inputs)}",
                hint=hint,
                name=name,
            )
        kept = [tensor for tensor in graph.initializer if tensor.name != name]
        array = _array_of(inputs[name], value)
        del graph.initializer[:]
        graph.initializer.extend([*kept, numpy_helper.from_array(array, name)])
    if fixed.ir_version >= _LISTS_NO_WEIGHTS:
        rest = [value for value in graph.input if value.name not in constants]
        del graph.input[:]
        graph.input.extend(rest)
    return fixed


def _array_of(declared: onnx.ValueInfoProto, value: object) -> np.ndarray:
    """Return the value in the input's type. Raise UsageError if that changes the value, or if its shape is wrong."""
    tensor = declared.type.tensor_type
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    dims = (
        [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        if tensor.HasField("shape")
        else None
    )
    shown = (
        f"{wanted.name}{['?' if d is None else d for d in dims]}".replace("'", "") if dims is not None else wanted.name
    )
    try:
        raw = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the constant for {declared.name!r} is no array of numbers: {error}", name=declared.name
        ) from error
    if raw.dtype.kind not in "biuf":
        raise UsageError(
            f"the constant for {declared.name!r} is {value!r}; the model's input takes {shown}", name=declared.name
        )
    if not raw.ndim and dims is not None and all(d in (1, None) for d in dims):
        raw = raw.reshape([1] * len(dims))
    if dims is not None and (
        raw.ndim != len(dims) or any(d not in (None, n) for d, n in zip(dims, raw.shape, strict=True))
    ):
        raise UsageError(
            f"the constant for {declared.name!r} has the shape {raw.shape}; the model's input takes {shown}",
            name=declared.name,
        )
    array = raw.astype(wanted)
    # Integers may be given for floats. No other kind changes, and no value changes except by rounding of floats.
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}.get(wanted.kind, "f")
    if raw.dtype.kind not in kinds or (
        wanted.kind in "iu" and not np.array_equal(array.astype(object), raw.astype(object))
    ):
        text = f"the constant for {declared.name!r} is {value!r} ({raw.dtype.name}); the model's input takes {shown}"
        raise UsageError(text, name=declared.name)
    return array
