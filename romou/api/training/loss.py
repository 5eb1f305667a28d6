"""Losses, as Relax functions of a model's output and its labels."""

from __future__ import annotations

import numpy as np
from tvm import relax

from romou.base.errors import ModelError
from romou.compiler.tir.expressions import Shape

LABELS = "labels"
LOSSES = ("cross_entropy", "mean_squared_error")


def loss_function(name: str, shape: Shape, dtype: str) -> tuple[relax.Function, tuple[Shape, str]]:
    """Return (function of outputs and labels -> one number, shape and type of the labels)."""
    if name == "cross_entropy" and len(shape) != 2:
        raise ModelError(
            f"the output has the shape {shape}; cross entropy is of (n, classes)", hint="End the model with a Flatten."
        )
    labels = ((shape[0],), "int64") if name == "cross_entropy" else (shape, dtype)
    outputs, right = relax.Var("outputs", relax.TensorType(shape, dtype)), relax.Var(LABELS, relax.TensorType(*labels))
    builder = relax.BlockBuilder()
    with builder.function("loss", [outputs, right]):
        with builder.dataflow():
            total = builder.emit_output(
                (_cross_entropy if name == "cross_entropy" else _mean_squared_error)(outputs, right, shape, dtype)
            )
        builder.emit_func_output(total)
    return builder.finalize()["loss"], labels


def _cross_entropy(outputs: relax.Expr, labels: relax.Expr, shape: Shape, dtype: str) -> relax.Expr:
    """Return -log softmax of the right class. A mask selects it: the gradient of a gather would be a scatter."""
    classes = relax.const(np.arange(shape[1], dtype="int64"))
    is_right = relax.op.equal(relax.op.expand_dims(labels, -1), classes)
    chosen = relax.op.where(is_right, relax.op.nn.log_softmax(outputs, axis=-1), relax.const(np.zeros(shape, dtype)))
    return relax.op.multiply(relax.op.sum(chosen), relax.const(-1.0 / shape[0], dtype))


def _mean_squared_error(outputs: relax.Expr, labels: relax.Expr, _shape: Shape, _dtype: str) -> relax.Expr:
    difference = relax.op.subtract(outputs, labels)
    return relax.op.mean(relax.op.multiply(difference, difference))
