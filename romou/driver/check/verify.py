"""A compiled model's outputs compared with onnxruntime's."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from romou.base.errors import DeviceError, ModelError, NumericError, RomouError
from romou.base.inputs import random_inputs
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.precision import AS_GIVEN, FP16, MIXED, format_error
from romou.compiler.frontend.precision import TOLERANCE as MADE_FP16
from romou.compiler.frontend.reference import (
    has_steps,
    quantizes_at_run_time,
    reference_outputs,
    relative_l2_error,
    run_onnxruntime,
    uncertainties,
)
from romou.devices.targets import Target
from romou.driver.check.wrong_node import IsWrong, first_wrong, first_wrong_on_equal_inputs
from romou.runtime.module import TunedModel

if TYPE_CHECKING:
    from romou.compiler.frontend.imported import ImportedModel

logger = logging.getLogger("romou")

# Limits of the relative L2 error of the whole model's outputs against onnxruntime. fp16 storage rounds at every layer.
# TF32 rounds factors to the precision of fp16, but nothing in memory.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2}
# Seconds for which parts of a wrong model are compiled to find the first wrong operator.
_SEARCH_S = 60.0
# An element of fp32 may be off by this many times the limit, relative to it or to this share of the root mean square
# for each digit of the number of elements: the largest of many rounding errors is larger. Winograd's 4x4 tiles leave
# 1.3e-4 of the root mean square in one of 602,112 elements (8x384x14x14).
_OF_ELEMENTS, _LEAST_SIZE = 5, 0.1
# An output may differ from the reference by this many times the reference's own uncertainty.
_OF_UNCERTAINTY = 4
_HINT = "Replace the operator, or export with another opset."
_HINT_OF_STEPS = "Activations that are quantized in each layer amplify rounding: compare the accuracy on your data."
_HINT_OF_QUANTIZED = "Leave this operator in floats when the model is quantized, or compile for another device."
_HINTS = {
    FP16: (
        "precision='mixed' (--precision mixed) keeps in fp32 what fp16 is too coarse for, the target option"
        " -half=storage all sums."
    ),
    MIXED: (
        "Give calibration inputs like those of the model's use. The target option -half=storage keeps all sums in fp32."
    ),
}
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")


class OutputCheck(NamedTuple):
    """A model's outputs against onnxruntime's.

    error: relative L2 error of the worst output, infinite for another shape or dtype. None if nothing was compared.
    limit: the largest error that counts as right.
    unchecked: the reason why nothing was compared, or "".
    """

    error: float | None = None
    limit: float | None = None
    unchecked: str = ""

    @property
    def is_wrong(self) -> bool:
        """True if outputs were compared and one has too large an error."""
        return self.error is not None and self.limit is not None and not self.error <= self.limit


def check_outputs(model: TunedModel, imported: ImportedModel, target: Target, seed: int = 0) -> OutputCheck:
    """Run a model on the first calibration inputs or on random ones, and compare its outputs with onnxruntime's.

    seed: of random inputs. Calibration inputs are taken for 0 only.

    Nothing is compared if the model has random outputs or if onnxruntime cannot run it.
    """
    if imported.onnx_model is None:
        return OutputCheck(unchecked="onnxruntime has no such model")
    random = next(filter(_is_random, imported.onnx_model.graph.node), None)
    if random is not None:
        return OutputCheck(unchecked=f"{node_name(random)} draws other numbers in each run")
    inputs = _inputs_of(imported, model, seed)
    with ThreadPoolExecutor(1) as beside:  # a driver that compiles in the first run uses one processor
        expected = beside.submit(reference_outputs, imported.onnx_model, inputs)
        try:
            found = model.run(inputs)
        except RuntimeError:
            if isinstance(problem := expected.exception(), ModelError):
                return _unchecked(problem.message)
            raise
    try:
        reference = expected.result()
    except ModelError as error:
        return _unchecked(error.message)
    declared = shapes_of(imported.onnx_model.graph)
    shapes = zip(imported.outputs, (output.shape for output in reference), strict=True)
    for name, shape in shapes:
        if declared.get(name, shape) != shape:  # for example of random bounds of a Slice
            text = f"inputs drawn at random give output {name!r} of shape {shape}, where the model declares"
            return _unchecked(f"{text} {declared[name]}")
    limit = _limit(reference, target, imported.precision.kind)
    return _compared(found, reference, limit, imported.onnx_model, inputs)


def _unchecked(reason: str) -> OutputCheck:
    logger.warning("the outputs are not checked: %s", reason)
    return OutputCheck(unchecked=reason)


def _inputs_of(imported: ImportedModel, model: TunedModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the first calibration inputs, or random inputs within the ranges that the model's nodes accept."""
    calibrated = next(iter(imported.precision.calibration), None) if not seed else None
    return (
        dict(calibrated)
        if calibrated is not None
        else random_inputs(imported.inputs, seed, draws_of(imported.folded)) | model.settled
    )


