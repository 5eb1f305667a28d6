"""The precision that a model computes in: its own, fp16, or fp16 for all nodes that keep the model's error small."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from romou.base.errors import ModelError, UsageError, first_line, unknown_name
from romou.base.inputs import checked_inputs, random_inputs
from romou.compiler.frontend.fp16 import FP16_MAX, Fp16Plan, rounded
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.host_table import unserved
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.frontend.onnx_graph import Graph, first_output, shapes_of, types_of
from romou.compiler.frontend.onnxruntime_session import cpu_session
from romou.compiler.frontend.wide_nodes import wide_nodes

logger = logging.getLogger("romou")

AS_GIVEN, FP16, MIXED = "float32", "float16", "mixed"
# Bound of the relative L2 error of the worst output of an fp16 model, against onnxruntime in fp32.
TOLERANCE = 1e-2
# Share of the bound for the rounding of stored tensors. The rest is for fp16 sums, which each kernel's check allows.
_ROUNDED = TOLERANCE / 2
# Inputs that confirm the choice of "mixed": seeds of random ones, and the relative change of given ones.
_OTHERS, _VARIED = (1, 2), 0.03
_PREFIX = "romou.fp16/"
# Number of layers in a message.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The requested precision.

    kind: "float32" (the model's types), "float16" or "mixed".
    io: type of float inputs and outputs, "float16" or None for the model's types.
    calibration: inputs by name, to measure ranges and errors on. If empty, random inputs.
    kept: first outputs of nodes that stay fp32.
    is_quiet: whether to skip the check of ranges.
    """

    kind: str = AS_GIVEN
    io: str | None = None
    calibration: tuple[Mapping[str, np.ndarray], ...] = ()
    kept: frozenset[str] = field(default_factory=frozenset)
    is_quiet: bool = False

    @classmethod
    def checked(cls, kind: str, io: str | None, calibration: Sequence[Mapping[str, np.ndarray]] | None) -> Precision:
        """Return the arguments of a public function as a Precision. Raise UsageError if they are invalid."""
        if kind not in (AS_GIVEN, FP16, MIXED):
            raise unknown_name("precision", str(kind), (AS_GIVEN, FP16, MIXED))
        if io not in (None, AS_GIVEN, FP16):
            raise unknown_name("io_precision", str(io), (AS_GIVEN, FP16))
        if kind == AS_GIVEN and io == FP16:
            raise UsageError(
                "io_precision='float16' is for precision='float16' or 'mixed'; precision is 'float32', which leaves the"
                " model's types as they are"
            )
        if calibration is not None and (
            isinstance(calibration, Mapping | str) or not isinstance(calibration, Sequence) or not calibration
        ):
            raise UsageError(
                "calibration must be a list of inputs, each as {name: array}, and not empty",
                hint="For example calibration=[{'input': x}].",
            )
        return cls(kind=kind, io=io, calibration=tuple(calibration or ()))

    def of_parts(self) -> Precision:
        """Return the precision for sub-models: the same nodes in fp32, and no checks. Inputs keep their types."""
        return replace(self, kind=FP16 if self.kind == MIXED else self.kind, io=None, calibration=(), is_quiet=True)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A node's output on the calibration inputs.

    error: relative L2 error if all nodes are fp16 that may be.
    magnitude: largest absolute value.
    """

    name: str
    output: str
    error: float
    magnitude: float

    @property
    def overflows(self) -> bool:
        """Return whether finite elements exceed fp16's range. fp16 has infinity."""
        return FP16_MAX < self.magnitude < np.inf


def fp32_nodes(
    model: onnx.ModelProto, precision: Precision, signature: Mapping[str, tuple[tuple[int, ...], str]]
) -> frozenset[str]:
    """Return the first outputs of the nodes of a folded model that stay fp32: nodes on the host, and for "mixed" more.

    For "float16", these are nodes that overflow and their readers, with a warning, if onnxruntime can run the model.

    Raises
    ------
    UsageError
        The calibration inputs are not the model's.
    ModelError
        "mixed" was requested, and onnxruntime cannot run the model.
    """
    kept = precision.kept | {first_output(model.graph.node[i]) for i in unserved(model)}
    if precision.is_quiet:
        return kept
    draws = draws_of(model)
    samples = list(precision.calibration) or [random_inputs(signature, 0, draws)]
    for sample in samples:
        checked_inputs(sample, signature)
    check = _Check(model, samples)
    if precision.kind == MIXED:
        others = [_varied(sample, seed) for seed, sample in enumerate(precision.calibration)] or [
            random_inputs(signature, seed, draws) for seed in _OTHERS
        ]
        return _sensitive(check, _Check(model, others), kept)
    try:
        over = [layer for layer in _overflowing(check, kept) if layer.output not in kept]
    except ModelError as error:
        logger.warning("%s, so overflow of fp16 is not looked for", error.message)
        return kept
    if not over:
        return kept
    in_fp32 = kept | _with_readers(Graph(model), {layer.output for layer in over})
    _warn_of_overflow(over, len(in_fp32 - kept), is_calibrated=bool(precision.calibration))
    return in_fp32


