"""Inputs of a model: checked against its signature, or random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from romou.base.errors import UsageError


def checked_inputs(
    inputs: Mapping[str, np.ndarray], signature: Mapping[str, tuple[tuple[int, ...], str]]
) -> list[np.ndarray]:
    """Return the arrays in the order of `signature`, which maps names to (shape, numpy dtype name).

    Raises UsageError for an array that does not fit.
    """
    if not isinstance(inputs, Mapping):
        raise UsageError(f"inputs are given by name, as {{name: array}}; got {type(inputs).__name__}")
    for name in inputs:
        if name not in signature:
            raise UsageError(f"the model has no input {name!r}; its inputs are {', '.join(signature)}")
    arrays = []
    for name, (shape, dtype) in signature.items():
        if name not in inputs:
            raise UsageError(f"input {name!r} ({dtype} {shape}) is missing; given: {', '.join(inputs) or 'none'}")
        array = converted(f"input {name!r}", inputs[name], dtype)
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise UsageError(
                f"input {name!r} is {array.dtype} {array.shape}; the model was compiled for {dtype} {shape}"
            )
        arrays.append(array)
    return arrays


def signature_text(signature: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return names, types and shapes: "x float32 [1, 3], y int64 [1]"."""
    return ", ".join(f"{name} {dtype} {list(shape)}" for name, (shape, dtype) in signature.items())


def converted(what: str, value: object, dtype: str) -> np.ndarray:
    """Return a value as an array, in the type `dtype` if no number changes but by rounding.

    Floats become floats of another size, and integers another integer type if all of them fit. Numbers in lists have no
    type of their own, so whole ones become floats, too.

    Raises
    ------
    UsageError
        The value is no array.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is no array: {error}") from error
    wanted = np.dtype(dtype)
    is_list = not hasattr(value, "dtype") and array.dtype.kind in "iuf"
    if wanted.kind == "f" and (array.dtype.kind == "f" or is_list):
        return array.astype(wanted)
    if array.dtype.kind in "iu" and wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
            return array.astype(wanted)
    return array


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Numbers that an input may have: from `low` to `high`, both included, whole or any."""

    low: float
    high: float
    is_whole: bool = True


def random_inputs(
    signature: Mapping[str, tuple[tuple[int, ...], str]], seed: int, draws: Mapping[str, Draw] | None = None
) -> dict[str, np.ndarray]:
    """Return random arrays: standard normal floats, and 0 or 1 for integers and booleans.

    Both token ids and masks accept 0 and 1.

    draws: name -> numbers of an input that accepts only these, found by `romou.compiler.frontend.draws_of`.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in signature.items():
        draw = (draws or {}).get(name)
        if draw is not None and draw.is_whole:
            arrays[name] = rng.integers(int(draw.low), int(draw.high), shape, endpoint=True).astype(dtype)
        elif draw is not None:
            arrays[name] = rng.uniform(draw.low, draw.high, shape).astype(dtype)
        elif np.issubdtype(np.dtype(dtype), np.floating):
            arrays[name] = rng.standard_normal(shape).astype(dtype)
        else:
            arrays[name] = rng.integers(0, 2, shape).astype(dtype)
    return arrays