def check_stability(model: TunedModel, imported: ImportedModel, *, runs: int = 50, limit_s: float = 5.0) -> None:
    """Run a model alternately on two random inputs, for `limit_s` seconds at most.

    Two, because a captured run leaves its tensors where the next one writes: a kernel that does not run would leave the
    right values of the same inputs.

    Raises
    ------
    DeviceError
        An output differs in a bit between two runs, and no node is random.
    """
    if imported.onnx_model is not None and any(_is_random(node) for node in imported.onnx_model.graph.node):
        return
    inputs = [_inputs_of(imported, model, seed=seed) for seed in (1, 2)]
    first, stop_at = [model.run(each) for each in inputs], time.monotonic() + limit_s
    for number, which in enumerate(itertools.islice(itertools.cycle((0, 1)), runs - len(first)), len(first) + 1):
        for name, output, expected in zip(imported.outputs, model.run(inputs[which]), first[which], strict=True):
            if output.tobytes() != expected.tobytes():
                where = f"output {name!r} of run {number} is not that of the first run on the same inputs"
                hint = (
                    "The driver is not to be trusted with this model: update it, or tune on another device. `romou"
                    " doctor` lists what is known of drivers."
                )
                raise DeviceError(
                    f"the device's results change from run to run: {where}", hint=hint, output=name, run=number
                )
        if time.monotonic() > stop_at:
            return


def verified(
    model: TunedModel, imported: ImportedModel, target: Target, compile_part: Callable[[onnx.ModelProto], TunedModel]
) -> OutputCheck:
    """Return the result of `check_outputs`, if the outputs are right.

    compile_part: compiles the first nodes of the model in the same way, to find the first wrong one.

    Raises
    ------
    NumericError
        The outputs are wrong. The message names the first operator with a wrong output.
    DeviceError
        The model does not run.
    """
    try:
        check = check_outputs(model, imported, target)
    except RuntimeError as problem:
        reason = str(problem).strip().splitlines()[-1]
        hint = "verify=False (--no-verify) compiles without running the model."
        raise DeviceError(
            f"the compiled model does not run on {target.kind}:{model.device_index}: {reason}", hint=hint
        ) from problem
    if check.is_wrong:
        way_out = "verify=False (--no-verify) compiles without this check."
        raise wrong_outputs(model, imported, target, compile_part, check, way_out=way_out)
    return check


def wrong_outputs(
    model: TunedModel,
    imported: ImportedModel,
    target: Target,
    compile_part: Callable[[onnx.ModelProto], TunedModel],
    check: OutputCheck,
    *,
    way_out: str,
) -> NumericError:
    """Return the error that names the first operator with a wrong output.

    compile_part: see `verified`.
    way_out: the last sentence of the hint.
    """
    error, limit, _ = check
    assert imported.onnx_model is not None
    inputs = _inputs_of(imported, model)
    differ = (
        f"the compiled model's outputs differ from onnxruntime's by {error:.2e} (relative L2), the limit is {limit:.0e}"
    )
    fields: dict[str, Any] = {"error": error, "limit": limit}
    coarse = _coarse_format(imported, inputs)
    if coarse is not None:
        hint = f"{_HINTS[imported.precision.kind]} {way_out}"
        return NumericError(f"{differ}; {coarse}", hint=hint, operator=None, node=None, **fields)
    logger.warning(
        "%s: parts of the model are compiled to find the first wrong one of %d operators, for at most %.0f s",
        differ,
        len(imported.onnx_model.graph.node),
        _SEARCH_S,
    )
    has_steps = quantizes_at_run_time(imported.onnx_model)
    is_wrong = _until(
        time.monotonic() + _SEARCH_S, partial(_is_part_wrong, compile_part, target, imported.precision.kind)
    )
    first = first_wrong_on_equal_inputs if has_steps else first_wrong
    on_equal = " on equal inputs" if has_steps else ""
    name, operator, where = None, None, f"no operator's output differs{on_equal}"
    try:
        node = first(imported.onnx_model, inputs, is_wrong)
    except TimeoutError:
        node, where = None, f"the first wrong operator was not found in {_SEARCH_S:.0f} s"
    if node is not None:
        name, operator = node.name or ", ".join(node.output), node.op_type
        where = f"the first operator whose output differs{on_equal} is {operator} {name!r}"
    hint = _HINT_OF_STEPS if node is None else _HINT_OF_QUANTIZED if has_steps else _HINT
    hint = f"{_HINTS.get(imported.precision.kind, hint)} {way_out}"
    return NumericError(f"{differ}; {where}", hint=hint, operator=operator, node=name, **fields)


