"""Random graphs of one to four operators, each from a seed and a number. `fuzz_graphs.py` compiles and runs them.

A graph is made node by node and computed immediately by onnxruntime, so every added operator has valid inputs and a
known result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 21
_MOST_ELEMENTS = 20_000
SPECIAL = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-30,
    -1e-30,
    1e18,
    -1e18,
    1.0,
    -1.0,
    0.5,
    2.5,
    88.8,
    -104.0,
    2147483648.0,
    16777217.0,
)
FLOATS = ("float32", "float32", "float32", "float32", "float16", "float64")


class UnfitError(Exception):
    """The operator cannot be added here: no tensor fits, or onnxruntime has no kernel for it."""


@dataclass(frozen=True)
class Case:
    """A graph with a value for every tensor in it.

    values: name -> array, for inputs, constants and results
    exact: names with values that decide about shapes or branches, and are never perturbed
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    values: dict[str, np.ndarray] = field(repr=False)
    exact: frozenset[str] = frozenset()

    def model(self) -> onnx.ModelProto:
        """Return the graph as an ONNX model, without types of intermediate tensors."""
        infos = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(self.values[n].dtype), self.values[n].shape
            )
            for n in self.inputs
        ]
        results = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.values[n].dtype), None)
            for n in self.outputs
        ]
        weights = [numpy_helper.from_array(self.values[n], n) for n in self.constants]
        graph = helper.make_graph(list(self.nodes), "graph", infos, results, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the values of the inputs by name."""
        return {name: self.values[name] for name in self.inputs}

    def operators(self) -> str:
        """Return the names of the operators, in order."""
        return " ".join(node.op_type for node in self.nodes)

    def without(self, position: int) -> Case | None:
        """Return the graph without one node. Results of the node become inputs if others read them. None for the only
        node.
        """
        gone = self.nodes[position]
        rest = (*self.nodes[:position], *self.nodes[position + 1 :])
        if not rest:
            return None
        read = {name for node in rest for name in node.input}
        made = {name for node in rest for name in node.output}
        inputs = tuple(n for n in self.inputs if n in read) + tuple(n for n in gone.output if n in read)
        outputs = tuple(n for n in self.outputs if n in made)
        unread = tuple(n for node in rest for n in node.output if n and n not in read and n not in outputs)
        return replace(
            self,
            nodes=rest,
            inputs=inputs,
            constants=tuple(n for n in self.constants if n in read),
            outputs=(*outputs, *unread),
        )


def together(cases: Mapping[str, Case]) -> Case:
    """Return the graphs as one. Names of tensors and nodes begin with the graph's key."""
    nodes = []
    for key, case in cases.items():
        for node in case.nodes:
            renamed = onnx.NodeProto()
            renamed.CopyFrom(node)
            renamed.name = key + node.name
            renamed.input[:] = [name and key + name for name in node.input]
            renamed.output[:] = [name and key + name for name in node.output]
            nodes.append(renamed)

    def names(part: str) -> tuple[str, ...]:
        return tuple(key + name for key, case in cases.items() for name in getattr(case, part))

    return Case(
        tuple(nodes),
        names("inputs"),
        names("constants"),
        names("outputs"),
        {key + name: value for key, case in cases.items() for name, value in case.values.items()},
        frozenset(names("exact")),
    )


def compute(node: onnx.NodeProto, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return onnxruntime's results of one node, without its optimizations. UnfitError if it has none.

    Some operators are computed by their definitions, because onnxruntime adds large numbers to small ones.
    """
    if node.op_type in _BY_FORMULA:
        with np.errstate(all="ignore"):
            return [np.asarray(_BY_FORMULA[node.op_type](node, *given), given[0].dtype)]
    unique = dict(zip(dict.fromkeys(name for name in node.input if name), given, strict=True))
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in unique.items()
    ]
    graph = helper.make_graph([node], "node", infos, [helper.make_empty_tensor_value_info(n) for n in node.output if n])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(None, unique)]
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise UnfitError(f"{node.op_type}: {str(error).splitlines()[0]}") from error


def _response_normalized(node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
    settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    size, bias = settings["size"], settings.get("bias", 1.0)
    alpha, beta = settings.get("alpha", 1e-4), settings.get("beta", 0.75)
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(np.square(x), pads), size, axis=1)
    return np.asarray(x / np.power(bias + alpha / size * windows.sum(-1), beta))


def _instance_normalized(node: onnx.NodeProto, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    axes, by_channel = tuple(range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axes, keepdims=True) + epsilon)
    return np.asarray(centred / deviation * scale.reshape(by_channel) + bias.reshape(by_channel))


def _sigmoid(node: onnx.NodeProto, x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)). Onnxruntime's is off by 1e-7, which is all of a small result."""
    result: np.ndarray = 1 / (1 + np.exp(-x.astype(np.float64)))
    return result


_BY_FORMULA: dict[str, Callable[..., np.ndarray]] = {
    "Sigmoid": _sigmoid,
    "LRN": _response_normalized,
    "InstanceNormalization": _instance_normalized,
}


class Builder:
    """A growing graph. Operators read existing tensors, or new inputs and constants."""

    def __init__(self, rng: np.random.Generator, *, is_special: bool, dtypes: Sequence[str] = FLOATS) -> None:
        self.rng = rng
        self.is_special = is_special
        self.dtype = str(rng.choice(list(dtypes)))
        self.values: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.exact: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []

    # Random choices.

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included. UnfitError if there is none."""
        if high < low:
            raise UnfitError("nothing to choose from")
        return int(self.rng.integers(low, high + 1))

    def pick(self, choices: Sequence[Any]) -> Any:
        """Draw one of the choices. UnfitError if there is none."""
        if not choices:
            raise UnfitError("nothing to choose from")
        return choices[int(self.rng.integers(len(choices)))]

    def size(self) -> int:
        return int(self.pick((1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17)))

    def shape(self, rank: int) -> tuple[int, ...]:
        while True:
            shape = tuple(self.size() for _ in range(rank))
            if np.prod(shape) <= _MOST_ELEMENTS:
                break
        if rank and self.chance(0.02):
            shape = tuple(0 if i == self.whole(0, rank - 1) else s for i, s in enumerate(shape))
        return shape

    def numbers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Draw random values: floats of one of a few kinds, integers of small size or of their
        whole range, booleans.
        """
        kind = np.dtype(dtype)
        if kind == np.bool_:
            return self.rng.random(shape) < 0.5
        if kind.kind in "iu":
            info = np.iinfo(kind)
            if self.is_special and self.chance(0.2):
                return self.rng.integers(info.min, info.max, shape, dtype=kind, endpoint=True)
            return self.rng.integers(max(info.min, -9), 10, shape).astype(kind)
        values = self.rng.standard_normal(shape)
        style = self.whole(0, 5)
        if style == 0:
            values = np.round(values * 3)
        elif style == 1:
            values = values * 30 + 5
        values = np.asarray(values)
        if self.is_special and self.chance(0.5) and values.size:
            places = self.rng.random(values.shape) < 0.2
            values[places] = self.rng.choice(SPECIAL, int(places.sum()))
        with np.errstate(over="ignore"):
            return values.astype(kind)

    # Tensors.

    def fresh(self, shape: Sequence[int], dtype: str | None = None, constant: bool | None = None) -> str:
        """Add a new input or constant."""
        return self.given(self.numbers(shape, dtype or self.dtype), constant)

    def given(self, array: np.ndarray, constant: bool | None = None, *, exact: bool = False) -> str:
        is_constant = self.chance(0.3) if constant is None else constant
        name = f"{'c' if is_constant else 'x'}{len(self.values)}"
        self.values[name] = np.asarray(array)
        (self.constants if is_constant else self.inputs).append(name)
        if exact:
            self.exact.add(name)
        return name

    def fixed(self, values: Any, dtype: str = "int64") -> str:
        """Add a constant that decides about shapes, axes or branches."""
        return self.given(np.asarray(values, dtype), True, exact=True)

    def any(
        self,
        *,
        ranks: Sequence[int] = (0, 1, 2, 3, 4, 5, 6),
        kinds: str = "f",
        filled: bool = False,
        finite: bool = False,
    ) -> str:
        """Return a tensor of one of these ranks and kinds (f floats, i integers, u unsigned, b booleans): a result if
        one fits, or a new one.

        filled: with elements
        finite: without NaN and infinities, which onnxruntime and Romou treat differently
        """
        fitting = [
            name
            for name, array in self.values.items()
            if array.ndim in ranks
            and array.dtype.kind in kinds
            and (array.size or not filled)
            and name not in self.exact
            and array.size <= _MOST_ELEMENTS
            if not finite or np.isfinite(array).all()
        ]
        results = [name for name in fitting if name not in self.inputs and name not in self.constants]
        if results and self.chance(0.85):
            return str(self.pick(results[-2:]))
        if fitting and self.chance(0.2):
            return str(self.pick(fitting))
        dtypes = {
            "f": (self.dtype,),
            "i": ("int64", "int32", "int8", "int16"),
            "u": ("uint8", "uint8", "uint16", "uint32", "uint64"),
            "b": ("bool",),
        }
        dtype = str(self.pick(dtypes[self.pick(kinds)]))
        while True:
            shape = self.shape(int(self.pick(ranks)))
            if not filled or np.prod(shape):
                break
        values = self.numbers(shape, dtype)
        if finite:
            values = np.nan_to_num(values, nan=1, posinf=2, neginf=-2)
        # The first tensor of a graph is an input: with only constants nothing would be left to run.
        return self.given(values, constant=None if self.inputs else False)

    def array(self, name: str) -> np.ndarray:
        return self.values[name]

    def dims(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def like(self, name: str, shape: Sequence[int], constant: bool | None = None) -> str:
        """Return a new tensor of the dtype of another."""
        return self.fresh(shape, self.array(name).dtype.name, constant)

    def add(self, operator: str, *reads: str, outputs: int = 1, **attributes: Any) -> tuple[str, ...]:
        """Add a node and compute it."""
        names = tuple(f"t{len(self.nodes)}_{i}" for i in range(outputs))
        node = helper.make_node(operator, list(reads), list(names), name=f"n{len(self.nodes)}", **attributes)
        with np.errstate(all="ignore"):
            arrays = compute(node, [self.values[name] for name in dict.fromkeys(n for n in reads if n)])
        if any(array.size > 4 * _MOST_ELEMENTS or array.ndim > 8 for array in arrays):
            raise UnfitError(f"{operator}: too large")
        self.nodes.append(node)
        self.values.update(zip(names, arrays, strict=True))
        return names

    def case(self) -> Case:
        """Return the graph. Its outputs are the tensors that no node reads, and one in ten of the others."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        outputs = tuple(name for name in made if name not in read or self.chance(0.1))
        inputs, constants = (tuple(n for n in names if n in read) for names in (self.inputs, self.constants))
        values = {name: self.values[name] for name in (*inputs, *constants, *made)}
        return Case(tuple(self.nodes), inputs, constants, outputs, values, frozenset(self.exact))


# Operators of integers that compute in floats and cut off.
_CUT_OFF = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "Resize")
# Sums of products. One of negative zeros alone is negative only if it does not begin at zero.
_OF_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Reductions of integers in double precision, which holds no odd ones above 2**53: their order decides the last bits.
_IN_DOUBLES = ("ReduceMean", "ReduceL2", "ReduceLogSumExp")


def reference(
    case: Case,
    *,
    seed: int | None = None,
    direction: int = 0,
    epsilon: float = 0.0,
    is_wide: bool = False,
    is_narrow: bool = False,
) -> dict[str, np.ndarray]:
    """Return every tensor, computed node by node. With a seed or a direction, floats are perturbed by `epsilon`,
    relative, before and after each node, and so are those that an integer is cut off from.

    The movement of the results under perturbation bounds the effect of rounding. UnfitError if a perturbed graph cannot
    be computed.

    direction: 1 moves every float up, -1 down. 0 moves it at random.
    is_wide: computes with fp32 instead of fp16, as kernels do that join several nodes
    is_narrow: every fp32 tensor is stored as fp16
    """
    rng = np.random.default_rng(seed)
    is_exact = seed is None and not direction

    def noise(shape: tuple[int, ...]) -> Any:
        return direction or rng.standard_normal(shape)

    def moved(name: str, array: np.ndarray) -> np.ndarray:
        if is_exact or array.dtype.kind != "f" or name in case.exact:
            return array
        own = max(epsilon, 4 * float(np.finfo(array.dtype).eps))
        with np.errstate(all="ignore"):
            values = np.asarray(array * (1 + own * noise(array.shape)), array.dtype)
            # Functions such as x ** y are other ones at whole numbers, which noise does not meet.
            is_whole = (np.abs(array - np.rint(array)) <= own * np.abs(array)) & (rng.random(array.shape) < 0.5)
            return np.where(is_whole & (direction == 0), np.rint(array), values)

    def computed(node: onnx.NodeProto, given: list[np.ndarray]) -> list[np.ndarray]:
        arrays = compute(node, given)
        if is_exact:
            return arrays
        if node.op_type == "Gelu":
            return [_moved_by_cancellation(arrays[0], given[0], epsilon, noise(given[0].shape))]
        if arrays[0].dtype.kind == "f":
            return [_with_other_zeros(arrays[0], noise(arrays[0].shape))] if node.op_type in _OF_PRODUCTS else arrays
        if node.op_type in _IN_DOUBLES and np.abs(given[0].astype("float64")).max(initial=0.0) > 2.0**53:
            return [_moved_last_bits(arrays[0], given[0], noise(arrays[0].shape))]
        if node.op_type not in _CUT_OFF:
            return arrays
        return [_moved_to_neighbours(node, given, arrays[0], epsilon, noise)]

    def stored(array: np.ndarray) -> np.ndarray:
        if is_wide and array.dtype == np.float16:
            return array.astype(np.float32)
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(array.dtype) if is_narrow and array.dtype == np.float32 else array

    values = {name: stored(moved(name, case.values[name])) for name in (*case.inputs, *case.constants)}
    for node in case.nodes:
        given = [values[name] for name in dict.fromkeys(n for n in node.input if n)]
        # A wide kernel does not round between its operators.
        keeps = is_wide and node.op_type == "Cast" and given[0].dtype == np.float32 == case.values[node.input[0]].dtype
        keeps &= case.values[node.output[0]].dtype == np.float16
        arrays = given if keeps else computed(node, given)
        names = (n for n in node.output if n)
        values.update({name: stored(moved(name, array)) for name, array in zip(names, arrays, strict=True)})
    if is_wide:
        with np.errstate(over="ignore"):
            return {name: array.astype(case.values[name].dtype) for name, array in values.items()}
    return values


def _moved_to_neighbours(
    node: onnx.NodeProto,
    given: list[np.ndarray],
    array: np.ndarray,
    epsilon: float,
    noise: Callable[[tuple[int, ...]], Any],
) -> np.ndarray:
    """Return integers that a node cuts off from floats, with the floats moved."""
    (exact,) = compute(node, [given[0].astype("float32"), *given[1:]])
    own = max(epsilon, 4 * float(np.finfo("float32").eps))
    info = np.iinfo(array.dtype)
    with np.errstate(all="ignore"):
        size = np.abs(exact) + np.abs(given[0].astype("float64")).max(initial=0.0)
        near = np.clip(np.trunc(exact + own * size * noise(exact.shape)), float(info.min), float(info.max))
    # An integer that fp32 cannot hold is far from being cut off to another one.
    return np.asarray(np.where(np.abs(exact) < 2.0**22, near, array), array.dtype)


def _moved_by_cancellation(array: np.ndarray, given: np.ndarray, epsilon: float, noise: Any) -> np.ndarray:
    """Return results of Gelu with a moved sum 1 + erf(x). Far below zero, nothing but its rounding is left of it."""
    own = max(epsilon, 4 * float(np.finfo(given.dtype).eps))
    with np.errstate(all="ignore"):
        return np.asarray(array + own / 2 * given * noise, array.dtype)


def _with_other_zeros(array: np.ndarray, noise: Any) -> np.ndarray:
    """Return an array whose zeros have the signs of `noise`."""
    return np.where(array == 0, np.copysign(array, noise).astype(array.dtype), array)


def _moved_last_bits(array: np.ndarray, given: np.ndarray, noise: Any) -> np.ndarray:
    """Return integers moved by some roundings of a sum of `given` in double precision."""
    step = 4 * float(np.finfo(np.float64).eps) * np.abs(given.astype(np.float64)).max()
    limits = np.iinfo(array.dtype)
    moved = array.astype(object) + np.asarray(np.trunc(step * noise), object)
    return np.asarray(np.clip(moved, limits.min, limits.max), array.dtype).reshape(array.shape)


def by_definition(case: Case) -> dict[str, np.ndarray]:
    """Return the outputs by ONNX's reference, which follows the operators' definitions.

    Without the outputs that have another type or shape, or that the reference cannot compute.
    """
    arrays = {}
    for name in case.outputs:
        part = _part_for(case, name)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (output,) = cast("list[np.ndarray]", ReferenceEvaluator(part.model()).run(None, part.arrays()))
                arrays[name] = np.asarray(output)
        except Exception:  # the reference's errors share no base class
            continue
    return {
        # Sums of integers are wider in NumPy, and overflow when they are stored.
        name: array.astype(case.values[name].dtype)
        for name, array in arrays.items()
        if array.shape == case.values[name].shape and array.dtype.kind == case.values[name].dtype.kind
    }


def _part_for(case: Case, output: str) -> Case:
    """Return the nodes that an output depends on, as a graph."""
    needed, nodes = {output}, list[onnx.NodeProto]()
    for node in reversed(case.nodes):
        if needed & {*node.output}:
            nodes.insert(0, node)
            needed |= {*node.input}
    inputs, constants = (tuple(name for name in names if name in needed) for names in (case.inputs, case.constants))
    return Case(tuple(nodes), inputs, constants, (output,), case.values)
