"""Which numbers a model computes with inside: as it says, fp16, or fp16 where a whole-model check allows it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from romou.base.errors import ModelError, UsageError, unknown_name
from romou.base.inputs import checked_inputs, random_inputs
from romou.compiler.frontend.fp16 import FP16_MAX, Fp16Plan, first_output, rounded
from romou.compiler.frontend.graph import shapes_of, types_of
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.host_table import unserved
from romou.compiler.frontend.input_uses import draws_of

logger = logging.getLogger("romou")

AS_GIVEN, FP16, MIXED = "float32", "float16", "mixed"
# Relative L2 error of the worst output against onnxruntime in fp32, of a model that was made fp16.
TOLERANCE = 1e-2
# What "mixed" allows the rounding of stored numbers: sums in fp16, which a kernel's own check allows, need the rest.
_ROUNDED = TOLERANCE / 2
# Seeds of the inputs on which "mixed" confirms what it found on others, and by how much those that were given are
# varied for that.
_OTHERS, _VARIED = (1, 2), 0.03
_PREFIX = "romou.fp16/"
# Layers in a message.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What was asked for.

    kind: "float32" leaves the model's types as they are; "float16"; "mixed".
    io: type of float inputs and outputs, "float16" or None: the model's.
    calibration: inputs by name, of which ranges and errors are taken; none: random ones.
    kept: tensors whose nodes stay fp32 in any case.
    is_quiet: without a check of ranges.
    """

    kind: str = AS_GIVEN
    io: str | None = None
    calibration: tuple[Mapping[str, np.ndarray], ...] = ()
    kept: frozenset[str] = field(default_factory=frozenset)
    is_quiet: bool = False

    @classmethod
    def checked(cls, kind: str, io: str | None, calibration: Sequence[Mapping[str, np.ndarray]] | None) -> Precision:
        """The arguments of the public functions; UsageError for what they cannot be."""
        if kind not in (AS_GIVEN, FP16, MIXED):
            raise unknown_name("precision", str(kind), (AS_GIVEN, FP16, MIXED))
        if io not in (None, AS_GIVEN, FP16):
            raise unknown_name("io_precision", str(io), (AS_GIVEN, FP16))
        if kind == AS_GIVEN and (io == FP16 or calibration is not None):
            what = "io_precision='float16'" if io == FP16 else "calibration"
            raise UsageError(
                f"{what} is for precision='float16' or 'mixed'; precision is 'float32', which leaves the model's types"
                " as they are"
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
        """What parts of the model are made with: the same nodes in fp32, nothing checked. Their inputs are of the types
        that they have.
        """
        return replace(self, kind=FP16 if self.kind == MIXED else self.kind, io=None, calibration=(), is_quiet=True)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A node on the calibration inputs: its name, the relative L2 error of its output where all is fp16 that may be,
    and its largest magnitude.
    """

    name: str
    output: str
    error: float
    magnitude: float

    @property
    def overflows(self) -> bool:
        """Whether fp16 cannot hold its output."""
        return not self.magnitude <= FP16_MAX


def fp32_nodes(
    model: onnx.ModelProto, precision: Precision, signature: Mapping[str, tuple[tuple[int, ...], str]]
) -> frozenset[str]:
    """First outputs of the nodes of a folded model that stay fp32: those that run on the host, and what "mixed" keeps.

    Overflow in "float16" is warned of, where onnxruntime runs the model.

    Raises
    ------
    UsageError
        The calibration inputs are not the model's.
    ModelError
        "mixed" is asked for, and onnxruntime does not run the model.
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
        _warn_of_overflow(
            [layer for layer in check.ranges() if layer.output not in kept], is_calibrated=bool(precision.calibration)
        )
    except ModelError as error:
        logger.warning("%s, so overflow of fp16 is not looked for", error.message)
    return kept


def _varied(sample: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Inputs like those that were given: their floats are off by a few percent."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            (value * (1 + _VARIED * rng.standard_normal(value.shape))).astype(value.dtype)
            if value.dtype.kind == "f"
            else value
        )
        for name, value in sample.items()
    }


def _warn_of_overflow(layers: list[Layer], *, is_calibrated: bool) -> None:
    over = [layer for layer in layers if layer.overflows]
    if over:
        names = ", ".join(f"{layer.name}: {layer.magnitude:.2e}" for layer in over[:_SHOWN])
        more = f" and {len(over) - _SHOWN} more" if len(over) > _SHOWN else ""
        which = "the calibration inputs" if is_calibrated else "random inputs"
        text = (
            "fp16 ends at %.0f; on %s these layers give larger numbers: %s%s. precision='mixed' (--precision mixed)"
            " keeps them in fp32"
        )
        logger.warning(text, FP16_MAX, which, names, more)


