"""RNN, GRU and LSTM, which the wheel lacks: the products of all inputs as one, and one function for all steps.

The function is written in `recurrent_loop.py`.
"""

from __future__ import annotations

import math

from tvm import relax

from tvm_patches.onnx_converters.node import Node, converter
from tvm_patches.onnx_converters.recurrent_loop import Activation, Recurrence, time_loop

op = relax.op

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# Activation -> its default alpha and beta, None for a parameter that it does not have.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (1.0, None),
}
# Value of `direction` -> whether each direction goes backwards.
_REVERSALS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@converter("RNN", "GRU", "LSTM")
def recurrent(node: Node) -> list[relax.Expr]:
    """Return the states of all steps (steps, directions, batch, hidden), and the last ones.

    With layout=1, batch is first.
    """
    is_batch_first = bool(node.attributes.get("layout", 0))
    data = node.emit(op.permute_dims(node.input(0), [1, 0, 2])) if is_batch_first else node.input(0)
    steps, batch, _ = (int(d) for d in data.ty.shape.values)
    if not steps * batch:
        raise ValueError("a sequence without steps, or a batch of none")
    is_reverse = _REVERSALS[node.attributes["direction"]]
    is_linear_first = bool(node.attributes.get("linear_before_reset", 0))
    states = 2 if node.operator == "LSTM" else 1
    wanted = tuple(k for k in range(states) if len(node.is_wanted) > 1 + k and node.is_wanted[1 + k])
    work = Recurrence(
        operator=node.operator,
        steps=steps,
        batch=batch,
        hidden=int(node.attributes["hidden_size"]),
        dtype=node.dtype(),
        is_reverse=is_reverse,
        functions=_functions(node, len(is_reverse)),
        clip=node.attributes.get("clip"),
        is_linear_first=is_linear_first,
        is_coupled=bool(node.attributes.get("input_forget", 0)),
        last=wanted,
    )
    tensors = {
        "products": _products(node, data, work),
        "weight": _weight(node, work),
        **_options(node, work, is_batch_first=is_batch_first),
    }
    function = node.builder.add_func(time_loop(work, list(tensors)), node.operator.lower())
    arguments = [tensors[name] for name in work.input_shapes if name in tensors]
    result = node.emit(relax.call_tir(function, arguments, relax.TensorType(work.output_shape, work.dtype)))
    sequence = node.emit(op.strided_slice(result, [0], [0], [steps])) if wanted else result
    # An output without a name has no reader, so any tensor will do.
    lasts = [result] * states
    for at, state in enumerate(wanted):
        row = node.emit(op.strided_slice(result, [0], [steps + at], [steps + at + 1]))
        lasts[state] = node.emit(op.reshape(row, work.output_shape[1:]))
    if is_batch_first:
        sequence = op.permute_dims(sequence, [2, 0, 1, 3])
        lasts = [op.permute_dims(lasts[k], [1, 0, 2]) if k in wanted else lasts[k] for k in range(states)]
    return [sequence, *lasts]


def _products(node: Node, data: relax.Expr, work: Recurrence) -> relax.Expr:
    """Return the products of all steps' inputs with the weights of all gates and directions, plus the biases."""
    rows, size = work.steps * work.batch, node.shape(1)[-1]
    columns = math.prod(work.input_shapes["products"][2:])
    weight = node.emit(op.permute_dims(node.emit(op.reshape(node.input(1), [columns, size]))))
    products = node.emit(op.matmul(node.emit(op.reshape(data, [rows, size])), weight))
    if node.has(3):
        products = node.emit(op.add(products, _bias(node, work)))
    return node.emit(op.reshape(products, work.input_shapes["products"]))


def _bias(node: Node, work: Recurrence) -> relax.Expr:
    """Return the biases of the input and the state, without a GRU's bias before its reset gate."""
    directions, gates, hidden = len(work.is_reverse), work.gates, work.hidden
    both = node.emit(op.reshape(node.input(3), [directions, 2, gates, hidden]))
    own, states = (node.emit(op.strided_slice(both, [1], [at], [at + 1])) for at in (0, 1))
    if work.operator == "GRU":
        zeros = node.emit(op.zeros([directions, 1, 1, hidden], work.dtype))
        states = node.emit(op.concat([node.emit(op.strided_slice(states, [2], [0], [2])), zeros], axis=2))
    return node.emit(op.reshape(node.emit(op.add(own, states)), [directions * gates * hidden]))


def _weight(node: Node, work: Recurrence) -> relax.Expr:
    """Return the weight (directions, gates * hidden, k) as (directions, k, gates, hidden)."""
    directions, size, gates, hidden = work.input_shapes["weight"]
    return node.emit(
        op.permute_dims(node.emit(op.reshape(node.input(2), [directions, gates, hidden, size])), [0, 3, 1, 2])
    )


def _options(node: Node, work: Recurrence, *, is_batch_first: bool) -> dict[str, relax.Expr]:
    """Return the optional inputs that the model gives."""
    tensors: dict[str, relax.Expr] = {}
    directions, hidden = len(work.is_reverse), work.hidden
    if work.operator == "GRU" and node.has(3):
        biases = node.emit(op.reshape(node.input(3), [directions, 6, hidden]))
        tensors["inner"] = node.emit(
            op.reshape(node.emit(op.strided_slice(biases, [1], [5], [6])), [directions, hidden])
        )
    if node.has(4):
        tensors["lengths"] = node.emit(op.astype(node.input(4), "int32"))
    for position, name in ((5, "first_state"), (6, "first_cell")):
        if node.has(position):
            state = node.input(position)
            tensors[name] = node.emit(op.permute_dims(state, [1, 0, 2])) if is_batch_first else state
    if node.has(7):
        tensors["peepholes"] = node.emit(op.reshape(node.input(7), work.input_shapes["peepholes"]))
    return tensors


def _functions(node: Node, directions: int) -> tuple[tuple[Activation, ...], ...]:
    """Return each direction's activations. Only activations with parameters have entries in alpha and beta."""
    defaults = _DEFAULTS[node.operator]
    count = directions * len(defaults)
    # The standard lists an RNN's default twice, whatever its directions.
    names = [str(name).lower() for name in node.attributes.get("activations") or defaults * directions][:count]
    if len(names) != count or not set(names) <= _PARAMETERS.keys():
        raise ValueError(f"the activations {', '.join(names)} are not supported")
    alphas, betas = (iter(node.attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    functions = []
    for name in names:
        alpha, beta = (
            0.0 if default is None else next(values, default)
            for default, values in zip(_PARAMETERS[name], (alphas, betas), strict=True)
        )
        functions.append((name, float(alpha), float(beta)))
    return tuple(tuple(functions[at : at + len(defaults)]) for at in range(0, len(functions), len(defaults)))
