"""The profile of a model: the time of each call of a run, with the names of its ONNX nodes."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from romou.base.headline import Headline
from romou.runtime.module.summary import CallRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfiledCall:
    """A call of one run.

    function: name of the kernel's function in the compiled module, or of the host's.
    layer: Romou's name of the task. The function's name if it has no task.
    nodes: names of the ONNX nodes that it computes, empty for copies that only Romou needs.
    place: "device", or "host" for nodes that onnxruntime runs.
    ms: median time in milliseconds.
    times_ms: every repeat. See `Profile` for what they add up to.
    """

    function: str
    layer: str
    nodes: tuple[str, ...]
    place: str
    times_ms: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Median time in milliseconds."""
        return statistics.median(self.times_ms)

    @property
    def title(self) -> str:
        """The first ONNX node and the number of the others, or the function's name."""
        return nodes_text(self.nodes) or self.function


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Profile(Headline):
    """The calls of a run in order. Their times add up to the time of the run.

    The time of a run is divided among its calls in the ratio of their own times: each kernel is repeated where it
    stands, on the tensors of the run, by the device's clock, and host nodes are timed by the host's.

    device: name of the device.
    calls: the calls.
    whole_ms: median time of whole runs, as `TunedModel.time` returns it.
    """

    device: str
    calls: tuple[ProfiledCall, ...]
    whole_ms: float

    @property
    def headline(self) -> str:
        """The device, the time of a run and its longest call."""
        longest = max(self.calls, key=lambda call: call.ms, default=None)
        rest = "" if longest is None else f", {longest.ms:.3f} ms of them in {longest.title}"
        return f"{self.device}; {self.whole_ms:.3f} ms, {len(self.calls)} calls{rest}"

    @classmethod
    def of(cls, device: str, calls: Sequence[ProfiledCall], whole_ms: float) -> Profile:
        """Return the profile of a run of `whole_ms` on `device`, whose `calls` took their times by themselves."""
        total = sum(call.ms for call in calls)
        scale = whole_ms / total if total and whole_ms else 1.0
        divided = [
            dataclasses.replace(call, times_ms=tuple(scale * time_ms for time_ms in call.times_ms)) for call in calls
        ]
        return cls(device=device, calls=tuple(divided), whole_ms=whole_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with derived numbers."""
        calls = [{**dataclasses.asdict(call), "ms": call.ms, "title": call.title} for call in self.calls]
        return {"device": self.device, "whole_ms": self.whole_ms, "calls": calls}

    def to_trace(self) -> dict[str, Any]:
        """Return a trace for chrome://tracing or ui.perfetto.dev. One call follows the other without gaps."""
        events: list[dict[str, Any]] = [_name_event("process_name", 0, f"romou on {self.device}")]
        rows = {"device": 1, "host": 2}
        events += [_name_event("thread_name", row, place) for place, row in rows.items()]
        start_us = 0.0
        for call in self.calls:
            details = {"function": call.function, "layer": call.layer, "onnx_nodes": list(call.nodes)}
            place = {"cat": call.place, "pid": 0, "tid": rows[call.place]}
            times = {"ph": "X", "ts": start_us, "dur": 1e3 * call.ms}
            events.append({"name": call.title, **place, **times, "args": details})
            start_us += 1e3 * call.ms
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | Path) -> Path:
        """Write `to_trace` to the file `path`, and return its path."""
        path = Path(path)
        path.write_text(json.dumps(self.to_trace()), encoding="utf-8")
        return path


def named_calls(
    measured: Sequence[tuple[str, Sequence[float]]], planned: Sequence[CallRow], host: Sequence[tuple[str, ...]]
) -> Iterator[ProfiledCall]:
    """Yield the measured calls (function, milliseconds) with the names of their layers and nodes.

    planned: the model's calls in order. The n-th call of a function is the n-th one here.
    host: nodes of each group that runs on the host, in order. Such a call has an empty function.
    """
    rows: defaultdict[str, list[CallRow]] = defaultdict(list)
    for row in reversed(planned):
        rows[row.function].append(row)
    groups = iter(host)
    for function, times_ms in measured:
        times = tuple(times_ms)
        if not function:
            nodes = next(groups, ())
            yield ProfiledCall(function="onnxruntime", layer="host", nodes=nodes, place="host", times_ms=times)
            continue
        row = rows[function].pop() if rows[function] else CallRow(function=function, layer="", nodes=())
        yield ProfiledCall(
            function=function, layer=row.layer or function, nodes=row.nodes, place="device", times_ms=times
        )


def nodes_text(nodes: Sequence[str]) -> str:
    """Return names of nodes in short: the first, and the number of the others. "" for none."""
    return nodes[0] + (f" +{len(nodes) - 1}" if len(nodes) > 1 else "") if nodes else ""


def _name_event(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}
