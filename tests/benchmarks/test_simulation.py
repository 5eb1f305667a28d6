"""A recorded space in place of a device: the same seed is the same run, only recorded configs are tried, and the clock
adds up.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from romou.base.errors import RecordError
from romou.tuner.records.recorded_space import RecordedSpace
from romou.tuner.search import SessionHooks, TuningOptions, TuningSession
from simulation import SimulatedDevice, SimulatedSpace, SimulatedTask
from support.data.recordings import TARGET, recorded

DATA = Path(__file__).parents[2] / "benchmarks/data/spaces_h200"


def run(task: SimulatedTask, stop_at: float | None = None, **options: object) -> tuple[list[tuple[str, str]], float]:
    """Return (the tried configs in order, each with its outcome, and the seconds on the clock)."""
    device, store = SimulatedDevice([task]), []
    made = TuningSession(
        [task],
        TARGET,
        store=store,
        builder=device,
        runner=device,
        options=TuningOptions(**{"confirm": 0, **options}),
        hooks=SessionHooks(clock=device.clock, stop_at=stop_at),
    )  # type: ignore[arg-type]
    made.run()
    return [(str(r.config), r.outcome) for r in store], device.clock()


def test_the_same_seed_is_the_same_run() -> None:
    task = SimulatedTask.of_recording(recorded())
    first, second, other = (run(task, trials=40, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert len(first[0]) == 40
    assert first[0] != other[0]
    assert first[0][0] == other[0][0]  # the default config


def test_all_that_is_recorded_is_tried_once() -> None:
    task = SimulatedTask.of_recording(recorded())
    tried, _ = run(task, trials=1000, patience=1000)
    assert len(tried) == len(set(tried)) == 60


def test_only_what_is_allowed_is_tried() -> None:
    made = recorded()
    allowed = set(list(made.configs)[10:30])
    task = SimulatedTask.of_recording(made, allowed)
    tried, _ = run(task, trials=1000, patience=1000)
    assert {text for text, _ in tried} == {str(dict(made.space().at(i))) for i in allowed | {made.context["default"]}}


def test_neighbours_are_near() -> None:
    made = recorded()
    space, rng = SimulatedSpace(made), np.random.default_rng(0)
    configs = list(space)
    assert len(configs) == len(space) == 60

    def distance(a: object, b: object) -> int:
        return sum(x != y for x, y in zip(a.values(), b.values(), strict=True))  # type: ignore[attr-defined]

    near = np.mean([distance(c, child) for c, child in zip(configs, space.mutated(configs, rng), strict=True)])
    far = np.mean([distance(a, b) for a in configs for b in configs if a != b])
    assert near < far
    children = space.mutated(configs, rng)
    assert all(child != c and space.is_valid(child) for c, child in zip(configs, children, strict=True))


@pytest.mark.parametrize(("is_host_cpu", "seconds"), [(False, 3.0), (True, 3.25)])
def test_the_clock_overlaps_builds_with_the_device(is_host_cpu: bool, seconds: float) -> None:
    made = recorded(9, is_host_cpu=is_host_cpu)
    for index in made.configs:
        made.configs[index] = dataclasses.replace(made.configs[index], outcome="ok", times_s=(1e-6,))
    # First only the default config, then eight at a time: 0.5 s, then 0.25 s of the device. The others are built
    # meanwhile, unless builds need the same cores.
    tried, end = run(SimulatedTask.of_recording(made), trials=9, batch_size=8)
    assert len(tried) == 9
    assert end == pytest.approx(seconds)


def test_a_budget_of_seconds_is_kept_by_the_clock() -> None:
    tried, end = run(SimulatedTask.of_recording(recorded()), 5.0, trials=1000)
    assert end <= 5.0
    assert 3 < len(tried) < 30


def test_what_does_not_belong_is_refused() -> None:
    made = recorded()
    other = dataclasses.replace(made, task={**made.task, "key": "0" * 16})
    with pytest.raises(RecordError, match="recorded for kernel 0000"):
        SimulatedTask.of_recording(other)
    tasks = [SimulatedTask.of_recording(r) for r in (made, recorded(name="another"))]
    object.__setattr__(tasks[1], "key", "1" * 16)
    with pytest.raises(RecordError, match="several devices"):
        SimulatedDevice(tasks)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json.gz")), ids=lambda path: path.name.partition(".")[0])
def test_committed_recordings_are_simulated(path: Path) -> None:
    task = SimulatedTask.of_recording(RecordedSpace.load(path))
    assert len(run(task, trials=10)[0]) == 10