def _coarse_format(imported: ImportedModel, inputs: Mapping[str, np.ndarray]) -> str | None:
    """Return a sentence if rounding stored tensors to fp16 alone makes the outputs wrong, so no kernel is at fault.

    None for a model that was not converted, or if onnxruntime cannot run it.
    """
    if imported.unconverted is None:
        return None
    try:
        error, layer = format_error(imported.unconverted, imported.precision.kept, inputs, MADE_FP16)
    except ModelError:
        return None
    if layer is None or error <= MADE_FP16:
        return None
    text = f"fp16 is too coarse for it: rounding alone gives {error:.2e}"
    return (
        f"{text}, and the first layer above the limit is {layer.name}, whose largest magnitude is {layer.magnitude:.2e}"
    )


def _until(stop_at: float, is_wrong: IsWrong) -> IsWrong:
    """Return `is_wrong`, which raises TimeoutError after a `time.monotonic()`."""

    def bounded(part: onnx.ModelProto, tensors: Mapping[str, np.ndarray]) -> bool:
        if time.monotonic() > stop_at:
            raise TimeoutError
        return is_wrong(part, tensors)

    return bounded


def _limit(reference: list[np.ndarray], target: Target, precision: str) -> float:
    if precision != AS_GIVEN:
        return MADE_FP16
    product = "tf32" if target.limits.allows_tf32 else "float32"
    return max(TOLERANCE[product], *(TOLERANCE.get(str(output.dtype), 0.0) for output in reference))


def _is_random(node: onnx.NodeProto) -> bool:
    """Return whether a node's outputs differ from run to run."""
    return node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2]))


def _error(output: np.ndarray, right: np.ndarray) -> float:
    """Return the relative L2 error, infinite for another shape or dtype."""
    return float("inf") if output.dtype != right.dtype else relative_l2_error(_rounded_alike(output, right), right)


