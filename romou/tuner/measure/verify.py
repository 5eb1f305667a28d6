"""Input data, the reference result, and the comparison that every candidate must pass before it is timed."""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.errors import BuildError
from romou.base.files import regular, replacing

if TYPE_CHECKING:
    from tvm import tirx

    from romou.compiler.task import TunableTask

# Limits of the relative L2 error of the whole output. One wrong element of a large tensor does not reach them (1 in
# 10^6 adds 10^-3 at most if it has the usual size, and far less if it is small). So no element may be off by more than
# the second limit either, in units of |ref| + rms(ref). Factors rounded to TF32 are off by 2^-11 at most, by 2^-12.3 in
# the root mean square. Both together change a product by 2.8e-4, and in the L2 norm also a sum of products with random
# signs, of any length. Seven times this error is accepted. An error of 1% is not.
_L2_LIMITS = {"float16": 2e-2, "tf32": 2e-3, "float32": 1e-4, "float64": 1e-8}
# Range of |ref| with squares that neither vanish nor overflow in single precision.
_LEAST_NORM, _MOST_NORM = 1e-12, 1e18
_ELEMENT_LIMITS = {"float16": 1e-1, "tf32": 1e-2, "float32": 1e-3, "float64": 1e-7}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The difference between an output and its reference. `problem` is None if the output counts as right."""

    relative_l2_error: float | None
    max_error: float | None
    problem: str | None


def make_inputs(task: TunableTask, seed: int, *, is_positive: bool = False) -> list[np.ndarray]:
    """Return random values for every parameter of `task.func` except the last, always the same for a task and a seed.

    Floats are normal, scaled so that a sum over the reduction has about unit variance: a clipping epilogue (ReLU6) must
    not hide the result. For k multiplications per output both factors are scaled by k^-1/4, so the weight need not be
    identified. int32 and int64 may be indices and are 0 or 1. Narrower integers, and words of packed codes (uint32),
    have their whole range.
    """
    key = [seed, int(task.key, 16) & 0xFFFFFFFF]
    return task.template.with_zeros(random_inputs(task.func, task.flops, key, is_positive=is_positive))


def random_inputs(
    func: tirx.PrimFunc, flops: float, seed: Sequence[int], *, is_positive: bool = False
) -> list[np.ndarray]:
    """Return the values of `make_inputs` for an unscheduled function. flops: of its sum of products, or 0."""
    rng = np.random.default_rng(seed)
    *inputs, output = func.params
    depth = max(1.0, flops / (2.0 * math.prod(shape_of(output)) or 1.0))
    return [_random(rng, shape_of(p), str(p.dtype), scale=depth**-0.25, is_positive=is_positive) for p in inputs]


def output_spec(task: TunableTask) -> tuple[tuple[int, ...], str]:
    """Return (shape, dtype) of the output, the last parameter."""
    output = task.func.params[-1]
    return shape_of(output), str(output.dtype)


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the output's contents before the kernel runs: NaN, or an integer's largest value.

    An unwritten element is thus visible.
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.full(shape, np.nan, kind)
    return np.full(shape, True if kind.kind == "b" else np.iinfo(kind).max, kind)


def compare(output: np.ndarray, reference: np.ndarray, precision: str | None = None) -> Comparison:
    """Compare `output` with `reference` of the same shape and type. Integers must be equal.

    precision: the format that the kernel rounds its factors to ("tf32"). None for the output's type.
    """
    if output.dtype.kind != "f":
        wrong = int(np.count_nonzero(output != reference))
        return Comparison(
            None,
            None,
            (
                f"{wrong} of {output.size} elements differ, {_first(output, reference, output != reference)}"
                if wrong
                else None
            ),
        )
    bad = ~np.isfinite(output)
    if bad.any():
        what = "NaN, which is what unwritten elements hold" if np.isnan(output[bad]).all() else "not finite"
        return Comparison(
            None, None, f"{int(bad.sum())} of {output.size} elements are {what}; {_first(output, reference, bad)}"
        )
    name = precision or str(output.dtype)
    l2_limit, element_limit = _L2_LIMITS.get(name, 1e-4), _ELEMENT_LIMITS.get(name, 1e-3)
    # In fp32 a correct output of fp32 or fp16 is recognised several times faster. An output that seems wrong in fp32,
    # by overflow too, is judged in fp64.
    if output.dtype.itemsize <= np.dtype("float32").itemsize:
        l2, errors = _errors(output, reference, np.float32)
        worst = float(errors.max(initial=0.0))
        if l2 <= l2_limit and worst <= element_limit:
            return Comparison(l2, worst, None)
    l2, errors = _errors(output, reference, np.float64)
    worst = float(errors.max(initial=0.0))
    problems = []
    if l2 > l2_limit:
        problems.append(f"relative L2 error {l2:.2e} > {l2_limit:g}")
    if worst > element_limit:
        off = errors > element_limit
        problems.append(
            f"{int(off.sum())} of {output.size} elements are off by more than {element_limit:g} of |ref| + rms;"
            f" {_first(output, reference, off)}"
        )
    return Comparison(l2, worst, "; ".join(problems) or None)


def _errors(output: np.ndarray, reference: np.ndarray, precision: type[np.floating[Any]]) -> tuple[float, np.ndarray]:
    """Return (|out - ref| / |ref|, |out - ref| / (|ref| + rms(ref)) of every element), computed in `precision`.

    The first is infinite if squares of the reference overflow in `precision`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        out, ref = output.astype(precision, copy=False), reference.astype(precision, copy=False)
        difference = np.abs(out - ref)
        norm = float(np.linalg.norm(ref))
        rms = norm / math.sqrt(max(1, ref.size))
        # A reference of zeros (everything clipped) leaves only the absolute difference.
        l2 = float(np.linalg.norm(difference)) / (norm or 1.0)
        is_summed = precision is np.float64 or _LEAST_NORM < norm < _MOST_NORM
        return l2 if is_summed else math.inf, difference / (np.abs(ref) + precision(rms or 1.0))


