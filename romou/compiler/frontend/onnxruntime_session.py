"""Sessions of onnxruntime on the CPU."""

from __future__ import annotations

from typing import Any

import onnx

from romou.compiler.frontend.exact_operators import with_exact_operators
from romou.compiler.frontend.microsoft import for_onnxruntime
from romou.compiler.frontend.qlinear import with_standard_operators


def cpu_session(model: onnx.ModelProto, *, is_optimized: bool = True, is_exact: bool = True) -> Any:
    """Return an onnxruntime session of a model. Raises exceptions that share no base class.

    is_optimized: whether onnxruntime may rewrite the graph.
    is_exact: whether the results are a reference. Other sessions are timed.
    """
    from onnxruntime import GraphOptimizationLevel as Level

    given = for_onnxruntime(model)
    given = with_exact_operators(given) if is_exact else given
    attempts = [(given, Level.ORT_ENABLE_ALL if is_optimized else Level.ORT_DISABLE_ALL)]
    if is_optimized:
        # Its extended optimizations fail if two products share a quantized weight or a zero point. The basic ones join
        # no quantized operators, so that there is no product to saturate.
        attempts.append((given, Level.ORT_ENABLE_BASIC))
    if any(node.op_type in ("QLinearConv", "QGemm") for node in given.graph.node):
        # Of what its quantizer writes, it has no kernels for all types: no QGemm of signed and unsigned bytes, and no
        # QLinearConv of channels_last, which its optimizer makes.
        attempts.append((with_standard_operators(given), Level.ORT_DISABLE_ALL))
    first: Exception | None = None
    for attempt, level in attempts:
        try:
            return _session(attempt, level)
        except Exception as error:  # onnxruntime's exceptions share no base class
            first = first or error
    assert first is not None
    raise first


def _session(model: onnx.ModelProto, level: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Else products of bytes, as it makes them of dequantized factors, saturate on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    # Else products with dequantized weights round their activations to 8 bits, an error of up to a percent.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.log_severity_level = 4  # fatal errors only; others are exceptions
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