def _rounded_alike(output: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the output with the elements of `right` that it has but for the last place of quantized values.

    Quantized values and denormal numbers may be rounded to either side.
    """
    if output.shape != right.shape or right.dtype.kind not in "iuf":
        return output
    with np.errstate(invalid="ignore"):
        near = np.abs(output.astype(np.float64) - right.astype(np.float64)) <= _unit_of(right.dtype)
    return np.where(near, right, output)


def _unit_of(dtype: np.dtype) -> float:
    """Return the distance of a type's smallest numbers, within which a result may be rounded to either side.

    Devices flush fp32's denormal numbers to zero.
    """
    if dtype in (np.int8, np.uint8):
        return 1.0
    if dtype == np.float16:
        return float(np.finfo(np.float16).smallest_subnormal)
    return float(np.finfo(np.float32).smallest_normal) if dtype == np.float32 else 0.0


def _compared(
    outputs: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
    limit: float,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
) -> OutputCheck:
    """Return the error of the worst output, and its limit.

    An output above the limit is compared again, with the uncertainty of the reference itself.
    """
    errors = [_error(output, expected) for output, expected in zip(outputs, right, strict=True)]
    # Of a coarser format, single elements differ by the rounding of what cancels out.
    is_smooth = limit == TOLERANCE["float32"] and not has_steps(model)
    if is_smooth:
        farthest = [_farthest(output, expected) for output, expected in zip(outputs, right, strict=True)]
        errors = [
            max(error, far / _OF_ELEMENTS if far > _OF_ELEMENTS * limit else 0)
            for error, far in zip(errors, farthest, strict=True)
        ]
    if max(errors, default=0.0) <= limit:
        return OutputCheck(max(errors, default=0.0), limit)
    spreads = uncertainties(model, inputs, right)
    checks = [
        OutputCheck(error, limit)
        if error <= limit or spread is None or not _is_comparable(output, expected)
        else _beside(output, expected, limit, spread, error, has_all=quantizes_at_run_time(model))
        for output, expected, spread, error in zip(outputs, right, spreads, errors, strict=True)
    ]
    return max(checks, key=lambda check: (check.error or 0.0) / (check.limit or limit))


def _is_comparable(output: np.ndarray, right: np.ndarray) -> bool:
    return (
        output.dtype == right.dtype
        and output.shape == right.shape
        and np.array_equal(np.isfinite(output), np.isfinite(right))
    )


def _farthest(output: np.ndarray, right: np.ndarray) -> float:
    """Return the largest error of an element of a float output, relative to it or to a share of the output's size."""
    if right.dtype != np.float32 or not _is_comparable(output, right):
        return 0.0
    differences, sizes = _differences(output, right)
    return float(np.max(differences / np.where(sizes > 0, sizes, 1), initial=0.0))


def _differences(output: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the difference of each finite element, and its size, which is at least a share of the root mean square."""
    finite = np.isfinite(right) & np.isfinite(output)
    expected = right[finite].astype(np.float64)
    differences = np.abs(_rounded_alike(output, right)[finite].astype(np.float64) - expected)
    rms = float(np.sqrt(np.mean(np.square(expected)))) if expected.size else 0.0
    share = _LEAST_SIZE * max(1.0, math.log10(max(1, expected.size)))
    return differences, np.maximum(np.abs(expected), share * rms)


def _beside(
    output: np.ndarray, right: np.ndarray, limit: float, spread: np.ndarray, error: float, *, has_all: bool
) -> OutputCheck:
    """Return the error of an output above the limit, and the limit that the reference's uncertainty allows.

    Compared are the elements that are off by more than the limit, in order of their differences and of what they may
    differ by, because a sample of an element's uncertainty may be small by chance. The larger half counts.

    spread: the uncertainty of each element.
    has_all: compare the root mean square of all elements. If activations are quantized, rounding to the other side
        hits other elements in each run.
    """
    differences, sizes = _differences(output, right)
    allowed = limit * sizes + _OF_UNCERTAINTY * spread[np.isfinite(right) & np.isfinite(output)]
    if has_all:
        share = float(np.linalg.norm(differences) / np.linalg.norm(allowed)) if np.any(allowed) else np.inf
    else:
        is_off = differences > limit * sizes
        is_off = is_off if np.any(is_off) else np.ones_like(is_off)
        larger = (int(np.count_nonzero(is_off)) + 1) // 2
        off, may = (np.sort(each[is_off])[-larger:] for each in (differences, allowed))
        share = float(np.max(np.where(off > 0, off / np.where(may > 0, may, 1e-300), 0), initial=0.0))
    if error == np.inf:  # of a reference of zeros
        return OutputCheck(limit * share, limit)
    return OutputCheck(error, max(limit, error / share) if share > 0 else error)


def _is_part_wrong(
    compiled: Callable[[onnx.ModelProto], TunedModel],
    target: Target,
    precision: str,
    part: onnx.ModelProto,
    tensors: Mapping[str, np.ndarray],
) -> bool:
    """Return whether a part of a model is wrong on the tensors. A part that cannot be compared counts as right."""
    if not part.graph.output:
        return False
    try:
        model = compiled(part)
        inputs = {name: tensors[name] for name in model.inputs}
        reference = run_onnxruntime(part, inputs)
        if reference is None:
            return False
        limit = _limit(reference, target, precision)
        return _compared(model.run(inputs), reference, limit, part, inputs).is_wrong
    except (RomouError, RuntimeError):
        return False
