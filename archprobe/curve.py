"""The results of a probe: curves with the points found on them, answers, and its final state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from archprobe.analysis.answer import Answer
from archprobe.errors import ReportError

STATES = ("done", "not_applicable", "failed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A series of a sweep: `y` over `x`, with their units.

    spread: the relative scatter of repeated points, 0 if unknown
    marks: positions in x that the analysis found, by the key of their answer
    picture: curves of one picture are drawn together
    """

    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: float = 0.0
    repeats: int = 1
    marks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_log_x: bool = False
    picture: str = ""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.name}: {len(self.x)} positions but {len(self.y)} values")

    @property
    def xs(self) -> np.ndarray:
        return np.array(self.x)

    @property
    def ys(self) -> np.ndarray:
        return np.array(self.y)

    def marked(self, answers: Mapping[str, Answer]) -> Curve:
        """Return this curve with the numbers of `answers` as marks. Words and declined answers leave none."""
        numbers = {
            k: float(a.value)
            for k, a in answers.items()
            if isinstance(a.value, (int, float)) and not isinstance(a.value, bool)
        }
        return dataclasses.replace(self, marks={**self.marks, **numbers})

    @property
    def knees(self) -> dict[str, tuple[float, float]]:
        """The marks on the curve: key -> x, and y interpolated there. Marks beyond the swept positions are left out."""
        if not self.x:
            return {}
        order = np.argsort(self.xs)
        return {
            key: (at, float(np.interp(at, self.xs[order], self.ys[order])))
            for key, at in self.marks.items()
            if min(self.x) <= at <= max(self.x)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, which ``from_dict`` reads back."""
        data = dataclasses.asdict(self)
        return {**data, "x": _short(self.x), "y": _short(self.y), "marks": dict(self.marks)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Curve:
        return Curve(**{**data, "x": tuple(data["x"]), "y": tuple(data["y"])})


def _short(values: Sequence[float]) -> list[float]:
    """Round to seven digits: more than any timer has, and half the size of the file."""
    return [float(f"{v:.7g}") for v in values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """The results of one probe.

    answers: by the keys of the report
    state, reason: the final state of the probe, one of STATES, and its cause
    runs: the number of measurements. An answer holds in all of them.
    """

    answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    state: str = "done"
    reason: str = ""
    method: str = ""
    seconds: float = 0.0
    runs: int = 1

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"a probe ends as one of {', '.join(STATES)}, not as {self.state!r}")
        if self.state != "done" and not self.reason:
            raise ValueError(f"a probe that is {self.state} says why")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, which ``from_dict`` reads back."""
        return {
            "State": self.state,
            "Reason": self.reason,
            "Method": self.method,
            "Seconds": round(self.seconds, 3),
            "Runs": self.runs,
            "Answers": {key: answer.to_dict() for key, answer in self.answers.items()},
            "Curves": [curve.to_dict() for curve in self.curves],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Findings:
        """Read findings from data. ReportError if a key is missing or has an invalid value."""
        try:
            return Findings(
                state=data["State"],
                reason=data["Reason"],
                method=data["Method"],
                seconds=data["Seconds"],
                runs=data.get("Runs", 1),
                answers={key: Answer.from_dict(answer) for key, answer in data["Answers"].items()},
                curves=tuple(Curve.from_dict(curve) for curve in data["Curves"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"a probe's findings are unreadable: {error}") from error


def not_applicable(reason: str) -> Findings:
    """Make the findings of a probe that has no meaning on this device."""
    return Findings(state="not_applicable", reason=reason)
