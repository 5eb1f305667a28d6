"""Merges two runs of a probe. A number that the second run contradicts is declined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from archprobe.analysis.answer import Answer, Value, declined
from archprobe.curve import Curve, Findings

# Rates that differ by more than this contradict each other, whatever their intervals: the machine is too busy to
# measure.
_APART = 1.25
# Units of counts, which are equal in two runs on one device.
_COUNTED = ("count", "work-items", "work-groups", "registers", "components", "texels")
# Confidence of an answer that only one of two runs gave.
_ONCE = 0.7
_NOT_CONFIRMED = "one run, which no second one has confirmed yet"


def unconfirmed(findings: Findings) -> Findings:
    """Return a first run's findings as hints: no answer is surer than one of two runs can be."""
    answers = {
        key: answer
        if answer.is_declined
        else dataclasses.replace(answer, confidence=min(answer.confidence, _ONCE)).with_notes(_NOT_CONFIRMED)
        for key, answer in findings.answers.items()
    }
    return dataclasses.replace(findings, answers=answers)


def confirmed(first: Findings, second: Findings) -> Findings:
    """Return the first run's findings, each answer compared with the second run's, whose confidence it takes.

    An answer keeps the union of both intervals. It is declined if the runs contradict each other: words or counts that
    differ, or rates more than 1.25 times apart.
    """
    if first.state != "done" or second.state != "done":
        return first if first.state != "done" else second
    answers = {
        key: _confirmed(answer, second.answers.get(key, declined(answer.unit, "the second run shows nothing like it")))
        for key, answer in first.answers.items()
    }
    return dataclasses.replace(
        first,
        answers=answers,
        curves=_marked(first, answers),
        seconds=first.seconds + second.seconds,
        runs=first.runs + second.runs,
    )


def _confirmed(first: Answer, second: Answer) -> Answer:
    if first.is_declined:
        return first
    first = dataclasses.replace(first, notes=tuple(note for note in first.notes if note != _NOT_CONFIRMED))
    if second.is_declined:
        doubt = f"a second run did not see it: {second.reason}"
        return dataclasses.replace(first, confidence=min(first.confidence, _ONCE)).with_notes(doubt)
    if not _agree(first, second):
        return declined(first.unit, f"two runs contradict each other: {_text(first.value)} and {_text(second.value)}")
    first = dataclasses.replace(first, confidence=second.confidence, notes=second.notes)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return first
    return dataclasses.replace(first, low=min(first.low, second.low), high=max(first.high, second.high))


def _agree(first: Answer, second: Answer) -> bool:
    a, b = first.value, second.value
    if isinstance(a, (str, bool)) or isinstance(b, (str, bool)) or a is None or b is None:
        return a == b
    has_intervals = first.low is not None and second.low is not None
    if has_intervals and (_covers(first, float(b)) or _covers(second, float(a))):
        return True
    if first.unit in _COUNTED:
        return a == b
    return max(a, b) <= _APART * min(a, b)


def _covers(answer: Answer, value: float) -> bool:
    low, high = answer.interval
    return low <= value <= high


def _text(value: Value | None) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _marked(findings: Findings, answers: Mapping[str, Answer]) -> tuple[Curve, ...]:
    """Return the curves without the marks of the answers now declined."""
    gone = {key for key, answer in answers.items() if answer.is_declined}
    return tuple(
        dataclasses.replace(curve, marks={key: at for key, at in curve.marks.items() if key not in gone})
        for curve in findings.curves
    )
