"""The budget of a call of `tune`: it is handed down, and whatever spends it ends with it and says what it does."""

from __future__ import annotations

import time
from typing import Any

import pytest

import romou
from romou.base.clock import Deadline
from romou.driver.choice.finalist import WHOLE_MODEL_ROUNDS, alternate_times
from romou.driver.search.busy import ProcessorUse
from romou.driver.search.course import Course
from romou.tuner.search import SessionHooks, TaskResult, TuningSession
from romou.tuner.search.progress import Step
from support.models.small_networks import short_net


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_counts_down() -> None:
    clock = Clock()
    deadline = Deadline(10.0, clock)
    assert (deadline.left_s, deadline.before(3.0), deadline.is_over) == (10.0, 107.0, False)
    clock.now += 11
    assert (deadline.left_s, deadline.is_over) == (0.0, True)
    assert (Deadline().left_s, Deadline().before(3.0), Deadline().is_over) == (float("inf"), None, False)


@pytest.mark.parametrize(
    ("seconds", "compile_s", "left_s"), [(10.0, 4.0, 3.0), (60.0, 4.0, 13.0), (600.0, 0.0, 5.0), (None, 4.0, 0.0)]
)
def test_a_search_leaves_time_for_what_follows(seconds: float | None, compile_s: float, left_s: float) -> None:
    course = Course(started=time.monotonic() - compile_s).searching(seconds)
    assert course.left_for_finish_s == pytest.approx(left_s, abs=0.1)
    assert course.deadline.left_s == pytest.approx(float("inf") if seconds is None else seconds, abs=0.1)


class SlowModel:
    """A model each run of which takes four seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.calls = clock, 0

    def times(self, *, repeat: int) -> list[float]:
        self.calls += 1
        self.clock.now += 4.0 * repeat
        return [4e3] * repeat


class NoSite:
    def alone(self) -> Any:
        return Step("", False)


@pytest.mark.parametrize(("seconds", "rounds"), [(None, WHOLE_MODEL_ROUNDS), (1.0, 2), (13.0, 3)])
def test_a_slow_model_has_fewer_rounds_after_the_deadline(seconds: float | None, rounds: int) -> None:
    clock = Clock()
    model: Any = SlowModel(clock)
    site: Any = NoSite()
    (times, _) = alternate_times((model, model), site, Deadline(seconds, clock))
    assert len(times) == rounds


def test_the_search_ends_before_the_budget_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search, the second measurement of winners, and what follows end one after the other."""
    hooks: list[SessionHooks] = []

    def run(session: TuningSession, _progress: Any) -> dict[str, TaskResult]:
        hooks.append(session._hooks)
        return {}

    monkeypatch.setattr(TuningSession, "run", run)
    began = time.monotonic()
    romou.tune(short_net(), target="null", trials=2, seconds=100.0, work_dir=False)
    (hook,) = hooks
    assert hook.stop_at is not None
    assert hook.confirm_until is not None
    assert began + 69 < hook.stop_at < hook.confirm_until < time.monotonic() + 100.0


def test_a_step_speaks_only_if_it_takes_long() -> None:
    said: list[str] = []
    with Step("waiting", True, after_s=0.0, out=said.append):
        stop_at = time.monotonic() + 10
        while not said and time.monotonic() < stop_at:
            pass
    with Step("quick", True, after_s=60.0, out=said.append), Step("unwanted", False, after_s=0.0, out=said.append):
        pass
    assert said == ["waiting ..."]


@pytest.mark.parametrize(
    ("load", "stolen", "words"),
    [
        (0.1, 0, ""),
        (1.8, 0, "busy: 1.8 other processes want each core. Times scatter"),
        (0.0, 20, "busy: other virtual machines take 20% of its time. Times scatter"),
        (1.8, 20, "1.8 other processes want each core and other virtual machines take 20%"),
    ],
)
def test_a_busy_processor_is_named_with_what_that_does(load: float, stolen: int, words: str) -> None:
    before = ProcessorUse(load=load, stolen=10, total=1000)
    text = before.complaint(ProcessorUse(load=9.0, stolen=10 + stolen, total=1100))
    assert words in text
    assert bool(words) == bool(text)
    assert ProcessorUse.now().load >= 0