def reference_path(folder: Path, task: TunableTask, seed: int) -> Path:
    """Return the file of a task's inputs and reference output."""
    return folder / f"{task.key}-{seed}.npz"


def save_reference(path: Path, inputs: Sequence[np.ndarray], output: np.ndarray) -> None:
    """Write inputs and output so that a reader sees all or nothing.

    Results for other seeds of the same task are removed.
    """
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.npz"):
        old.unlink(missing_ok=True)
    arrays: dict[str, Any] = {f"input{i}": array for i, array in enumerate(inputs)}
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, output=output, **arrays)


def load_reference(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Return (inputs, output) as saved. OSError or ValueError if there is no file or it cannot be read."""
    try:
        with open(path, "rb", opener=regular) as file, np.load(file) as data:
            return [data[f"input{i}"] for i in range(len(data.files) - 1)], data["output"]
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path} is not a saved reference: {error}") from error


def finite_or_raise(task: TunableTask, output: np.ndarray) -> None:
    """Raise BuildError if the reference has no finite values."""
    if output.dtype.kind == "f" and not np.isfinite(output).all():
        raise BuildError(
            f"{task.name}: the reference result is not finite for random inputs, no candidate could be checked",
            task=task.name,
        )


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, scale: float, is_positive: bool
) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        # Square roots and logarithms (an unfolded batch norm) have no value for negative inputs.
        return np.asarray(np.abs(values) + np.float32(0.1) if is_positive else values, dtype=kind)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    # Wide integers may be indices. Words of packed codes are not, and every bit of them counts.
    if kind.itemsize >= 4 and kind != np.uint32:
        return rng.integers(0, 2, shape, dtype=kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def _first(output: np.ndarray, reference: np.ndarray, mask: np.ndarray) -> str:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
    return f"the first at {list(index)}: {output[index]} instead of {reference[index]}"


def shape_of(parameter: Any) -> tuple[int, ...]:
    """Return the extents of a tensor of fixed shape."""
    return tuple(int(extent) for extent in parameter.shape)
