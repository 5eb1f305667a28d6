"""The result of an analysis: a value with an interval and a confidence, or no value and the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

Value = float | int | str | bool
# Highest confidence if each point was measured only once.
_ONCE = 0.85


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A number (or word) about a device.

    `confidence`, from 0 to 1, is the analysis's confidence that the true number is in [low, high], or that the word is
    right. It is 0 only if the analysis declined: `value` is None then, and `reason` says why. `notes` holds the
    remaining doubts, one sentence each.
    """

    value: Value | None
    unit: str
    confidence: float
    reason: str
    low: float | None = None
    high: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.value is None) != (self.confidence == 0):
            raise ValueError(
                f"an answer without a value has confidence 0 and no other: value {self.value!r}, confidence"
                f" {self.confidence}"
            )
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence must be in 0 to 1, got {self.confidence}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has two ends, got {self.low!r} and {self.high!r}")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"an interval must not end below its start: {self.low:g} to {self.high:g} {self.unit}")
        if not self.reason:
            raise ValueError("an answer says how it was found, or why it was not")

    @property
    def is_declined(self) -> bool:
        return self.value is None

    def number(self) -> float:
        """Return the value as a float. ValueError if the answer is declined or a word."""
        if isinstance(self.value, (int, float)):
            return float(self.value)
        raise ValueError(f"no number here: {self.value!r} ({self.reason})")

    @property
    def interval(self) -> tuple[float, float]:
        """The interval (low, high). ValueError if the answer has none."""
        if self.low is None or self.high is None:
            raise ValueError(f"no interval here: {self.value!r} ({self.reason})")
        return self.low, self.high

    def with_notes(self, *notes: str) -> Answer:
        return dataclasses.replace(self, notes=self.notes + tuple(n for n in notes if n))

    def measured(self, repeats: int) -> Answer:
        """Return this answer, with less confidence if each point was measured only once.

        A lone spike then looks like a jump or a level.
        """
        if repeats >= 2 or self.confidence <= _ONCE:
            return self
        return dataclasses.replace(self, confidence=_ONCE).with_notes(
            "each point was measured once: a spike would look the same"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, which ``from_dict`` reads back."""
        return {**dataclasses.asdict(self), "notes": list(self.notes)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Answer:
        return Answer(**{**data, "notes": tuple(data.get("notes", ()))})


def answered(
    value: Value,
    unit: str,
    confidence: float,
    reason: str,
    *,
    low: float | None = None,
    high: float | None = None,
    **more: Any,
) -> Answer:
    """Make an answer.

    A number without an interval gets [value, value]. Confidence stays below 1: a curve proves nothing.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = value if low is None else low, value if high is None else high
    return Answer(
        value=value,
        unit=unit,
        confidence=round(float(min(confidence, 0.999)), 4),
        reason=reason,
        low=low,
        high=high,
        **more,
    )


def declined(unit: str, reason: str, **more: Any) -> Answer:
    """Make an answer without a value, with the reason."""
    return Answer(value=None, unit=unit, confidence=0.0, reason=reason, **more)


def ratio(over: Answer, under: Answer, unit: str, confidence: float, reason: str) -> Answer:
    """Divide two answers with their intervals. The result is declined if one of them is."""
    for needed in (over, under):
        if needed.is_declined:
            return declined(unit, needed.reason)
    low, high = over.interval[0] / under.interval[1], over.interval[1] / under.interval[0]
    return answered(over.number() / under.number(), unit, confidence, reason, low=low, high=high)
