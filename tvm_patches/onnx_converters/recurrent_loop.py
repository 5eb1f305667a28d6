"""The time loop of RNN, GRU and LSTM as one TIR function.

A sequence of any length has one weight and one set of kernels.

    for t: for d, b, j:
        sums[g] = sum over k of state[t % 2, d, b, k] * weight[d, k, g, j]
        state[(t + 1) % 2, d, b, j], output[t, d, b, j] = step(sums, products[t, b, d, :, j])
        output[steps, d, b, j] = state[(t + 1) % 2, d, b, j], if the last state is read

`romou/compiler/operators/kernels/recurrent.py` makes a kernel of each nest below the time loop, which the host launches
for each step. All units read the state before a step, so the states before and after it are both kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx

# Mark of a function with loop nests in its root block, and of the time loop around some of them. Each nest is over
# directions, sequences of the batch and hidden units.
TIME_LOOP = "romou.time_loop"
# Mark of the loop over the summed units.
SUMMED = "romou.summed"
# TVM's pattern kind for "nothing is fused with it".
_OPAQUE = 8
# Type of states between steps, and of sums.
_FLOAT = "float32"
# Activations: name as ONNX has it, alpha, beta.
Activation = tuple[str, float, float]


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """A recurrent node over a sequence. Units of all directions and sequences advance together.

    operator: "RNN", "GRU" or "LSTM".   dtype: of inputs and outputs.
    is_reverse: of each direction.   functions: activations of each direction.
    is_linear_first: GRU: the reset gate is applied behind the product.
    is_coupled: LSTM: the forget gate is 1 - the input gate.
    last: which last states follow the steps' outputs, 0 hidden, 1 cell.
    """

    operator: str
    steps: int
    batch: int
    hidden: int
    dtype: str
    is_reverse: tuple[bool, ...]
    functions: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    is_linear_first: bool = False
    is_coupled: bool = False
    last: tuple[int, ...] = ()

    @property
    def gates(self) -> int:
        """The number of products of a step for each hidden unit."""
        return {"RNN": 1, "GRU": 3, "LSTM": 4}[self.operator]

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of all possible inputs of the function, in order. Inputs after the weight are optional.

        products: of the inputs with their weights, and the biases.
        inner: GRU: the bias added to the hidden gate's sum before the reset gate.
        """
        each = (len(self.is_reverse), self.batch, self.hidden)
        return {
            "products": (self.steps, self.batch, len(self.is_reverse), self.gates, self.hidden),
            "weight": (len(self.is_reverse), self.hidden, self.gates, self.hidden),
            "inner": (len(self.is_reverse), self.hidden),
            "peepholes": (len(self.is_reverse), 3, self.hidden),
            "lengths": (self.batch,),
            "first_state": each,
            "first_cell": each,
        }

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output: (steps and then the last states, directions, batch, hidden units)."""
        return (self.steps + len(self.last), len(self.is_reverse), self.batch, self.hidden)


def time_loop(work: Recurrence, inputs: Sequence[str]) -> tirx.PrimFunc:
    """Return the function of `inputs`, which are names, and of the output."""
    return _TimeLoop(work, inputs).function()


class _TimeLoop:
    """The loop over time.

    buffers: parameters, and values kept between steps, by name.
    registers: of one unit.
    """

    def __init__(self, work: Recurrence, inputs: Sequence[str]) -> None:
        shapes = work.input_shapes
        self.work, self.inputs = work, [name for name in shapes if name in inputs]
        each = shapes["first_state"]
        kept: dict[str, tuple[int, ...]] = {"state": (2, *each)}
        kept |= {"cell": each} if work.operator == "LSTM" else {}
        kept |= (
            {"update_gate": each, "reset_state": each} if work.operator == "GRU" and not work.is_linear_first else {}
        )
        self._kept = {name: tirx.decl_buffer(shape, _FLOAT, name) for name, shape in kept.items()}
        dtypes = {name: "int32" if name == "lengths" else work.dtype for name in self.inputs}
        self.buffers = {name: tirx.decl_buffer(shapes[name], dtype, name) for name, dtype in dtypes.items()}
        self.buffers |= {"output": tirx.decl_buffer(work.output_shape, work.dtype, "output"), **self._kept}
        self.registers: list[tirx.Buffer] = []
        self.t = tirx.Var("t", "int32")

    def function(self) -> tirx.PrimFunc:
        """Return all loop nests in the order of execution."""
        work = self.work
        if "reset_state" in self.buffers:
            # A GRU's product with the reset state needs the gates of all units.
            steps = [self._step(_reset, range(2)), self._step(_gru, range(2, 3), "reset_state")]
        else:
            steps = [self._step(_STEPS[work.operator], range(work.gates))]
        body = [
            self._nest(self._first()),
            _loop(self.t, work.steps, _sequence(steps), {TIME_LOOP: tirx.const(1, "int32")}),
        ]
        kept = [*self._kept.values(), *self.registers]
        root = s_tir.SBlock([], [], [], "root", _sequence(body), alloc_buffers=kept)
        parameters = [self.buffers[name] for name in (*self.inputs, "output")]
        made = tirx.PrimFunc(parameters, s_tir.SBlockRealize([], True, root))
        return made.with_attr({TIME_LOOP: 1, "op_pattern": _OPAQUE, "tirx.noalias": True})

    def load(self, name: str, *indices: tirx.Expr | int) -> tirx.Expr:
        """Read a number in the type of the computation."""
        value = tirx.BufferLoad(self.buffers[name], list(indices))
        return value if name == "lengths" else value.astype(_FLOAT)

    def store(self, name: str, value: tirx.Expr, *indices: tirx.Expr | int) -> tirx.Stmt:
        """Write a number in the type of the buffer."""
        buffer = self.buffers[name]
        return tirx.BufferStore(buffer, value.astype(str(buffer.dtype)), list(indices))

    def register(self, name: str, extent: int) -> tirx.Buffer:
        """Return a buffer for a few numbers of one unit."""
        self.registers.append(tirx.decl_buffer([extent], _FLOAT, name, scope="local"))
        return self.registers[-1]

    def _first(self) -> Callable[[_Unit], None]:
        """Return the function that writes the states before the first step."""

        def run(unit: _Unit) -> None:
            states = {"first_state": ("state", 0, *unit.place), "first_cell": ("cell", *unit.place)}
            for first, (state, *indices) in states.items():
                if state in self.buffers:
                    value = self.load(first, *unit.place) if first in self.inputs else tirx.const(0.0, _FLOAT)
                    unit.steps.append(self.store(state, value, *indices))

        return run

    def _nest(self, run: Callable[[_Unit], None], unit: _Unit | None = None) -> tirx.Stmt:
        """Return a loop nest over units with the statements that `run` adds."""
        unit = unit or _Unit(self, [tirx.Var(name, "int32") for name in ("d", "b", "j")])
        run(unit)
        body = _sequence(unit.steps)
        for var, extent in reversed(list(zip(unit.place, self.work.input_shapes["first_state"], strict=True))):
            body = _loop(var, extent, body)
        return body

    def _step(self, run: Callable[[_Unit], None], gates: range, summed: str = "state") -> tirx.Stmt:
        """Return a nest that first sums up the products of some gates, and then calls `run`."""
        d, b, j, k, g, zero = (tirx.Var(name, "int32") for name in ("d", "b", "j", "k", "g", "z"))
        sums = self.register("sums", len(gates))
        read = self.load(summed, *((self.t % 2, d, b, k) if summed == "state" else (d, b, k)))
        total = tirx.BufferLoad(sums, [g]) + read * self.load("weight", d, k, g + gates.start, j)
        products = _loop(g, len(gates), tirx.BufferStore(sums, total, [g]))
        unit = _Unit(self, [d, b, j], sums)
        unit.steps.append(_loop(zero, len(gates), tirx.BufferStore(sums, tirx.const(0.0, _FLOAT), [zero])))
        unit.steps.append(_loop(k, self.work.hidden, products, {SUMMED: tirx.const(1, "int32")}))
        return self._nest(run, unit)


class _Unit:
    """A hidden unit of a sequence and a direction, in one step.

    place: its indices.
    steps: its statements so far.
    """

    def __init__(self, loop: _TimeLoop, place: list[tirx.Var], sums: tirx.Buffer | None = None) -> None:
        self._loop, self.place, self._sums = loop, place, sums
        self.steps: list[tirx.Stmt] = []

    def sum(self, at: int) -> tirx.Expr:
        """Return the product of the state and the weights of gate number `at`."""
        assert self._sums is not None
        return tirx.BufferLoad(self._sums, [at])

    def input(self, gate: int) -> tirx.Expr:
        """Return the product with the input."""
        d, b, j = self.place
        return self._loop.load("products", self._time, b, d, gate, j)

    def total(self, gate: int) -> tirx.Expr:
        return self.input(gate) + self.sum(gate)

    def inner(self, at: int) -> tirx.Expr:
        """Return the sum of a GRU's hidden gate."""
        d, _, j = self.place
        return self.sum(at) + self._loop.load("inner", d, j) if "inner" in self._loop.inputs else self.sum(at)

    def peeped(self, value: tirx.Expr, gate: int, cell: tirx.Expr) -> tirx.Expr:
        d, _, j = self.place
        return value + self._loop.load("peepholes", d, gate, j) * cell if "peepholes" in self._loop.inputs else value

    def state(self) -> tirx.Expr:
        """Return the hidden state before the step."""
        return self._loop.load("state", self._loop.t % 2, *self.place)

    def keep(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """Compute a value once."""
        register = self._loop.register(name, 1)
        self.steps.append(tirx.BufferStore(register, value, [0]))
        return tirx.BufferLoad(register, [0])

    def apply(self, index: int, value: tirx.Expr, *, is_bounded: bool = True) -> tirx.Expr:
        """Return an activation of a value. The value is first clipped if `is_bounded` and the node has a clip."""
        work = self._loop.work
        if work.clip is not None and is_bounded:
            value = tirx.min(tirx.max(value, tirx.const(-work.clip, _FLOAT)), tirx.const(work.clip, _FLOAT))
        first, *others = (functions[index] for functions in work.functions)
        value = self.keep("argument", value)
        if all(other == first for other in others):
            return self.keep("gate", activated(first, value))
        return self.keep("gate", tirx.Select(self.place[0] < 1, activated(first, value), activated(others[0], value)))

    def finish(self, hidden: tirx.Expr, cell: tirx.Expr | None = None) -> None:
        """Store the states after the step. A sequence that is over, or in reverse has not begun, keeps its state."""
        loop, zero = self._loop, tirx.const(0.0, _FLOAT)
        hidden, output = self.keep("hidden", hidden), None
        if "lengths" in loop.inputs:
            is_inside = self._time < loop.load("lengths", self.place[1])
            output, hidden = tirx.Select(is_inside, hidden, zero), tirx.Select(is_inside, hidden, self.state())
            cell = None if cell is None else tirx.Select(is_inside, cell, loop.load("cell", *self.place))
        self.steps.append(loop.store("output", hidden if output is None else output, self._time, *self.place))
        self.steps.append(loop.store("state", hidden, (loop.t + 1) % 2, *self.place))
        if cell is not None:
            self.steps.append(loop.store("cell", cell, *self.place))
        # Each step overwrites the last states, so that no code depends on the number of steps being odd or even.
        for at, is_cell in enumerate(loop.work.last):
            self.steps.append(loop.store("output", cell if is_cell else hidden, loop.work.steps + at, *self.place))

    @property
    def _time(self) -> tirx.Expr:
        """Return the step's position in the sequence."""
        work, t = self._loop.work, self._loop.t
        if len(work.is_reverse) == 2:
            return tirx.Select(self.place[0] < 1, t, work.steps - 1 - t)
        return work.steps - 1 - t if work.is_reverse[0] else t

    def store(self, name: str, value: tirx.Expr) -> None:
        """Store a number of the unit for the next nest."""
        self.steps.append(self._loop.store(name, value, *self.place))

    def kept(self, name: str) -> tirx.Expr:
        """Return the value that a nest before this one stored."""
        return self._loop.load(name, *self.place)

    @property
    def work(self) -> Recurrence:
        return self._loop.work


def _rnn(unit: _Unit) -> None:
    unit.finish(unit.apply(0, unit.total(0)))


def _reset(unit: _Unit) -> None:
    unit.store("update_gate", unit.apply(0, unit.total(0)))
    unit.store("reset_state", unit.apply(0, unit.total(1)) * unit.state())


def _gru(unit: _Unit) -> None:
    if unit.work.is_linear_first:
        update, reset = unit.apply(0, unit.total(0)), unit.apply(0, unit.total(1))
        hidden = unit.apply(1, unit.input(2) + reset * unit.inner(2))
    else:
        update, hidden = unit.kept("update_gate"), unit.apply(1, unit.input(2) + unit.inner(0))
    unit.finish((1.0 - update) * hidden + update * unit.state())


def _lstm(unit: _Unit) -> None:
    cell = unit.kept("cell")
    now = unit.apply(0, unit.peeped(unit.total(0), 0, cell))
    forget = 1.0 - now if unit.work.is_coupled else unit.apply(0, unit.peeped(unit.total(2), 2, cell))
    new = unit.keep("new_cell", forget * cell + now * unit.apply(1, unit.total(3)))
    output = unit.apply(0, unit.peeped(unit.total(1), 1, new))
    # As in onnxruntime, the cell is no gate, so it is not bounded.
    unit.finish(output * unit.apply(2, new, is_bounded=False), new)


_STEPS: dict[str, Callable[[_Unit], None]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def activated(activation: Activation, x: tirx.Expr) -> tirx.Expr:
    """Return an activation of a number by the ONNX standard."""
    name, alpha, beta = activation
    zero, one, a, b = (tirx.const(value, _FLOAT) for value in (0.0, 1.0, alpha, beta))
    formulas: dict[str, Callable[[], tirx.Expr]] = {
        "tanh": lambda: tirx.tanh(x),
        "sigmoid": lambda: tirx.sigmoid(x),
        "relu": lambda: tirx.max(x, zero),
        "affine": lambda: a * x + b,
        "leakyrelu": lambda: tirx.Select(x < zero, a * x, x),
        "thresholdedrelu": lambda: tirx.Select(x > a, x, zero),
        "scaledtanh": lambda: a * tirx.tanh(b * x),
        "hardsigmoid": lambda: tirx.min(tirx.max(a * x + b, zero), one),
        "elu": lambda: tirx.Select(x < zero, a * (tirx.exp(x) - one), x),
        "softsign": lambda: x / (one + tirx.abs(x)),
        # The exponential of a large number is infinite.
        "softplus": lambda: tirx.max(x, zero) + tirx.log(one + tirx.exp(zero - tirx.abs(x))),
    }
    return formulas[name]()


def _loop(var: tirx.Var, extent: int, body: tirx.Stmt, marks: dict[str, tirx.Expr] | None = None) -> tirx.Stmt:
    return tirx.For(
        var, tirx.const(0, "int32"), tirx.const(extent, "int32"), tirx.ForKind.SERIAL, body, annotations=marks or {}
    )


def _sequence(steps: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return steps[0] if len(steps) == 1 else tirx.SeqStmt(list(steps))
