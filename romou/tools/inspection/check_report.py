"""A model judged for a device without running it: where its nodes run, estimated times, roofs, memory, quirks, fp16."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.base.headline import Headline
from romou.base.model_bytes import MemoryUse
from romou.base.pages import page_of
from romou.base.rung import MOST_ON_HOST, Rung
from romou.compiler.frontend.host_groups import Values, node_name
from romou.compiler.frontend.host_table import UNSERVED
from romou.compiler.frontend.onnx_graph import first_output
from romou.compiler.frontend.precision import TOLERANCE, Layer
from romou.compiler.graph.memory.memory import PlannedTensor
from romou.compiler.operators.costs.estimate import call_parts, estimable, estimate_parts, missing_facts
from romou.devices.hardware.quirks import known_quirks, quirks_of
from romou.tools.inspection.worth import PHONE_CPUS, OnCpu, verdict

if TYPE_CHECKING:
    from romou.base.model_bytes import FloatWeight
    from romou.base.space import Config
    from romou.compiler.compilation import Compilation
    from romou.compiler.task import TunableTask
    from romou.devices.hardware import HardwareSpec
    from romou.devices.targets import Target

# Recorded time of the estimate's ten first picks over the sum of `call_parts`, quartiles (docs/evidence/validation.md).
_RECORDED = (0.79, 1.12)
# Colours of the fastest and the slowest node, and of nodes on the host, in Model Explorer.
_GRADIENT, _ON_HOST = ((0, "#ffffff"), (1, "#e07b39")), "#b565a7"
_LIMITS = {
    "issuing": "arithmetic",
    "waiting": "load latency",
    "buffers": "buffer reads",
    "images": "image reads",
    "l2": "L2 cache",
    "output": "writes",
    "launch": "launch",
    "memory": "memory",
}
_SHAPE_HINT = (
    "Export with fixed shapes: a mask or a fixed number of results instead of a count that depends on data, or fix the"
    " input's value (--set NAME=VALUE)."
)
_HINTS = {
    "If": "Fix the condition, if it is an input: --set NAME=VALUE. Or export the branch that is taken.",
    "Loop": "Fix the trip count, if it is an input: --set NAME=VALUE. Or export the loop unrolled.",
}


@dataclass(frozen=True, kw_only=True)
class HostNode:
    """A node that runs on the host, by onnxruntime. hint: what to change in the export, "" if nothing is known."""

    name: str
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class CheckedLayer:
    """A layer with its default kernel, estimated.

    nodes: names of its ONNX nodes.
    ms: estimated time of all its calls (`call_parts`), None without an estimate.
    between_ms: where recorded times of such kernels lie (quartiles), None if none were recorded.
    limit: what takes most of the estimate.
    peak_share: share of the device's fp32 peak, None if unknown.
    bandwidth_share: share of the memory's bandwidth if each operand moves once. None if unknown, or above 1: operands
        lie in caches, or are not read whole.
    """

    name: str
    nodes: tuple[str, ...]
    calls: int
    flops: int
    bytes: int
    ms: float | None
    between_ms: tuple[float, float] | None
    limit: str
    peak_share: float | None
    bandwidth_share: float | None

    @property
    def words(self) -> str:
        """The roofline in words: "arithmetic, 41% of peak, 8% of bandwidth"."""
        shares = ((self.peak_share, "peak"), (self.bandwidth_share, "bandwidth"))
        return ", ".join([self.limit, *(f"{share:.0%} of {roof}" for share, roof in shares if share is not None)])


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(Headline):
    """A model checked for a device. Nothing was compiled or run but by onnxruntime, for the ranges of its values.

    target: the target's text.
    device: the device in words.
    nodes: number of the model's nodes.
    host: nodes that run on the host. host_share: their share of the operations.
    layers: layers with kernels, in order.
    by_tvm: nodes with one of TVM's schedules, which have no estimate.
    memory: planned memory. largest: largest tensor or weight. largest_allowed: the device's limit, None if unknown.
    quirks: faults of the device's drivers, with their workarounds.
    precision: advice on fp16.
    problems: reasons for exit code 1.
    remarks: what is not known, or not counted.
    seconds: time of the check.
    tensors: name of a node -> its first output, for `node_data`.
    floats: quantized weights that become floats at compile time.
    on_cpus: the model on phones' CPUs, by what others published. Empty unless the device is a phone's GPU.
    litert: operators that LiteRT's GPU delegate refuses. Empty unless the device is a phone's GPU.
    cpu_ms: time of the model by onnxruntime on this machine's CPU, None if onnxruntime cannot run it.
    """

    target: str
    device: str
    nodes: int
    host: tuple[HostNode, ...]
    host_share: float
    layers: tuple[CheckedLayer, ...]
    by_tvm: tuple[str, ...]
    memory: MemoryUse | None
    largest: PlannedTensor | None
    largest_allowed: int | None
    quirks: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    tensors: Mapping[str, str] = field(default_factory=dict, repr=False)
    cpu_ms: float | None = field(default=None, compare=False)
    floats: tuple[FloatWeight, ...] = ()
    on_cpus: tuple[OnCpu, ...] = ()
    litert: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The device, the estimate, the nodes on the host and the number of problems."""
        ms = "no estimate" if self.ms is None else f"{self.ms:.3f} ms by the estimate"
        problems = f", problems: {len(self.problems)}" if self.problems else ""
        return f"{self.device}; {ms}, {len(self.host)} of {self.nodes} nodes on the host{problems}"

    @property
    def ms(self) -> float | None:
        """The sum of the estimates in milliseconds, None if no layer has one."""
        times = [layer.ms for layer in self.layers if layer.ms is not None]
        return sum(times) if times else None

    @property
    def between_ms(self) -> tuple[float, float] | None:
        """Where the sum would lie if each layer were as far from its estimate as recorded ones are, None if unknown."""
        known = [(layer.ms, layer.between_ms) for layer in self.layers if layer.ms is not None]
        if not any(between for _, between in known):
            return None
        pairs = [between or (ms, ms) for ms, between in known]
        return sum(low for low, _ in pairs), sum(high for _, high in pairs)

    @property
    def is_off_device(self) -> bool:
        """True if more operations run on the host than a compiled model should leave there."""
        return self.host_share > MOST_ON_HOST

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with derived numbers."""
        data = dataclasses.asdict(self)
        del data["tensors"]
        data["layers"] = [{**dataclasses.asdict(layer), "words": layer.words} for layer in self.layers]
        data["memory"] = None if self.memory is None else self.memory.to_dict()
        return data | {"ms": self.ms, "between_ms": self.between_ms, "is_off_device": self.is_off_device}

    def node_data(self) -> dict[str, Any]:
        """Return the estimate as node data of Model Explorer: milliseconds by the name of a node's first output.

        The nodes of a layer have equal shares of its time, so that sums over a group of nodes are right. A node on the
        host has its own colour, and time only for the copies to it and from it.
        """
        times: dict[str, float] = dict.fromkeys((host.name for host in self.host), 0.0)
        for layer in self.layers:
            for node in layer.nodes:
                times[node] = times.get(node, 0.0) + (layer.ms or 0.0) / len(layer.nodes)
        on_host = {host.name: {"bgColor": _ON_HOST} for host in self.host}
        results = {
            self.tensors[node]: {"value": ms, **on_host.get(node, {})}
            for node, ms in times.items()
            if node in self.tensors
        }
        return {"results": results, "gradient": [{"stop": stop, "bgColor": colour} for stop, colour in _GRADIENT]}


def host_nodes(compilation: Compilation) -> tuple[HostNode, ...]:
    """Return the nodes that run on the host, each with the reason and what to change in the export."""
    imported = compilation.imported
    graph, values = imported.folded.graph, Values(imported.folded)
    moves = [move for move in compilation.fallbacks.moves if move.rung == Rung.HOST]
    rows = []
    for position in sorted(imported.on_host):
        node = graph.node[position]
        moved = next((move.reason for move in moves if first_output(node) in move.nodes), "")
        hint = _HINTS.get(node.op_type, "")
        if node.op_type in UNSERVED and UNSERVED[node.op_type][0](node):
            reason = UNSERVED[node.op_type][1]
        elif moved:
            reason = moved
        elif not values.is_static(node):
            reason, hint = "a shape that it reads or writes depends on data", hint or _SHAPE_HINT
        else:
            reason = "TVM's importer has no converter for it, or it computes with a type that kernels only move"
            hint = hint or "Export it as simpler operators, or in another opset or type."
        rows.append(HostNode(name=node_name(node), reason=reason, hint=hint))
    return tuple(rows)


def checked_layers(
    compilation: Compilation, nodes_of: Mapping[str, tuple[str, ...]], spec: HardwareSpec | None = None
) -> tuple[CheckedLayer, ...]:
    """Return the model's layers with estimates of their default kernels.

    nodes_of: task key -> ONNX nodes
    spec: facts to estimate by, if they are not the target's
    """
    spec = spec or estimable(compilation.target).spec
    return tuple(_checked(task, compilation.target, spec, nodes_of) for task in compilation.tasks)


def _checked(
    task: TunableTask, target: Target, spec: HardwareSpec, nodes_of: Mapping[str, tuple[str, ...]]
) -> CheckedLayer:
    config, moved = task.default_config(target), task.moved_bytes
    parts = call_parts(task.usage_of(config, target), spec, moved)
    times = {name: task.calls * float(np.asarray(part)) for name, part in (parts or {}).items()}
    seconds = sum(times.values()) if times else None
    largest = max(times, key=times.__getitem__, default="")
    peak_gflops, bandwidth = spec.peak_gflops, spec.dram_bandwidth_gbps
    used = moved * task.calls / seconds / (1e9 * bandwidth) if seconds and bandwidth else None
    ms = None if seconds is None else 1e3 * seconds
    is_recorded = task.template.sums_products and spec.name.startswith("adreno")
    return CheckedLayer(
        name=task.name,
        nodes=nodes_of.get(task.key, ()),
        calls=task.calls,
        flops=task.flops,
        bytes=moved,
        ms=ms,
        between_ms=(ms * _RECORDED[0], ms * _RECORDED[1]) if ms is not None and is_recorded else None,
        limit=_LIMITS.get(largest) or limit_of(task, config, target, spec),
        peak_share=task.flops * task.calls / seconds / 1e9 / peak_gflops
        if seconds and peak_gflops and task.flops
        else None,
        bandwidth_share=used if used is not None and used <= 1 else None,
    )


def on_cpus(layers: Sequence[CheckedLayer], target: Target, element_bytes: int) -> tuple[OnCpu, ...]:
    """Return a model on each of `PHONE_CPUS`, of its layers with an estimate.

    Empty unless the target is a phone's GPU of which every fact of the estimate is known: those of another GPU rank
    layers, and their scale says nothing.

    element_bytes: of a float on the GPU.
    """
    if not target.limits.is_mobile or missing_facts(target.spec):
        return ()
    known = [layer for layer in layers if layer.ms is not None]
    gpu_ms, found = sum(layer.ms or 0.0 for layer in known), []
    for cpu in PHONE_CPUS if known else ():
        times = [cpu.ms(layer.calls * layer.flops, layer.calls * layer.bytes * 4 / element_bytes) for layer in known]
        own = {layer.name: verdict(layer.ms or 0.0, ms) for layer, ms in zip(known, times, strict=True)}
        found.append(OnCpu(cpu.name, sum(times), verdict(gpu_ms, sum(times)), own))
    return tuple(found)


def limit_of(task: TunableTask, config: Config, target: Target, spec: HardwareSpec | None) -> str:
    """Return what takes most of the estimate of a kernel, in words. "" if facts of the device are missing."""
    parts = None if spec is None else estimate_parts(task.usage_of(config, target), spec)
    return _LIMITS[max(parts, key=lambda name: float(np.asarray(parts[name])))] if parts else ""


def largest_tensor(compilation: Compilation) -> tuple[MemoryUse, PlannedTensor | None]:
    """Return the model's planned memory, and its largest tensor or weight."""
    plan = compilation.memory_plan()
    return plan.use, max((*plan.tensors, *plan.weights), key=lambda tensor: tensor.bytes, default=None)


