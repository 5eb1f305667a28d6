"""The results of tuning as numbers, per task and for the whole model."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from typing import Any

from romou.base.compat import optional_module
from romou.base.errors import UsageError
from romou.base.headline import Headline
from romou.base.model_bytes import FloatWeight, MemoryUse
from romou.base.rung import MOST_ON_HOST
from romou.base.schema import made_of
from romou.runtime.module.timed import Timed

# Columns of `Summary.table`, with their heads in a notebook.
_COLUMNS = {
    "layer": "layer",
    "onnx_nodes": "ONNX nodes",
    "calls": "calls",
    "default_ms": "default, ms",
    "tuned_ms": "tuned, ms",
    "speedup": "speedup",
    "gflops": "GFLOPS",
    "trials": "trials",
}
_TEXTS = ("layer", "onnx_nodes")
_DERIVED = ("speedup", "is_right", "host_share", "host_node_share", "host_flop_share")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LayerRow(Headline, Timed):
    """The results of one task. Times are of one call, measured alternately in the default and in the tuned model.

    name: the task's name.
    calls, trials: number of its calls in a run, and of its measured candidates.
    flops: operations of a call.
    config: knob -> choice of the tuned kernel.
    key: the task's key, empty in models saved by older versions.
    nodes: names of the ONNX nodes that its calls compute, call by call.
    """

    name: str
    calls: int
    trials: int
    flops: int
    config: dict[str, Any]
    key: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The layer and its times."""
        return f"{self.name}; {self.calls} call{'s' if self.calls > 1 else ''}, {self.sentence}"

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second of the tuned kernel."""
        return self.flops / self.tuned_ms / 1e6 if self.tuned_ms else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallRow:
    """A call of a kernel's function in a run.

    function: its name in the compiled module.
    layer: name of its task, "" without a task.
    nodes: names of the ONNX nodes that the call computes, those with the most operations first.
    """

    function: str
    layer: str
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRow:
    """Nodes that run on the host together, by onnxruntime.

    nodes: names of the nodes.
    ms: mean time of a run with its copies, or None if not measured.
    flops: operations of one run, estimated from shapes.
    """

    nodes: tuple[str, ...]
    ms: float | None = None
    flops: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovedRow:
    """Nodes that have another kernel than intended, or none.

    nodes: names of the nodes.
    to: their lowering, a name of `Rung` in lower case.
    reason: why the intended kernel was not possible.
    """

    nodes: tuple[str, ...]
    to: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeRow(Timed):
    """The results of one shape of several.

    shapes: shape of each input by name.
    relative_l2_error: see `Summary`.
    memory: memory that the shape would take if it were the only one.
    sizes: the sizes that run by its kernels, "tokens 33 to 128". "" for one size.
    """

    shapes: dict[str, tuple[int, ...]]
    relative_l2_error: float | None
    memory: MemoryUse | None
    sizes: str = ""

    @property
    def text(self) -> str:
        """The shapes as text, "ids 1x32, mask 1x32", and the sizes that run by their kernels."""
        return shapes_text(self.shapes) + (f" ({self.sizes})" if self.sizes else "")


def shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return shapes as text: {"ids": (1, 32)} -> "ids 1x32"."""
    return ", ".join(f"{name} {'x'.join(map(str, sizes)) or 'scalar'}" for name, sizes in shapes.items())


def _cell(column: str, value: Any) -> str:
    if column in _TEXTS:
        return f"<td>{html.escape(value)}</td>"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f'<td style="text-align: right">{"-" if value is None else text}</td>'


def stand_in_text(device: str, stands_in_for: str, *, is_by_estimate: bool) -> str:
    """Return a sentence on times of a device that stands in for another one. "" if `stands_in_for` is empty."""
    if not stands_in_for:
        return ""
    chosen_by = f"by the estimate of {stands_in_for}" if is_by_estimate else f"by these times, not {stands_in_for}'s"
    return f"No {stands_in_for} is attached: times are those of {device}; configs are chosen {chosen_by}."