def fp16_error(
    model: onnx.ModelProto, signature: Mapping[str, tuple[tuple[int, ...], str]]
) -> tuple[float, list[Layer]]:
    """Return the error of a folded model's worst output in fp16 on random inputs, and its nodes with their ranges.

    Raises
    ------
    ModelError
        onnxruntime cannot run the model.
    """
    kept = frozenset(first_output(model.graph.node[i]) for i in unserved(model))
    return _Check(model, [random_inputs(signature, 0, draws_of(model))]).errors(kept)


def _varied(sample: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Return inputs with floats that differ from the given ones by a few percent."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            (value * (1 + _VARIED * rng.standard_normal(value.shape))).astype(value.dtype)
            if value.dtype.kind == "f"
            else value
        )
        for name, value in sample.items()
    }


def _overflowing(check: _Check, kept: AbstractSet[str], others: _Check | None = None) -> list[Layer]:
    """Return the layers that overflow in fp16, but not the masks that are clamped to its range.

    others: the model on other inputs.
    """
    clamped = wide_nodes(check.model).clamped - kept
    more = check.ranges() if others is None else others.ranges()
    layers = [
        replace(layer, magnitude=float(np.fmax(layer.magnitude, other.magnitude)))
        for layer, other in zip(check.ranges(), more, strict=True)
    ]
    return [layer for layer in layers if layer.overflows and layer.output not in clamped]


def _warn_of_overflow(over: Sequence[Layer], count: int, *, is_calibrated: bool) -> None:
    """Say which layer overflows first and which one most. count: layers that become fp32."""
    largest = max(over, key=lambda layer: layer.magnitude)
    most = f", {largest.name} {largest.magnitude:.2e}" if largest is not over[0] else ""
    which = "the calibration inputs" if is_calibrated else "random inputs"
    text = (
        "fp16 ends at %.0f and %s reaches %.2e on %s%s: %d layers, those that overflow and those that read them, stay"
        " fp32"
    )
    logger.warning(text, FP16_MAX, over[0].name, over[0].magnitude, which, most, count)


def format_error(
    model: onnx.ModelProto, kept: AbstractSet[str], inputs: Mapping[str, np.ndarray], limit: float
) -> tuple[float, Layer | None]:
    """Return the error that storing tensors as fp16 alone gives a model's worst output, and the first layer above it.

    model: the folded model before its conversion.
    kept: first outputs of the nodes in fp32.

    Raises
    ------
    ModelError
        onnxruntime cannot run the model.
    """
    error, layers = _Check(model, [inputs]).errors(kept)
    return error, next((layer for layer in layers if not layer.error <= limit), None)


def _sensitive(check: _Check, others: _Check, kept: frozenset[str]) -> frozenset[str]:
    """Return the first outputs of the nodes that have to stay fp32.

    These are `kept`, nodes that overflow, and a minimal set of the layers that add most error.

    others: the model on other inputs. The choice has to hold for them as well, because errors may cancel on one set.
    """
    ranges = [
        replace(layer, magnitude=float(np.maximum(layer.magnitude, other.magnitude)))
        for layer, other in zip(check.ranges(), others.ranges(), strict=True)
    ]
    graph = Graph(check.model)
    needed = kept | _with_readers(graph, {layer.output for layer in _overflowing(check, kept, others)})
    error, layers = check.errors(needed)
    if not max(error, others.errors(needed)[0]) <= _ROUNDED:
        needed |= _worst_layers(check, others, needed, graph, layers)
        error = max(check.errors(needed)[0], others.errors(needed)[0])
    largest = sorted((layer for layer in ranges if layer.output in needed), key=lambda layer: -layer.magnitude)[:_SHOWN]
    shown = "".join(f", {layer.name}: {layer.magnitude:.1e}" for layer in largest)
    text = (
        "mixed precision: %d of %d layers stay fp32 (name: largest magnitude)%s; rounding alone gives a relative L2"
        " error of %.1e"
    )
    logger.info(text, len(needed), len(graph.nodes), shown, error)
    for layer in sorted(layers, key=lambda layer: -layer.error):
        logger.debug(
            "as fp16: %s: relative L2 error %.1e, largest magnitude %.1e", layer.name, layer.error, layer.magnitude
        )
    return needed


def _with_readers(graph: Graph, names: AbstractSet[str]) -> frozenset[str]:
    """Return nodes and their readers: a tensor is stored as fp32 only if its reader is fp32 as well."""
    made = [output for name in names & graph.producers.keys() for output in graph.producers[name].output]
    return frozenset(names | {first_output(reader) for output in made for reader, _ in graph.uses(output)})


def _around(graph: Graph, names: Sequence[str]) -> frozenset[str]:
    """Return nodes with their producers and readers.

    The error of a difference of large numbers comes from the rounding of its inputs.
    """
    read = {each for name in names for each in graph.producers[name].input} & graph.producers.keys()
    return _with_readers(graph, {*names, *(first_output(graph.producers[name]) for name in read)})


