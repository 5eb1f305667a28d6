"""RNN, GRU and LSTM, which the wheel lacks: one step after the other, with the products of the inputs computed for all steps at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from romou.tvm_patches.onnx_converters.node import Node, converter

op = relax.op
Function = Callable[[relax.Expr], relax.Expr]

# Each step becomes kernels of its own: more of them would make a module that takes minutes to build.
_MAX_STEPS = 256
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _activation(name: str, alpha: float | None, beta: float | None, dtype: str) -> Function:
    """An activation of the ONNX standard by its name."""

    def const(value: float | None, default: float) -> relax.Expr:
        return relax.const(default if value is None else value, dtype)

    zero, one = relax.const(0.0, dtype), relax.const(1.0, dtype)
    known: dict[str, Function] = {
        "tanh": op.tanh,
        "sigmoid": op.sigmoid,
        "relu": op.nn.relu,
        "affine": lambda x: op.add(op.multiply(const(alpha, 1.0), x), const(beta, 0.0)),
        "leakyrelu": lambda x: op.where(op.less(x, zero), op.multiply(const(alpha, 0.01), x), x),
        "thresholdedrelu": lambda x: op.where(op.greater(x, const(alpha, 1.0)), x, zero),
        "scaledtanh": lambda x: op.multiply(const(alpha, 1.0), op.tanh(op.multiply(const(beta, 1.0), x))),
        "hardsigmoid": lambda x: op.minimum(op.maximum(op.add(op.multiply(const(alpha, 0.2), x), const(beta, 0.5)), zero), one),
        "elu": lambda x: op.where(op.less(x, zero), op.multiply(const(alpha, 1.0), op.subtract(op.exp(x), one)), x),
        "softsign": lambda x: op.divide(x, op.add(one, op.abs(x))),
        "softplus": lambda x: op.log(op.add(one, op.exp(x))),
    }
    if name.lower() not in known:
        raise ValueError(f"the activation {name!r} is not supported")
    return known[name.lower()]


@dataclass(frozen=True)
class _Direction:
    """One direction of a recurrent node: its gates' products of all inputs, its recurrent weights, and how a step goes on from the state."""

    node: Node
    index: int
    hidden: int
    functions: tuple[Function, ...]

    def part(self, position: int) -> relax.Expr | None:
        """This direction's share of an input."""
        if not self.node.has(position):
            return None
        shape = self.node.shape(position)[1:]
        one = op.strided_slice(self.node.input(position), [0], [self.index], [self.index + 1])
        return self.node.emit(op.reshape(one, list(shape)))

    def weights(self, position: int) -> relax.Expr:
        """Weights (gates * hidden, k) as (k, gates * hidden)."""
        found = self.part(position)
        assert found is not None
        return self.node.emit(op.permute_dims(found))

    def gate(self, value: relax.Expr, index: int) -> relax.Expr:
        axis = len(value.ty.shape.values) - 1
        return self.node.emit(op.strided_slice(value, [axis], [index * self.hidden], [(index + 1) * self.hidden]))

    def bounded(self, value: relax.Expr) -> relax.Expr:
        limit = self.node.attributes.get("clip")
        if limit is None:
            return value
        return op.minimum(op.maximum(value, relax.const(-limit, self.node.dtype())), relax.const(limit, self.node.dtype()))

    def apply(self, index: int, value: relax.Expr) -> relax.Expr:
        return self.node.emit(self.functions[index](self.node.emit(self.bounded(value))))


State = tuple[relax.Expr, ...]
Step = Callable[[relax.Expr, State], State]


def _rnn(d: _Direction) -> Step:
    weights, bias = d.weights(2), _bias(d, 0, 1)

    def step(x: relax.Expr, state: State) -> State:
        total = op.add(x, op.matmul(state[0], weights))
        return (d.apply(0, total if bias is None else op.add(total, bias)),)

    return step


def _gru(d: _Direction) -> Step:
    weights, bias = d.weights(2), _bias(d, 0, 2)
    given = d.part(3)
    # Of the hidden gate: for inputs, for the state.
    last = None if given is None else [d.gate(given, i) for i in (2, 5)]
    both, third = (d.node.emit(op.strided_slice(weights, [1], [low * d.hidden], [high * d.hidden])) for low, high in ((0, 2), (2, 3)))
    is_linear_first = bool(d.node.attributes.get("linear_before_reset", 0))

    def step(x: relax.Expr, state: State) -> State:
        (h,) = state
        gates = op.add(d.node.emit(op.strided_slice(x, [1], [0], [2 * d.hidden])), op.matmul(h, both))
        gates = d.node.emit(gates if bias is None else op.add(gates, bias))
        update, reset = d.apply(0, d.gate(gates, 0)), d.apply(0, d.gate(gates, 1))
        if is_linear_first:
            inner = op.matmul(h, third)
            inner = op.multiply(reset, inner if last is None else op.add(inner, last[1]))
        else:
            inner = op.matmul(op.multiply(reset, h), third)
            inner = inner if last is None else op.add(inner, last[1])
        total = op.add(d.gate(x, 2), inner)
        hidden = d.apply(1, total if last is None else op.add(total, last[0]))
        one = relax.const(1.0, d.node.dtype())
        return (d.node.emit(op.add(op.multiply(op.subtract(one, update), hidden), op.multiply(update, h))),)

    return step