def quirk_lines(target: Target, facts: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the driver quirks of a device, a line each.

    facts: of the attached device. None for a named one, whose driver is not known. Faults that only other
        devices showed are left out.
    """
    if facts is not None:
        return tuple(quirk.describe() for quirk in quirks_of(facts))
    title = target.spec.title
    maker = "QUALCOMM Adreno(TM)" if "Adreno" in title else "ARM Platform" if "Mali" in title else ""
    lines = []
    for quirk in known_quirks():
        bare = dataclasses.replace(quirk, when={k: v for k, v in quirk.when.items() if k in ("device", "platform")})
        if maker and bare.applies_to({"name": title, "platform": maker}) and quirk.is_seen_on(title):
            known = f"{quirk.drivers}: " if quirk.drivers else ""
            lines.append(f"{known}{quirk.symptom}; so {quirk.workaround}")
    return tuple(lines)


def precision_lines(spec: HardwareSpec, error: float | None, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return advice on fp16.

    error: relative L2 error of the worst output in fp16, None if it is not known.
    layers: nodes with their ranges.
    """
    lines = []
    if error is not None:
        beyond = [layer for layer in layers if layer.overflows]
        if beyond:
            names = ", ".join(layer.name for layer in beyond[:3])
            lines.append(f"fp16 overflows in {len(beyond)} nodes ({names}): --precision mixed keeps them in fp32.")
        elif error > TOLERANCE:
            lines.append(f"fp16 has a relative L2 error of {error:.1e}, above {TOLERANCE:.0e}: use --precision mixed.")
        else:
            lines.append(f"fp16 is exact enough: relative L2 error {error:.1e}, no overflow. --precision float16.")
    if spec.has_half_arithmetic:
        rate = f"{spec.fp16_rate:g} times the rate of fp32" if spec.fp16_rate else "at an unknown rate"
        lines.append(f"The device computes in fp16, {rate}; memory and bandwidth are halved.")
    elif spec.has_half_arithmetic is False:
        lines.append("The device does not compute in fp16: fp16 only halves memory and bandwidth.")
    return tuple(lines)


def remarks_on(target: Target, report_layers: Sequence[CheckedLayer]) -> tuple[str, ...]:
    """Return what the estimate does not know or does not count."""
    lacking = missing_facts(target.spec)
    remarks = []
    if target.spec.is_cpu:
        remarks.append("Times of CPUs are not estimated: tune on it, which measures them.")
    elif lacking:
        near = f"{target.spec.nearest}'s are taken" if target.spec.nearest else "nothing is estimated"
        remarks.append(f"Not known of the device: {', '.join(lacking)}; {near}.")
    if any(layer.ms is not None for layer in report_layers):
        remarks.append("Times are those of default kernels, launches counted. Nodes on the host and copies are not.")
        if any(layer.between_ms for layer in report_layers):
            remarks.append(
                f"The range is that of AutoTVM's kernels, recorded on Adreno 660 and 740 ({page_of('validation')})."
                " Romou's kernels have not run there."
            )
        else:
            remarks.append(
                "No times were recorded on such a GPU: the estimate ranks layers, and its scale is unproved."
            )
    return tuple(remarks)
