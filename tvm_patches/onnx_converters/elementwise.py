"""Elementwise operators that the wheel imports in another form, or only in part.

It imports them as opaque kernels (Clip), as a reduction (Max, Sum), or only for some types and attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import numpy as np
import tvm
from tvm import relax

from tvm_patches.onnx_converters.node import Node, converter

op = relax.op


def _maximum(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _of_constants(np.maximum, a, b) or op.maximum(a, b)


def _minimum(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    return _of_constants(np.minimum, a, b) or op.minimum(a, b)


def _of_constants(function: Callable[..., np.ndarray], a: relax.Expr, b: relax.Expr) -> relax.Expr | None:
    """Return the function of two constants, else None. TVM's own folding drops NaN from maxima and minima."""
    both = isinstance(a, tvm.ir.GenericConst) and isinstance(b, tvm.ir.GenericConst)
    return relax.const(np.asarray(function(a.value.numpy(), b.value.numpy()))) if both else None


@converter("Clip")
def clip(node: Node) -> relax.Expr:
    """Convert Clip(x, lo, hi) to minimum(maximum(x, lo), hi)."""
    value = node.input(0)
    for index, name, bounded in ((1, "min", _maximum), (2, "max", _minimum)):
        limit = node.constant(index)
        if name in node.attributes:
            value = bounded(value, relax.const(node.attributes[name], node.dtype()))
        elif node.has(index) and limit is None:
            value = bounded(value, op.reshape(node.input(index), []))
        elif limit is not None:
            value = bounded(value, relax.const(limit.reshape(()), node.dtype()))
    return value