def _module(name: str) -> Any:
    return optional_module(name, f"{name} is not installed", f"pip install {name}, or take summary().table().")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Summary(Timed):
    """The results of tuning a model. Times are of the whole model, measured alternately in one session.

    target: the target's text.
    device: name of the device that was timed.
    rows: the results of each task.
    seconds: time of the whole call of `tune` or `compile`.
    relative_l2_error: error of the tuned model's worst output against onnxruntime, or None if not checked.
    tolerance: bound of `relative_l2_error`.
    launching: how runs of the tuned model were launched while they were timed, see `TunedModel.launching`.
    outcomes: name of an outcome -> number of trials, of this run and the runs that it resumed.
    records: folder of the records, or None if they were not kept.
    host: nodes that run on the host, in order.
    moved: nodes that have another kernel than intended, or none.
    nodes, flops: number of nodes of the model, and operations of one run, estimated from shapes.
    by_tvm: nodes with one of TVM's schedules.
    calls: calls of kernels in a run, in order. Empty in models saved by older versions.
    precision: the requested precision, "float32", "float16" or "mixed".
    fp32_layers: first outputs of the nodes that stayed fp32 in fp16 and mixed models.
    memory: memory on the device, or None in models saved by older versions.
    checked_on: name of the device that the outputs were checked on, "" if not checked.
    unchecked: the reason why outputs were not compared with onnxruntime's, "" if they were. Of several shapes, any.
    stands_in_for: name of the target's device if `device` is another one, else "".
    is_by_estimate: configs were chosen by the estimate for the target's device, because `device` stands in for it.
    shapes: the results of each shape, if there are several. The other fields are of the largest, but `memory` is of all
        together.
    padding: how inputs of other shapes are run, or "" if they are refused.
    run_time: the dimensions with a size at run time, in a sentence, or "".
    floats: quantized weights that became floats at compile time.
    narrowed: float64 nodes that are computed in fp32.
    """

    target: str
    device: str
    rows: tuple[LayerRow, ...]
    relative_l2_error: float | None
    outcomes: dict[str, int]
    seconds: float
    tolerance: float | None = None
    launching: str = ""
    records: str | None = None
    host: tuple[HostRow, ...] = ()
    moved: tuple[MovedRow, ...] = ()
    nodes: int = 0
    flops: int = 0
    by_tvm: tuple[str, ...] = ()
    calls: tuple[CallRow, ...] = ()
    precision: str = "float32"
    fp32_layers: tuple[str, ...] = ()
    memory: MemoryUse | None = None
    checked_on: str = ""
    unchecked: str = ""
    stands_in_for: str = ""
    is_by_estimate: bool = False
    shapes: tuple[ShapeRow, ...] = ()
    padding: str = ""
    run_time: str = ""
    floats: tuple[FloatWeight, ...] = ()
    narrowed: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The times, the error and the number of layers in a line."""
        error = "not checked" if self.relative_l2_error is None else f"relative L2 error {self.relative_l2_error:.1e}"
        shapes = f"{len(self.shapes)} shapes, the largest: " if self.shapes else ""
        return f"{shapes}{len(self.rows)} layers, {self.sentence}, {error}"

    def __repr__(self) -> str:
        return f"Summary({self.target}; {self.headline})"

    def _repr_html_(self) -> str:
        """Return a table of the layers, for notebooks."""
        head = "".join(f"<th>{head}</th>" for head in _COLUMNS.values())
        texts = [row.speedup_text for row in self._slowest_first]
        shown = [row | {"speedup": text} for row, text in zip(self.table(), texts, strict=True)]
        rows = "".join(f"<tr>{''.join(_cell(name, row[name]) for name in _COLUMNS)}</tr>" for row in shown)
        return f"<p>{html.escape(self.headline)}</p><table><tr>{head}</tr>{rows}</table>"

    def table(self) -> list[dict[str, Any]]:
        """Return a dict for each layer, the most expensive first: layer, ONNX nodes, calls, times and speedup."""
        return [
            {
                "layer": row.name,
                "onnx_nodes": ", ".join(row.nodes),
                "calls": row.calls,
                "default_ms": row.default_ms,
                "tuned_ms": row.tuned_ms,
                "speedup": row.speedup,
                "gflops": row.gflops,
                "trials": row.trials,
            }
            for row in self._slowest_first
        ]

    @property
    def _slowest_first(self) -> list[LayerRow]:
        return sorted(self.rows, key=lambda row: -(row.tuned_ms or 0.0) * row.calls)

    def to_dataframe(self) -> Any:
        """Return `table` as a DataFrame of pandas. UsageError if pandas is not installed."""
        return _module("pandas").DataFrame(self.table(), columns=list(_COLUMNS))

    def plot(self) -> Any:
        """Return a chart of Altair: the time of each layer's calls, by ONNX node, the most expensive layer first.

        A layer has a second bar, of its default schedule, if the two times differ by more than the noise.

        Raises
        ------
        UsageError
            Altair is not installed, or no layer was timed.
        """
        altair = _module("altair")
        bars = [
            {
                "layer": row["onnx_nodes"] or row["layer"],
                "schedule": schedule,
                "ms": row["calls"] * row[f"{schedule}_ms"],
            }
            for row in self.table()
            for schedule in ("default", "tuned")
            if row[f"{schedule}_ms"] is not None and (schedule == "tuned" or row["speedup"] is not None)
        ]
        if not bars:
            raise UsageError("no layer was timed", hint="romou.tune times them.")
        chart = altair.Chart(altair.Data(values=bars), title=self.headline).mark_bar(tooltip={"content": "data"})
        return chart.encode(
            x=altair.X("ms:Q", title="all calls of a run, ms"),
            y=altair.Y("layer:N", sort=None, title=None),
            yOffset="schedule:N",
            color=altair.Color("schedule:N", title=None),
        )

    @property
    def stand_in(self) -> str:
        """A sentence on the device that was timed if it is not the target's, else ""."""
        return stand_in_text(self.device, self.stands_in_for, is_by_estimate=self.is_by_estimate)

    @property
    def host_share(self) -> float | None:
        """Share of the tuned model's time that its host nodes take, or None if not measured."""
        if self.tuned_ms is None or any(row.ms is None for row in self.host):
            return None
        if self.host_node_share == 1:
            # The two times are means of different runs.
            return 1.0
        # A model without kernels takes no time on the device.
        host_ms = sum(row.ms or 0.0 for row in self.host)
        return min(1.0, host_ms / self.tuned_ms) if host_ms else 0.0

    @property
    def host_node_share(self) -> float:
        """Share of the model's nodes that run on the host."""
        return sum(len(row.nodes) for row in self.host) / self.nodes if self.nodes else 0.0

    @property
    def host_flop_share(self) -> float:
        """Share of the model's operations that its host nodes have, or their share of nodes if nothing computes."""
        return sum(row.flops for row in self.host) / self.flops if self.flops else self.host_node_share

    @property
    def is_off_device(self) -> bool:
        """True if more operations run on the host than a compiled model should leave there."""
        return self.host_flop_share > MOST_ON_HOST

    @property
    def is_right(self) -> bool | None:
        """True if the outputs agree with onnxruntime's, or None if not checked."""
        return (
            None
            if self.relative_l2_error is None or self.tolerance is None
            else self.relative_l2_error <= self.tolerance
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with derived numbers."""
        data = dataclasses.asdict(self)
        data["rows"] = [{**dataclasses.asdict(r), "gflops": r.gflops, "speedup": r.speedup} for r in self.rows]
        data["memory"] = None if self.memory is None else self.memory.to_dict()
        data["is_right"] = self.is_right
        data["host_share"] = self.host_share
        data["host_node_share"], data["host_flop_share"] = self.host_node_share, self.host_flop_share
        data["speedup"] = self.speedup
        return data

    @classmethod
    def unmeasured(cls, *, target: str, rows: tuple[LayerRow, ...], seconds: float, **fields: Any) -> Summary:
        """Return the summary of a model that was not measured, of `target`, `rows`, `seconds` and other `fields`."""
        measured: dict[str, Any] = {"default_ms": None, "tuned_ms": None, "relative_l2_error": None}
        return cls(target=target, device="", rows=rows, outcomes={}, seconds=seconds, **measured, **fields)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Summary:
        """Return the summary whose `data` `to_dict` returned. ValueError for anything else."""
        return made_of(cls, data)