def _sensitive(check: _Check, others: _Check, kept: frozenset[str]) -> frozenset[str]:
    """First outputs of the nodes that have to stay fp32: `kept`, what overflows, then of the layers that add most error
    as few as the bound needs.

    others: the model on other inputs, on which it has to hold, too: on one set of inputs, errors may cancel.
    """
    ranges = [
        replace(one, magnitude=float(np.maximum(one.magnitude, other.magnitude)))
        for one, other in zip(check.ranges(), others.ranges(), strict=True)
    ]
    graph = check.model.graph
    reads = {first_output(node): set(node.input) for node in graph.node}
    outputs = {name: first_output(node) for node in graph.node for name in node.output if name}

    def with_readers(names: AbstractSet[str]) -> frozenset[str]:
        """A tensor is fp32 in memory where its reader is fp32, too."""
        return frozenset(
            names | {reader for reader, read in reads.items() if any(outputs.get(name) in names for name in read)}
        )

    def around(names: Sequence[str]) -> frozenset[str]:
        """A layer's error may come of what its inputs were rounded to: a difference of large numbers."""
        return with_readers({*names, *(outputs[name] for one in names for name in reads[one] if name in outputs)})

    needed = kept | with_readers({layer.output for layer in ranges if layer.overflows})
    error, layers = check.errors(needed)
    if not max(error, others.errors(needed)[0]) <= _ROUNDED:
        of = {layer.output: layer.error for layer in layers}
        added = {
            name: of.get(name, 0.0) - max((of.get(outputs.get(one, ""), 0.0) for one in reads[name]), default=0.0)
            for name in reads
        }
        worst = sorted(reads, key=lambda name: -added[name])
        enough, count = 0, 1
        while count < len(worst) and not check.errors(needed | around(worst[:count]))[0] <= _ROUNDED:
            enough, count = count, 2 * count
        count = min(count, len(worst))
        while count - enough > 1:
            middle = (count + enough) // 2
            if check.errors(needed | around(worst[:middle]))[0] <= _ROUNDED:
                count = middle
            else:
                enough = middle
        while count < len(worst) and not others.errors(needed | around(worst[:count]))[0] <= _ROUNDED:
            count = min(2 * count, len(worst))
        needed = needed | around(worst[:count])
        error = max(check.errors(needed)[0], others.errors(needed)[0])
    largest = sorted((layer for layer in ranges if layer.output in needed), key=lambda one: -one.magnitude)[:_SHOWN]
    shown = "".join(f", {layer.name}: {layer.magnitude:.1e}" for layer in largest)
    text = (
        "mixed precision: %d of %d layers stay fp32 (name: largest magnitude)%s; rounding alone gives a relative L2"
        " error of %.1e"
    )
    logger.info(text, len(needed), len(reads), shown, error)
    for layer in sorted(layers, key=lambda one: -one.error):
        logger.debug(
            "as fp16: %s: relative L2 error %.1e, largest magnitude %.1e", layer.name, layer.error, layer.magnitude
        )
    return needed


class _Check:
    """A folded model run by onnxruntime in fp32, alone and beside itself with numbers rounded to fp16. Only single
    numbers leave a run.
    """

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
        """The layers with their largest magnitudes."""
        if not self._largest:
            nodes = [n for name in self._nodes for n in _reduced("ReduceMax", "Abs", [name], f"{_PREFIX}{name}/most")]
            found = self._run([], nodes, [], [f"{_PREFIX}{name}/most" for name in self._nodes])
            self._largest = {name: max(float(run[i]) for run in found) for i, name in enumerate(self._nodes)}
        return [
            Layer(name=node_name(node), output=name, error=0.0, magnitude=self._largest[name])
            for name, node in self._nodes.items()
        ]

    def errors(self, kept: AbstractSet[str]) -> tuple[float, list[Layer]]:
        """(Error of the worst output, that of each layer) with some nodes in fp32 and all others in fp16."""
        copies, weights, names = rounded(Fp16Plan(self.model, kept), _PREFIX)
        wanted = list(dict.fromkeys((*self._nodes, *self._outputs)))
        measured = [name for name in wanted if name in names]
        nodes: list[onnx.NodeProto] = []
        for name in measured:
            nodes += _reduced("ReduceL2", "Sub", [name, names[name]], f"{_PREFIX}{name}/error")
            nodes += _reduced("ReduceL2", "", [name], f"{_PREFIX}{name}/norm")
        found = self._run(
            copies, nodes, weights, [f"{_PREFIX}{name}/{what}" for name in measured for what in ("error", "norm")]
        )
        errors = {name: max(_ratio(run[2 * i], run[2 * i + 1]) for run in found) for i, name in enumerate(measured)}
        layers = [
            Layer(name=one.name, output=one.output, error=errors.get(one.output, 0.0), magnitude=one.magnitude)
            for one in self.ranges()
        ]
        return max((errors.get(name, 0.0) for name in self._outputs), default=0.0), layers

    def _run(
        self,
        copies: list[onnx.NodeProto],
        nodes: list[onnx.NodeProto],
        weights: list[onnx.TensorProto],
        outputs: list[str],
    ) -> list[list[np.ndarray]]:
        import onnxruntime

        if not outputs:
            return []
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        del graph.output[:], graph.value_info[:]
        graph.node.extend([*copies, *nodes])
        graph.initializer.extend(weights)
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in outputs)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return [session.run(None, dict(sample)) for sample in self._samples]
        except Exception as error:  # onnxruntime's exceptions share no base class
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"onnxruntime, which finds the ranges of the model's tensors, does not run it: {reason}",
                hint="Use precision='float16', which does without.",
            ) from error


def _ratio(error: np.ndarray, norm: np.ndarray) -> float:
    found = float(error) / float(norm) if norm else float(error)
    return found if np.isfinite(found) else float("inf")


def _reduced(reduction: str, before: str, inputs: list[str], name: str) -> list[onnx.NodeProto]:
    """A tensor, or what an operator makes of some, as one number."""
    first = [helper.make_node(before, inputs, [f"{name}/all"])] if before else []
    return [*first, helper.make_node(reduction, [f"{name}/all"] if before else inputs, [name], keepdims=0)]