def _worst_layers(
    check: _Check, others: _Check, needed: frozenset[str], graph: Graph, layers: list[Layer]
) -> frozenset[str]:
    """Return the smallest number of layers that keeps the error bound, with their neighbours.

    Layers that add most error come first. Their count doubles until the error is small enough. Then bisection finds the
    smallest count.
    """
    errors = {layer.output: layer.error for layer in layers}
    added = {}
    for node in graph.producers.values():
        makers = [first_output(graph.producers[name]) for name in node.input if name in graph.producers]
        before = max((errors.get(name, 0.0) for name in makers), default=0.0)
        added[first_output(node)] = errors.get(first_output(node), 0.0) - before
    worst = sorted(added, key=lambda name: -added[name])
    too_few, count = 0, 1
    while count < len(worst) and not check.errors(needed | _around(graph, worst[:count]))[0] <= _ROUNDED:
        too_few, count = count, 2 * count
    count = min(count, len(worst))
    while count - too_few > 1:
        middle = (count + too_few) // 2
        if check.errors(needed | _around(graph, worst[:middle]))[0] <= _ROUNDED:
            count = middle
        else:
            too_few = middle
    while count < len(worst) and not others.errors(needed | _around(graph, worst[:count]))[0] <= _ROUNDED:
        count = min(2 * count, len(worst))
    return _around(graph, worst[:count])


class _Check:
    """A folded model in onnxruntime, in fp32 beside a copy with tensors rounded to fp16. Runs return scalars."""

    def __init__(self, model: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.model = model
        self._samples = samples
        shapes, kinds = shapes_of(model.graph), types_of(model.graph)
        self._nodes = {
            name: node
            for node in model.graph.node
            if (name := first_output(node)) in kinds
            and kinds[name].tensor_type.elem_type == TensorProto.FLOAT
            and 0 not in shapes.get(name, (0,))
        }
        self._outputs = [
            value.name for value in model.graph.output if value.type.tensor_type.elem_type == TensorProto.FLOAT
        ]
        self._largest: dict[str, float] = {}

    def ranges(self) -> list[Layer]:
        """Return the layers with their largest magnitudes."""
        if not self._largest:
            nodes = [n for name in self._nodes for n in _reduced("ReduceMax", "Abs", [name], f"{_PREFIX}{name}/most")]
            runs = self._run([], nodes, [], [f"{_PREFIX}{name}/most" for name in self._nodes])
            self._largest = {name: max(float(run[i]) for run in runs) for i, name in enumerate(self._nodes)}
        return [
            Layer(name=node_name(node), output=name, error=0.0, magnitude=self._largest[name])
            for name, node in self._nodes.items()
        ]

    def errors(self, kept: AbstractSet[str]) -> tuple[float, list[Layer]]:
        """Return the error of the worst output, and of each layer, with the nodes `kept` in fp32 and others in fp16."""
        copies, weights, names = rounded(Fp16Plan(self.model, kept), _PREFIX)
        wanted = list(dict.fromkeys((*self._nodes, *self._outputs)))
        measured = [name for name in wanted if name in names]
        nodes: list[onnx.NodeProto] = []
        for name in measured:
            nodes += _reduced("ReduceL2", "Sub", [name, names[name]], f"{_PREFIX}{name}/error")
            nodes += _reduced("ReduceL2", "", [name], f"{_PREFIX}{name}/norm")
        runs = self._run(
            copies, nodes, weights, [f"{_PREFIX}{name}/{what}" for name in measured for what in ("error", "norm")]
        )
        errors = {name: max(_ratio(run[2 * i], run[2 * i + 1]) for run in runs) for i, name in enumerate(measured)}
        layers = [replace(layer, error=errors.get(layer.output, 0.0)) for layer in self.ranges()]
        return max((errors.get(name, 0.0) for name in self._outputs), default=0.0), layers

    def _run(
        self,
        copies: list[onnx.NodeProto],
        nodes: list[onnx.NodeProto],
        weights: list[onnx.TensorProto],
        outputs: list[str],
    ) -> list[list[np.ndarray]]:
        if not outputs:
            return []
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        del graph.output[:], graph.value_info[:]
        graph.node.extend([*copies, *nodes])
        graph.initializer.extend(weights)
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in outputs)
        try:
            session = cpu_session(model)
            return [session.run(None, dict(sample)) for sample in self._samples]
        except Exception as error:  # onnxruntime's exceptions share no base class
            reason = first_line(error)
            raise ModelError(
                f"onnxruntime, which finds the ranges of the model's tensors, does not run it: {reason}",
                hint="Use precision='float16', which does without.",
            ) from error


def _ratio(error: np.ndarray, norm: np.ndarray) -> float:
    ratio = float(error) / float(norm) if norm else float(error)
    return ratio if np.isfinite(ratio) else float("inf")


def _reduced(reduction: str, before: str, inputs: list[str], name: str) -> list[onnx.NodeProto]:
    """Return nodes that reduce a tensor to a scalar, after the operator `before` if it is given."""
    first = [helper.make_node(before, inputs, [f"{name}/all"])] if before else []
    return [*first, helper.make_node(reduction, [f"{name}/all"] if before else inputs, [name], keepdims=0)]
