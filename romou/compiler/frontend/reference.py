"""Reference outputs of a model, from onnxruntime on the CPU."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from romou.base.errors import first_line
from romou.compiler.frontend.onnxruntime_session import cpu_session

logger = logging.getLogger("romou")


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, is_optimized: bool = True
) -> list[np.ndarray] | None:
    """Return the outputs in graph order, or log a warning and return None if onnxruntime cannot run the model.

    is_optimized: whether onnxruntime may rewrite the graph.
    """
    # onnxruntime 1.32 crashes when it inlines nested branches of constant conditions.
    is_optimized = is_optimized and not any(node.op_type == "If" for node in model.graph.node)
    try:
        session = cpu_session(model, is_optimized=is_optimized, log_severity=3)
        return [np.asarray(output) for output in session.run(None, dict(inputs))]
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.warning("onnxruntime cannot run this model, so its outputs are not checked: %s", first_line(error))
        return None


def time_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, repeat: int = 5) -> float | None:
    """Return the median milliseconds of a run on this machine's CPU, or None if onnxruntime cannot run the model."""
    try:
        session, given, times = cpu_session(model), dict(inputs), []
        for _ in range(1 + repeat):
            begin = time.perf_counter()
            session.run(None, given)
            times.append(time.perf_counter() - begin)
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.warning("onnxruntime cannot run this model, so it is not timed: %s", first_line(error))
        return None
    # The first run allocates.
    return 1e3 * float(np.median(times[1:]))


def relative_l2_error(output: np.ndarray, reference: np.ndarray) -> float:
    """Return |output - reference| / |reference| in fp64.

    It is infinite if shapes differ, or if an element is finite in only one of the two.
    """
    if output.shape != reference.shape:
        return float("inf")
    a, b = output.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    scale = np.linalg.norm(b[finite])
    difference = np.linalg.norm(a[finite] - b[finite])
    if scale == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return float(difference / scale)


# Relative change of the inputs in `uncertainties`, to find cancellation: a few units in the last place of fp32.
_NUDGE = 4 * float(np.finfo(np.float32).eps)
# The same for models that quantize at run time: rounding to the other side changes a number by a whole step, and the
# scales of all later layers. Each layer adds errors of a few units in the last place. A larger change of the input has
# the same effect.
_NUDGE_ACROSS_STEPS = 256 * float(np.finfo(np.float32).eps)
_QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
# Outputs may differ from onnxruntime's by this many times the median difference of two of onnxruntime's runs, and of
# models that quantize at run time by this many times the root mean square.
_OF_MEDIAN, _OF_RMS = 16, 2


def quantizes_at_run_time(model: onnx.ModelProto) -> bool:
    """Return whether the model quantizes activations."""
    return any(node.op_type in _QUANTIZING for node in model.graph.node)


def uncertainties(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], reference: Sequence[np.ndarray]
) -> list[float]:
    """Return the root mean square by which each output may differ from onnxruntime's, as onnxruntime does from itself.

    onnxruntime runs without graph optimization, and on inputs that differ in their last places. The median of the
    elements' differences counts, because a few elements beside a threshold may differ by any amount. If the model
    quantizes at run time, inputs differ more, and the root mean square counts. For integers the result is 0.
    """
    rng = np.random.default_rng(0)
    has_steps = quantizes_at_run_time(model)
    nudge, factor = (_NUDGE_ACROSS_STEPS, _OF_RMS) if has_steps else (_NUDGE, _OF_MEDIAN)
    nudged = {
        name: (value * (1 + nudge * rng.uniform(-1, 1, value.shape))).astype(value.dtype)
        if value.dtype == np.float32
        else value
        for name, value in inputs.items()
    }
    allowed = [0.0] * len(reference)
    for arrays, is_optimized in ((inputs, False), (nudged, True)):
        outputs = run_onnxruntime(model, arrays, is_optimized=is_optimized)
        for i, (output, expected) in enumerate(zip(outputs or (), reference, strict=False)):
            if expected.dtype.kind == "f" and expected.size and output.shape == expected.shape:
                differences = np.abs(output.astype(np.float64) - expected.astype(np.float64))
                spread = float(np.sqrt(np.mean(np.square(differences))) if has_steps else np.median(differences))
                allowed[i] = max(allowed[i], factor * spread) if np.isfinite(spread) else allowed[i]
    return allowed