@converter("Max", "Min", "Sum", "Mean")
def combination(node: Node) -> relax.Expr:
    """Convert Max(a, b, …) to maximum(maximum(a, b), …).

    The wheel stacks the operands and reduces the stack.
    """
    combine = {"Max": _maximum, "Min": _minimum}.get(node.operator, op.add)

    def both(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        value = combine(a, b)
        return value if isinstance(value, tvm.ir.GenericConst) else node.emit(value)

    combined = functools.reduce(both, (node.input(i) for i in range(len(node.inputs))))
    return op.divide(combined, relax.const(len(node.inputs), node.dtype())) if node.operator == "Mean" else combined


@converter("Pow")
def power(node: Node) -> relax.Expr:
    """Return a power of the base's type.

    A small whole exponent becomes products, which are exact for integers and defined for negative bases.
    """
    base, exponent = node.input(0), node.constant(1)
    if exponent is not None and exponent.size == 1 and len(exponent.shape) <= len(node.shape()):
        number = exponent.reshape(-1)[0]
        if number in (1, 2, 3, 4):
            return functools.reduce(lambda a, b: node.emit(op.multiply(a, b)), [base] * int(number))
        if np.dtype(node.dtype()).kind == "f":
            # A number in the kernel, not a tensor: the exponent decides how the power is computed.
            return (
                op.divide(relax.const(1, node.dtype()), base)
                if number == -1
                else op.power(base, relax.const(float(number), node.dtype()))
            )
    kinds = np.dtype(node.dtype(0)).kind, np.dtype(node.dtype(1)).kind
    if kinds == ("f", "f"):
        return op.power(base, op.astype(node.input(1), node.dtype()))
    # Integers are powers of double precision: exact up to 2**53.
    wide = "float64" if kinds[0] in "iu" else node.dtype()
    wide_power = op.power(op.astype(base, wide), op.astype(node.input(1), wide))
    return op.astype(op.round(wide_power) if kinds == ("i", "i") else wide_power, node.dtype())


@converter("Sign")
def sign(node: Node) -> relax.Expr:
    """Return -1, 0 or 1. NaN stays NaN. The wheel cannot build -1 of an unsigned type."""
    value, kind = node.input(0), np.dtype(node.dtype()).kind
    if kind == "u":
        return op.minimum(value, relax.const(1, node.dtype()))
    return op.where(op.isnan(value), value, op.sign(value)) if kind == "f" else op.sign(value)


@converter("Mul", "Div")
def multiply_or_divide(node: Node) -> relax.Expr:
    """Multiply or divide so that NaN and infinities survive a constant zero.

    TVM folds `x * 0` to zero, and fails for `x / 0`.
    """
    numbers = {
        i: float(value.reshape(()))
        for i in (0, 1)
        if (value := node.constant(i)) is not None and value.size == 1 and value.dtype.kind == "f"
    }
    zero = next((i for i, number in numbers.items() if number == 0), None)
    if zero is None or len(numbers) == 2 or len(node.shape(zero)) > len(node.shape(1 - zero)):
        return node.wheel(**node.attributes)
    x = node.input(1 - zero)
    if node.operator == "Div" and zero == 1:
        return op.multiply(x, relax.const(np.copysign(np.inf, numbers[zero]), node.dtype()))
    size = op.abs(x)
    is_zero = (
        op.less(size, relax.const(np.inf, node.dtype()))
        if node.operator == "Mul"
        else op.greater(size, relax.const(0, node.dtype()))
    )
    return op.where(is_zero, relax.const(0, node.dtype()), relax.const(np.nan, node.dtype()))


@converter("Tan")
def tangent(node: Node) -> relax.Expr:
    """Convert Tan(x) to sin(x) / cos(x), with Romou's sine and cosine.

    PoCL's tangent of two numbers at a time is four times too large near zero.
    """
    x = node.emit(node.input(0))
    return op.divide(op.sin(x), op.cos(x))


@converter("IsInf")
def is_inf(node: Node) -> relax.Expr:
    """Convert IsInf, which finds infinities of both signs, of one, or of none."""
    value, infinity = node.input(0), float("inf")
    comparisons = [
        op.equal(value, relax.const(sign * infinity, node.dtype()))
        for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
        if node.attributes[name]
    ]
    if not comparisons:
        return relax.const(np.zeros(node.shape(), bool), "bool")
    return functools.reduce(op.logical_or, comparisons)


@converter("PRelu")
def parametric_relu(node: Node) -> relax.Expr:
    x = node.emit(node.input(0))
    return op.where(op.less(x, relax.const(0, node.dtype())), op.multiply(x, node.input(1)), x)


@converter("Gelu")
def gelu(node: Node) -> relax.Expr:
    return (op.nn.gelu_tanh if node.attributes["approximate"] == "tanh" else op.nn.gelu)(node.input(0))


@converter("Softplus", "Mish")
def softplus(node: Node) -> relax.Expr:
    """Convert Softplus(x) to log(1 + exp(x)), and Mish(x) to x * tanh(softplus(x)).

    Far below zero, where 1 + exp(x) rounds to 1, the logarithm is its series. The wheel's logarithm is an operator that
    cannot be fused into a convolution's kernel.
    """
    x = node.emit(node.input(0))
    const = partial(relax.const, dtype=node.dtype())
    exponential = node.emit(op.exp(x))
    series = op.multiply(exponential, op.subtract(const(1), op.multiply(exponential, const(0.5))))
    smooth = op.where(op.less(x, const(-8)), series, op.nn.softplus(x))
    return op.multiply(x, op.tanh(smooth)) if node.operator == "Mish" else smooth


@converter("Elu", "Celu", "Selu", "ThresholdedRelu", "LeakyRelu", "HardSigmoid", "HardSwish", "Shrink", "Swish")
def activation(node: Node) -> relax.Expr:
    """Convert an activation to operators in the input's type. The wheel's constants are float32."""
    x = node.emit(node.input(0))
    get = {"alpha": 1 / 6, "beta": 0.5, **node.attributes}.__getitem__

    def const(value: float) -> relax.Expr:
        return relax.const(value, node.dtype())

    zero, one = const(0), const(1)
    name = node.operator
    if name in ("HardSwish", "HardSigmoid"):
        gate = op.minimum(op.maximum(op.add(op.multiply(x, const(get("alpha"))), const(get("beta"))), zero), one)
        return op.multiply(x, gate) if name == "HardSwish" else gate
    if name == "Swish":
        return op.multiply(x, op.sigmoid(op.multiply(x, const(get("alpha"))) if get("alpha") != 1.0 else x))
    if name == "ThresholdedRelu":
        return op.where(op.greater(x, const(get("alpha"))), x, zero)
    if name == "Shrink":
        low, high = (op.where(test, moved, zero) for test, moved in _shrunk(x, const(get("lambd")), const(get("bias"))))
        return op.add(low, high)
    if name == "LeakyRelu":
        return op.where(op.less(x, zero), op.multiply(x, const(get("alpha"))), x)
    if name == "Celu":
        negative = op.multiply(const(get("alpha")), op.subtract(op.exp(op.divide(x, const(get("alpha")))), one))
        return op.add(op.maximum(x, zero), op.minimum(negative, zero))
    negative = op.multiply(const(get("alpha")), op.subtract(op.exp(x), one))
    elu = op.where(op.less(x, zero), negative, x)
    return op.multiply(const(get("gamma")), elu) if name == "Selu" else elu


def _shrunk(x: relax.Expr, limit: relax.Expr, bias: relax.Expr) -> list[tuple[relax.Expr, relax.Expr]]:
    return [(op.less(x, op.negative(limit)), op.add(x, bias)), (op.greater(x, limit), op.subtract(x, bias))]


@converter("Dropout")
def dropout(node: Node) -> list[relax.Expr]:
    """Return the input and a mask of ones. Dropping at random is training, which is refused."""
    if node.has(2):
        training, ratio = node.constant(2), node.constant(1)
        drops = ratio is None if node.has(1) else True
        if (training is None or bool(training)) and (drops or (ratio is not None and float(ratio) != 0.0)):
            raise ValueError("dropping elements at random is training; set training_mode to false")
    elif node.opset < 7 and not node.attributes.get("is_test", 0) and any(node.is_wanted[1:]):
        raise ValueError("dropping elements at random is training; set is_test")
    mask = "bool" if node.opset >= 10 else node.dtype()
    return [node.input(0), relax.const(np.ones(node.shape(), mask), mask)]


@converter("Mod")
def modulo(node: Node) -> relax.Expr:
    """Return the remainder with the sign of the divisor, or of the dividend if `fmod` is set."""
    x, y, zero = node.input(0), node.input(1), relax.const(0, node.dtype())
    kind, is_fmod = np.dtype(node.dtype()).kind, node.attributes["fmod"]
    if kind == "f":
        remainder = node.emit(op.mod(x, y))
        if is_fmod:
            return remainder
        has_other_sign = op.logical_and(
            op.not_equal(remainder, zero), op.logical_xor(op.less(remainder, zero), op.less(y, zero))
        )
        return op.where(has_other_sign, op.add(remainder, y), remainder)
    if kind == "u" or not is_fmod:
        return op.floor_mod(x, y)
    remainder = node.emit(op.floor_mod(op.abs(x), op.abs(y)))
    return op.where(op.less(x, zero), op.negative(remainder), remainder)


@converter("BitShift")
def bit_shift(node: Node) -> relax.Expr:
    """Shift as NumPy does: a shift by the width or more, or by a negative number, gives 0.

    In C such shifts are undefined.
    """
    value, distance = node.input(0), node.input(1)
    last, zero = relax.const(8 * np.dtype(node.dtype()).itemsize - 1, node.dtype()), relax.const(0, node.dtype())
    is_left, is_signed = node.attributes["direction"] == "LEFT", np.dtype(node.dtype()).kind == "i"
    is_out = op.greater(distance, last)
    if is_signed:
        is_out = node.emit(op.logical_or(is_out, op.less(distance, zero)))
    moved = (op.left_shift if is_left else op.right_shift)(value, op.where(is_out, last, distance))
    return moved if is_signed and not is_left else op.where(is_out, zero, moved)
