"""Sessions of onnxruntime on the CPU."""

from __future__ import annotations

from typing import Any

import onnx

from romou.compiler.frontend.microsoft import for_onnxruntime
from romou.compiler.frontend.qlinear import with_standard_operators


def cpu_session(model: onnx.ModelProto, *, is_optimized: bool = True, log_severity: int = 4) -> Any:
    """Return an onnxruntime session of a model. Raises exceptions that share no base class.

    is_optimized: whether onnxruntime may rewrite the graph.
    log_severity: lowest severity that is logged, 3: errors, 4: fatal errors.
    """
    import onnxruntime

    def session_of(model: onnx.ModelProto, *, is_optimized: bool) -> Any:
        options = onnxruntime.SessionOptions()
        # Else products of bytes saturate on processors without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        # Else products with dequantized weights round their activations to 8 bits, an error of up to a percent.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        options.log_severity_level = log_severity
        if not is_optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    given = for_onnxruntime(model)
    try:
        return session_of(given, is_optimized=is_optimized)
    except Exception:  # onnxruntime's exceptions share no base class
        # Of what its quantizer writes, it has no kernels for all types: no QGemm of signed and unsigned bytes, and no
        # QLinearConv of channels_last, which its optimizer makes.
        if not any(node.op_type in ("QLinearConv", "QGemm") for node in given.graph.node):
            raise
        return session_of(with_standard_operators(given), is_optimized=False)
