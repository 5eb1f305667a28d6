"""Input data, the reference result, and the comparison that every candidate must pass before it is timed."""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.errors import BuildError
from romou.base.files import regular

if TYPE_CHECKING:
    from romou.compiler.task import TunableTask

# Relative L2 error of the whole output. One wrong element of a large tensor does not reach it (1 in 10^6 gives 10^-3 at
# most where the element is of usual size, and far less where it is small), so that no element may be off by more than
# the second limit either, in units of |ref| + rms(ref).
#
# Factors that are rounded to TF32 are off by 2^-11 at most, by 2^-12.3 in the root mean square; both together by 2.8e-4
# of a product, and so is the sum of products whose signs are random, in the L2 norm and however long it is. Seven times
# that is accepted: a share of 1% is not.
_L2_LIMITS = {"float16": 2e-2, "tf32": 2e-3, "float32": 1e-4, "float64": 1e-8}
# |ref| whose squares neither vanish nor overflow in single precision.
_LEAST_NORM, _MOST_NORM = 1e-12, 1e18
_ELEMENT_LIMITS = {"float16": 1e-1, "tf32": 1e-2, "float32": 1e-3, "float64": 1e-7}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How far an output is from its reference; `problem` is None where it counts as right."""

    relative_l2_error: float | None
    max_error: float | None
    problem: str | None


def make_inputs(task: TunableTask, seed: int, *, is_positive: bool = False) -> list[np.ndarray]:
    """Random values for every parameter of `task.func` but the last, the same for the same task and seed.

    Floats are normal, scaled so that a sum over the reduction has about unit variance: an epilogue that clips (ReLU6)
    must not hide the result. For k multiplications per output both factors are scaled by k^-1/4, which needs no
    knowledge of which input is the weight. int32 and int64 may be indices and are 0 or 1; narrower integers take their
    whole range.
    """
    rng = np.random.default_rng([seed, int(task.key, 16) & 0xFFFFFFFF])
    *inputs, output = task.func.params
    depth = max(1.0, task.flops / (2.0 * math.prod(_shape(output)) or 1.0))
    return [_random(rng, _shape(p), str(p.dtype), scale=depth**-0.25, is_positive=is_positive) for p in inputs]


def output_spec(task: TunableTask) -> tuple[tuple[int, ...], str]:
    """(shape, dtype) of the output, the last parameter."""
    output = task.func.params[-1]
    return _shape(output), str(output.dtype)


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What the output holds before the kernel runs: NaN, or an integer's largest value, so that an unwritten element
    shows.
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.full(shape, np.nan, kind)
    return np.full(shape, True if kind.kind == "b" else np.iinfo(kind).max, kind)


def compare(output: np.ndarray, reference: np.ndarray, precision: str | None = None) -> Comparison:
    """Hold `output` against `reference` of the same shape and type; integers must be equal.

    precision: what the kernel rounds its factors to ("tf32"); None: they are of the output's type.
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
    # Single precision tells a right output of single or half precision several times faster; whatever it finds wrong,
    # by overflow too, is judged in double precision.
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
    """(|out - ref| / |ref|, |out - ref| / (|ref| + rms(ref)) of every element), computed in `precision`.

    The first is infinite where squares of the reference leave the range of `precision`.
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
    """Where inputs and reference output of a task lie."""
    return folder / f"{task.key}-{seed}.npz"


def save_reference(path: Path, inputs: Sequence[np.ndarray], output: np.ndarray) -> None:
    """Write inputs and output so that a reader sees all or nothing; results for other seeds of the same task are
    removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.npz"):
        old.unlink(missing_ok=True)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    arrays: dict[str, Any] = {f"input{i}": array for i, array in enumerate(inputs)}
    np.savez(partial, output=output, **arrays)
    partial.replace(path)


def load_reference(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """(inputs, output) as saved; OSError or ValueError where there is none or it cannot be read."""
    try:
        with open(path, "rb", opener=regular) as file, np.load(file) as data:
            return [data[f"input{i}"] for i in range(len(data.files) - 1)], data["output"]
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path} is not a saved reference: {error}") from error


def finite_or_raise(task: TunableTask, output: np.ndarray) -> None:
    """BuildError where the reference itself is useless."""
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
    if kind.itemsize >= 4:
        return rng.integers(0, 2, shape, dtype=kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


def _first(output: np.ndarray, reference: np.ndarray, mask: np.ndarray) -> str:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
    return f"the first at {list(index)}: {output[index]} instead of {reference[index]}"


def _shape(parameter: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in parameter.shape)
