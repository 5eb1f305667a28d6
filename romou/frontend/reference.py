"""What the model should compute: onnxruntime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

logger = logging.getLogger("romou")


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, is_optimized: bool = True) -> list[np.ndarray] | None:
    """The outputs in graph order, or None (and a warning) where onnxruntime cannot run the model. is_optimized: whether it rewrites the graph before."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not is_optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(output) for output in session.run(None, dict(inputs))]
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.warning("onnxruntime cannot run this model, so its outputs are not checked: %s", str(error).strip().splitlines()[0])
        return None


def relative_l2_error(output: np.ndarray, reference: np.ndarray) -> float:
    """|output - reference| / |reference|, in double precision; infinite where shapes differ or a value is not finite in one alone."""
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


# Relative change of the inputs by which `summed_magnitudes` looks for what cancels out: a few units in the last place of fp32.
_NUDGE = 4 * float(np.finfo(np.float32).eps)
# What rounding each number once makes of an output, relative to it, in an ordinary network: its layers add up.
_ORDINARY = 16 * float(np.finfo(np.float32).eps)


def summed_magnitudes(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], reference: Sequence[np.ndarray]) -> list[float]:
    """The typical magnitude of what each output is a difference of, by how far onnxruntime in fp32 is from itself; 0 where nothing cancels out.

    Its graph is run as it is and rewritten, and with inputs that differ in their last places. Half of the elements have to differ by as much: a few
    that fall to another side of a threshold say nothing.
    """
    rng = np.random.default_rng(0)
    nudged = {
        name: (value * (1 + _NUDGE * rng.uniform(-1, 1, value.shape))).astype(value.dtype) if value.dtype == np.float32 else value
        for name, value in inputs.items()
    }
    spreads = [0.0] * len(reference)
    for given, is_optimized in ((inputs, False), (nudged, True)):
        others = run_onnxruntime(model, given, is_optimized=is_optimized)
        for i, (other, right) in enumerate(zip(others or (), reference, strict=False)):
            if right.dtype.kind == "f" and right.size and other.shape == right.shape:
                difference = np.abs(other.astype(np.float64) - right.astype(np.float64))
                found = float(np.median(difference))
                spreads[i] = max(spreads[i], found) if np.isfinite(found) else spreads[i]
    return [spread / _ORDINARY for spread in spreads]