def _lstm(d: _Direction) -> Step:
    weights, bias, peepholes = d.weights(2), _bias(d, 0, 4), d.part(7)
    is_coupled = bool(d.node.attributes.get("input_forget", 0))

    def step(x: relax.Expr, state: State) -> State:
        h, c = state
        total = op.add(x, op.matmul(h, weights))
        total = d.node.emit(total if bias is None else op.add(total, bias))
        i, o, f, g = (d.gate(total, k) for k in range(4))

        def peeped(value: relax.Expr, cell: relax.Expr, index: int) -> relax.Expr:
            return value if peepholes is None else op.add(value, op.multiply(d.gate(peepholes, index), cell))

        i = d.apply(0, peeped(i, c, 0))
        f = op.subtract(relax.const(1.0, d.node.dtype()), i) if is_coupled else d.apply(0, peeped(f, c, 2))
        cell = d.node.emit(op.add(op.multiply(f, c), op.multiply(i, d.apply(1, g))))
        o = d.apply(0, peeped(o, cell, 1))
        return d.node.emit(op.multiply(o, d.apply(2, cell))), cell

    return step


def _bias(d: _Direction, first: int, count: int) -> relax.Expr | None:
    """The sum of the biases of inputs and state, of the first gates."""
    both = d.part(3)
    if both is None:
        return None
    gates = _GATES[d.node.operator]
    slices = [op.strided_slice(both, [0], [start * d.hidden], [(start + count) * d.hidden]) for start in (first, first + gates)]
    return d.node.emit(op.add(*slices))


_STEPS: dict[str, Callable[[_Direction], Step]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


@converter("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> list[relax.Expr]:
    """The states of all steps (steps, directions, batch, hidden), and the last ones; with layout=1 the batch comes first."""
    is_batch_first = bool(node.attributes.get("layout", 0))
    data = node.emit(op.permute_dims(node.input(0), [1, 0, 2])) if is_batch_first else node.input(0)
    steps, batch, size = (int(d) for d in data.ty.shape.values)
    if steps > _MAX_STEPS:
        raise ValueError(f"{steps} steps, of at most {_MAX_STEPS} that are written out one after the other")
    hidden, direction = node.attributes["hidden_size"], node.attributes["direction"]
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    states = 2 if node.operator == "LSTM" else 1
    sequences: list[relax.Expr] = []
    lasts: list[list[relax.Expr]] = [[] for _ in range(states)]
    for index, is_reverse in enumerate(reversals):
        d = _Direction(node, index, hidden, _functions(node, index))
        products = op.matmul(op.reshape(data, [steps * batch, size]), d.weights(1))
        products = node.emit(op.reshape(products, [steps, batch, _GATES[node.operator] * hidden]))
        state = tuple(_initial(node, 5 + k, index, batch, hidden, is_batch_first=is_batch_first) for k in range(states))
        step = _STEPS[node.operator](d)
        outputs: list[relax.Expr | None] = [None] * steps
        for t in reversed(range(steps)) if is_reverse else range(steps):
            x = node.emit(op.reshape(op.strided_slice(products, [0], [t], [t + 1]), [batch, _GATES[node.operator] * hidden]))
            following = step(x, state)
            outputs[t] = following[0]
            if node.has(4):
                # A sequence that is over keeps its state; in reverse, one that has not begun.
                is_inside = op.reshape(op.greater(node.input(4), relax.const(t, node.dtype(4))), [batch, 1])
                state = tuple(node.emit(op.where(is_inside, new, old)) for new, old in zip(following, state, strict=True))
                outputs[t] = node.emit(op.where(is_inside, following[0], relax.const(0.0, node.dtype())))
            else:
                state = following
        sequences.append(node.emit(op.stack(outputs, axis=0)))
        for found, last in zip(lasts, state, strict=True):
            found.append(last)
    sequence = op.stack(sequences, axis=1)
    finals = [op.stack(found, axis=0) for found in lasts]
    if is_batch_first:
        sequence, finals = op.permute_dims(sequence, [2, 0, 1, 3]), [op.permute_dims(final, [1, 0, 2]) for final in finals]
    return [sequence, *finals]


def _functions(node: Node, index: int) -> tuple[Function, ...]:
    defaults = _DEFAULTS[node.operator]
    names = node.attributes.get("activations") or defaults * 2
    alphas, betas = (iter(node.attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    # Parameters are listed for those activations that take some.
    takes = {"affine": (1, 1), "leakyrelu": (1, 0), "thresholdedrelu": (1, 0), "scaledtanh": (1, 1), "hardsigmoid": (1, 1), "elu": (1, 0)}
    found = []
    for name in names:
        alpha, beta = takes.get(name.lower(), (0, 0))
        found.append(_activation(name, next(alphas, None) if alpha else None, next(betas, None) if beta else None, node.dtype()))
    return tuple(found[index * len(defaults) : (index + 1) * len(defaults)])


def _initial(node: Node, position: int, index: int, batch: int, hidden: int, *, is_batch_first: bool) -> relax.Expr:
    if not node.has(position):
        return relax.const(np.zeros((batch, hidden), node.dtype()), node.dtype())
    value = op.strided_slice(node.input(position), [1 if is_batch_first else 0], [index], [index + 1])
    return node.emit(op.reshape(value, [batch, hidden]))
