"""A compiled model's outputs compared with onnxruntime's."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

from romou.base.errors import DeviceError, NumericError, RomouError
from romou.compiler.frontend import draws_of
from romou.compiler.frontend.onnx_graph import shapes_of
from romou.compiler.frontend.precision import AS_GIVEN, FP16, MIXED
from romou.compiler.frontend.precision import TOLERANCE as MADE_FP16
from romou.compiler.frontend.reference import quantizes_at_run_time, relative_l2_error, run_onnxruntime, uncertainties
from romou.devices.targets import Target
from romou.driver.wrong_node import first_wrong, first_wrong_on_equal_inputs
from romou.runtime.module import TunedModel, random_inputs

if TYPE_CHECKING:
    from romou.compiler.frontend import ImportedModel

logger = logging.getLogger("romou")

# Limits of the relative L2 error of the whole model's outputs against onnxruntime. fp16 storage rounds at every layer.
# TF32 rounds factors to the precision of fp16, but nothing in memory.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2}
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
    """

    error: float | None = None
    limit: float | None = None

    @property
    def is_wrong(self) -> bool:
        """True if outputs were compared and one has too large an error."""
        return self.error is not None and self.limit is not None and not self.error <= self.limit


def check_outputs(model: TunedModel, imported: ImportedModel, target: Target) -> OutputCheck:
    """Run a model on the first calibration inputs or on random ones, and compare its outputs with onnxruntime's.

    Nothing is compared if the model has random outputs or if onnxruntime cannot run it.
    """
    if imported.onnx_model is None or any(_is_random(node) for node in imported.onnx_model.graph.node):
        return OutputCheck()
    inputs = _inputs_of(imported, model)
    with ThreadPoolExecutor(1) as beside:  # a driver that compiles in the first run uses one processor
        expected = beside.submit(run_onnxruntime, imported.onnx_model, inputs)
        try:
            found = model.run(inputs)
        except RuntimeError:
            if expected.result() is None:
                return OutputCheck()
            raise
    reference = expected.result()
    if reference is None:
        return OutputCheck()
    declared = shapes_of(imported.onnx_model.graph)
    shapes = zip(imported.outputs, (output.shape for output in reference), strict=True)
    if any(declared.get(name, shape) != shape for name, shape in shapes):
        # For example random bounds of a Slice
        logger.warning(
            "random inputs give outputs of other shapes than the model declares, so its outputs are not checked"
        )
        return OutputCheck()
    limit = _limit(reference, target, imported.precision.kind)
    return OutputCheck(_worst(found, reference, limit, imported.onnx_model, inputs), limit)


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
    error, limit = check
    assert imported.onnx_model is not None
    inputs = _inputs_of(imported, model)
    has_steps = quantizes_at_run_time(imported.onnx_model)
    is_wrong = partial(_is_part_wrong, compile_part, target, imported.precision.kind)
    first = first_wrong_on_equal_inputs if has_steps else first_wrong
    node = first(imported.onnx_model, inputs, is_wrong)
    on_equal = " on equal inputs" if has_steps else ""
    if node is None:
        name, operator, where = None, None, f"no operator's output differs{on_equal}"
    else:
        name, operator = node.name or ", ".join(node.output), node.op_type
        where = f"the first operator whose output differs{on_equal} is {operator} {name!r}"
    hint = _HINT_OF_STEPS if node is None else _HINT_OF_QUANTIZED if has_steps else _HINT
    return NumericError(
        f"the compiled model's outputs differ from onnxruntime's by {error:.2e} (relative L2), the limit is"
        f" {limit:.0e}; {where}",
        hint=f"{_HINTS.get(imported.precision.kind, hint)} {way_out}",
        operator=operator,
        node=name,
        error=error,
        limit=limit,
    )


def _limit(reference: list[np.ndarray], target: Target, precision: str) -> float:
    if precision != AS_GIVEN:
        return MADE_FP16
    product = "tf32" if target.limits.allows_tf32 else "float32"
    return max(TOLERANCE[product], *(TOLERANCE.get(str(output.dtype), 0.0) for output in reference))


def _is_random(node: onnx.NodeProto) -> bool:
    """Return whether a node's outputs differ from run to run."""
    return node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2]))


def _error(output: np.ndarray, right: np.ndarray, least_rms: float = 0.0) -> float:
    """Return the relative L2 error, infinite for another shape or dtype.

    least_rms: the error of outputs with a smaller root mean square is relative to this one.
    """
    if output.dtype != right.dtype:
        return float("inf")
    if output.shape == right.shape and right.dtype.kind in "iuf":
        # Quantized values and denormal numbers may be rounded to either side.
        with np.errstate(invalid="ignore"):
            near = np.abs(output.astype(np.float64) - right.astype(np.float64)) <= _unit_of(right.dtype)
        output = np.where(near, right, output)
    error = relative_l2_error(output, right)
    if (
        least_rms
        and error > 0
        and output.shape == right.shape
        and np.array_equal(np.isfinite(output), np.isfinite(right))
    ):
        finite = np.isfinite(right)
        difference = output[finite].astype(np.float64) - right[finite].astype(np.float64)
        return min(error, float(np.sqrt(np.mean(np.square(difference)))) / least_rms)
    return error


def _unit_of(dtype: np.dtype) -> float:
    """Return the distance of a type's smallest numbers, within which a result may be rounded to either side.

    Devices flush fp32's denormal numbers to zero.
    """
    if dtype in (np.int8, np.uint8):
        return 1.0
    if dtype == np.float16:
        return float(np.finfo(np.float16).smallest_subnormal)
    return float(np.finfo(np.float32).smallest_normal) if dtype == np.float32 else 0.0


def _worst(
    outputs: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
    limit: float,
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
) -> float:
    """Return the error of the worst output.

    Cancellation leaves rounding errors: if onnxruntime differs from itself, the model may differ by a little more.
    """
    errors = [_error(output, expected) for output, expected in zip(outputs, right, strict=True)]
    worst = max(errors, default=0.0)
    if worst <= limit:
        return worst
    least = [allowed / limit for allowed in uncertainties(model, inputs, right)]
    return max(
        _error(output, expected, least_rms) for output, expected, least_rms in zip(outputs, right, least, strict=True)
    )


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
        return not _worst(model.run(inputs), reference, limit, part, inputs) <= limit
    except (RomouError, RuntimeError):
        return False
