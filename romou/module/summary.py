"""What tuning brought, as numbers: one row a task, and the whole model."""

from __future__ import annotations

import dataclasses
from typing import Any

from romou.module.memory import MemoryUse


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One task; key is empty in models that older versions saved. Times are medians of one call in milliseconds, None where nothing was measured."""

    name: str
    calls: int
    trials: int
    flops: int
    default_ms: float | None
    tuned_ms: float | None
    config: dict[str, Any]
    key: str = ""

    @property
    def gflops(self) -> float | None:
        """Billions of operations a second of the tuned kernel."""
        return self.flops / self.tuned_ms / 1e6 if self.tuned_ms else None

    @property
    def speedup(self) -> float | None:
        """default_ms / tuned_ms."""
        return self.default_ms / self.tuned_ms if self.default_ms and self.tuned_ms else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostRow:
    """Nodes that run on the host together, by onnxruntime. nodes: their names.   ms: mean of a run with its copies, None where nothing was measured."""

    nodes: tuple[str, ...]
    ms: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """A tuned model.

    default_ms, tuned_ms: the whole model with default and with tuned schedules, median in milliseconds, one session.
    relative_l2_error: of the tuned model's outputs against onnxruntime, the worst output; None where it was not checked.
    tolerance: what `relative_l2_error` may be.   launching: how the tuned model's runs were launched when it was timed, see `TunedModel.launching`.
    outcomes: how the trials of this run and its resumed ones ended, by name.   records: the folder that keeps them; None where they were not kept.
    host: nodes that run on the host, in order.
    precision: what was asked for: "float32", "float16" or "mixed".   fp32_layers: in fp16 and mixed models, first outputs of the nodes that stayed fp32.
    memory: on the device; None in models that older versions saved.
    checked_on: name of the device on which the outputs were checked; "" where they were not.
    """

    target: str
    device: str
    rows: tuple[LayerRow, ...]
    default_ms: float | None
    tuned_ms: float | None
    relative_l2_error: float | None
    outcomes: dict[str, int]
    seconds: float
    tolerance: float | None = None
    launching: str = ""
    records: str | None = None
    host: tuple[HostRow, ...] = ()
    precision: str = "float32"
    fp32_layers: tuple[str, ...] = ()
    memory: MemoryUse | None = None
    checked_on: str = ""

    @property
    def host_share(self) -> float | None:
        """Share of the tuned model's time that its host nodes take; None where that was not measured."""
        if self.tuned_ms is None or any(row.ms is None for row in self.host):
            return None
        # A model without kernels takes no time.
        host_ms = sum(row.ms or 0.0 for row in self.host)
        return min(1.0, host_ms / self.tuned_ms) if host_ms else 0.0

    @property
    def is_right(self) -> bool | None:
        """Whether the outputs agree with onnxruntime's; None where that was not checked."""
        return None if self.relative_l2_error is None or self.tolerance is None else self.relative_l2_error <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Plain data, derived numbers included."""
        data = dataclasses.asdict(self)
        data["rows"] = [{**dataclasses.asdict(r), "gflops": r.gflops, "speedup": r.speedup} for r in self.rows]
        data["memory"] = None if self.memory is None else self.memory.to_dict()
        data["is_right"] = self.is_right
        data["host_share"] = self.host_share
        data["speedup"] = self.default_ms / self.tuned_ms if self.default_ms and self.tuned_ms else None
        return data

    @classmethod
    def unmeasured(cls, *, target: str, rows: tuple[LayerRow, ...], seconds: float, host: tuple[HostRow, ...] = ()) -> Summary:
        """Return the summary of a model that was compiled and not measured."""
        return cls(target=target, device="", rows=rows, default_ms=None, tuned_ms=None, relative_l2_error=None, outcomes={}, seconds=seconds, host=host)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Summary:
        """Inverse of `to_dict`."""
        fields = {f.name for f in dataclasses.fields(LayerRow)}
        rows = tuple(LayerRow(**{k: v for k, v in row.items() if k in fields}) for row in data["rows"])
        host = tuple(HostRow(nodes=tuple(row["nodes"]), ms=row["ms"]) for row in data.get("host", ()))
        return cls(
            **{
                **{k: v for k, v in data.items() if k not in ("speedup", "is_right", "host_share")},
                "rows": rows,
                "host": host,
                "fp32_layers": tuple(data.get("fp32_layers", ())),
                "memory": None if data.get("memory") is None else MemoryUse.from_dict(data["memory"]),
            }
        )
