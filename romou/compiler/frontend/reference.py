"""What the model should compute: onnxruntime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

logger = logging.getLogger("romou")


def run_onnxruntime(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], *, is_optimized: bool = True
) -> list[np.ndarray] | None:
    """The outputs in graph order, or None (and a warning) where onnxruntime cannot run the model. is_optimized: whether
    it rewrites the graph before.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime 1.32 crashes where it inlines branches of constant conditions that hold others.
    if not is_optimized or any(node.op_type == "If" for node in model.graph.node):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(output) for output in session.run(None, dict(inputs))]
    except Exception as error:  # onnxruntime's exceptions share no base class
        logger.warning(
            "onnxruntime cannot run this model, so its outputs are not checked: %s", str(error).strip().splitlines()[0]
        )
        return None


def relative_l2_error(output: np.ndarray, reference: np.ndarray) -> float:
    """|output - reference| / |reference|, in double precision; infinite where shapes differ or a value is not finite in
    one alone.
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


# Relative change of the inputs by which `spreads` looks for what cancels out: a few units in the last place of fp32.
_NUDGE = 4 * float(np.finfo(np.float32).eps)


def spreads(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], reference: Sequence[np.ndarray]) -> list[float]:
    """How far onnxruntime in fp32 is from itself, for each output: with its graph as it is and rewritten, and with
    inputs that differ in their last places.

    It is the median of the elements' differences: a few that fall to another side of a threshold say nothing. 0 for
    integers.
    """
    rng = np.random.default_rng(0)
    nudged = {
        name: (value * (1 + _NUDGE * rng.uniform(-1, 1, value.shape))).astype(value.dtype)
        if value.dtype == np.float32
        else value
        for name, value in inputs.items()
    }
    found = [0.0] * len(reference)
    for given, is_optimized in ((inputs, False), (nudged, True)):
        others = run_onnxruntime(model, given, is_optimized=is_optimized)
        for i, (other, right) in enumerate(zip(others or (), reference, strict=False)):
            if right.dtype.kind == "f" and right.size and other.shape == right.shape:
                middle = float(np.median(np.abs(other.astype(np.float64) - right.astype(np.float64))))
                found[i] = max(found[i], middle) if np.isfinite(middle) else found[i]
    return found
