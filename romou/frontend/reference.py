"""What the model should compute: onnxruntime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx

logger = logging.getLogger("romou")


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """The outputs in graph order, or None (and a warning) where onnxruntime cannot run the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
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
