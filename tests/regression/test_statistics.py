"""Alarms under the noise of real machines, simulated with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from romou.tools.regression.bench_data import Rounds
from romou.tools.regression.comparison import ALPHA, STAGES, TimeVerdict, drift, time_verdicts
from romou.tools.regression.statistics import holm, paired_shift, unpaired_shift
from support.suite.exhaustive import exhaustive

OPERATORS = 30
LIMIT = 0.05


class Machine:
    """A machine that is shared: its speed wanders, it is at times one core short for many rounds, and now and then a
    repeat is cut off.
    """

    def __init__(self, seed: int, speed: float = 1.0):
        self.rng = np.random.default_rng(seed)
        self.speed = speed
        self.is_busy = False

    def step(self) -> None:
        self.speed *= np.exp(self.rng.normal(0, 0.02))
        # Busy times last for a dozen of rounds.
        self.is_busy ^= self.rng.random() < 0.08

    def repeats(self, ms: float) -> tuple[float, ...]:
        noise = np.exp(self.rng.normal(0, 0.01, 3)) * np.where(self.rng.random(3) < 0.1, self.rng.uniform(1.5, 6, 3), 1)
        return tuple(ms * self.speed * (1.9 if self.is_busy else 1.0) * noise)


class OwnMachine(Machine):
    """A machine that is not shared: its clock drifts a little, and occasionally a repeat is interrupted."""

    def step(self) -> None:
        self.speed *= np.exp(self.rng.normal(0, 0.0002))


def in_turns(seed: int, factors: dict[str, float], rounds: int = 16) -> dict[str, tuple[Rounds, Rounds]]:
    """Return pairs of `rounds` rounds. factors: the slowdown of an operator in the second of two versions."""
    machine = Machine(seed)
    pairs: dict[str, tuple[list, list]] = {f"op{i}": ([], []) for i in range(OPERATORS)}
    for _ in range(rounds):
        for i, (name, sides) in enumerate(pairs.items()):
            machine.step()
            times = (0.01 * 1.3**i, 0.01 * 1.3**i * factors.get(name, 1.0))
            for side in machine.rng.permutation(2):
                sides[side].append(machine.repeats(times[side]))
    return {name: (tuple(a), tuple(b)) for name, (a, b) in pairs.items()}


def session(machine: Machine, factors: dict[str, float], rounds: int = 16) -> dict[str, Rounds]:
    found: dict[str, list] = {"reference": [], **{f"op{i}": [] for i in range(OPERATORS)}}
    for _ in range(rounds):
        for name, times in found.items():
            machine.step()
            times.append(machine.repeats(factors.get(name, 1.0)))
    return {name: tuple(times) for name, times in found.items()}


def recorded(seed: int, factors: dict[str, float], speed: float, machine: type[Machine]) -> dict[str, TimeVerdict]:
    """Return verdicts on two sessions. In the second one the machine is `speed` times slower."""
    before, after = session(machine(seed), {}), session(machine(seed + 1000, speed), factors)
    reference = (before.pop("reference"), after.pop("reference"))
    return time_verdicts({name: (before[name], after[name]) for name in before}, LIMIT, machine=reference)


def verdicts(found: dict[str, TimeVerdict], verdict: str) -> set[str]:
    return {name for name, times in found.items() if times.verdict == verdict}


def test_equal_versions_in_turns_raise_no_alarm() -> None:
    for seed in range(20):
        assert verdicts(time_verdicts(in_turns(seed, {}), LIMIT), "slower") == set(), f"seed {seed}"


def test_one_operator_ten_percent_slower_is_found_and_no_other() -> None:
    for seed in range(10):
        found = time_verdicts(in_turns(seed, {"op7": 1.10}), LIMIT)
        assert verdicts(found, "slower") == {"op7"}, f"seed {seed}: {found['op7']}"
        assert 1.07 < found["op7"].shift.ratio < 1.13


def test_a_faster_operator_is_no_failure() -> None:
    found = time_verdicts(in_turns(3, {"op7": 0.8}), LIMIT)
    assert verdicts(found, "faster") == {"op7"}
    assert verdicts(found, "slower") == set()


def test_a_certain_shift_below_the_threshold_passes() -> None:
    found = time_verdicts(in_turns(4, {"op7": 1.03}, rounds=64), LIMIT)["op7"]
    assert found.p < ALPHA
    assert found.verdict == "same"
    assert time_verdicts(in_turns(4, {"op7": 1.03}, rounds=64), 0.01)["op7"].verdict == "slower"


def test_what_scatters_too_widely_is_undecided() -> None:
    before = tuple((1.0 + i / 100,) for i in range(8))
    after = tuple((t * (0.7 if i % 2 else 1.5),) for i, (t,) in enumerate(before))
    assert time_verdicts({"op": (before, after)}, LIMIT)["op"].verdict == "undecided"


@pytest.mark.parametrize("machine", [Machine, OwnMachine])
@pytest.mark.parametrize("speed", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("seeds", [6, pytest.param(20, marks=exhaustive)])
def test_recorded_sessions_of_equal_versions_raise_no_alarm(speed: float, machine: type[Machine], seeds: int) -> None:
    for seed in range(seeds):
        assert verdicts(recorded(seed, {}, speed, machine), "slower") == set(), f"seed {seed}"


def test_recorded_sessions_of_a_machine_of_ones_own_show_ten_percent() -> None:
    seen = [verdicts(recorded(seed, {"op7": 1.10}, 1.0, OwnMachine), "slower") for seed in range(20)]
    assert seen.count({"op7"}) >= 18
    assert seen.count(set()) + seen.count({"op7"}) == 20


def test_busy_sessions_tell_nothing() -> None:
    found = recorded(0, {"op7": 3.0}, 1.0, Machine)
    assert found["op7"].verdict == "undecided"


def test_the_reference_tells_how_slow_the_machine_was() -> None:
    before, after = (tuple(((1.0 + 0.001 * i) * speed,) for i in range(16)) for speed in (1.0, 1.5))
    assert drift((before, after)) == pytest.approx(1.5, rel=0.01)


def test_shifts_of_known_numbers() -> None:
    before = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    found = paired_shift(before, [1.1 * t for t in before])
    assert found.ratio == pytest.approx(1.1)
    assert found.p_slower == pytest.approx(2**-8)
    assert found.p_faster == 1.0
    assert paired_shift(before, before).p_slower == 1.0
    # All of one side above all of the other: one of the C(16, 8) orders.
    apart = unpaired_shift(before, [10 * t for t in before])
    assert apart.ratio == pytest.approx(10, rel=0.2)
    assert unpaired_shift(
        [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], [2, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7]
    ).p_slower == pytest.approx(1 / 12870)


def test_bounds_hold_the_true_shift() -> None:
    """99% bounds miss it in one of a hundred cases, here in at most 4 of 200."""
    missed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        before = np.exp(rng.normal(0, 0.1, 16))
        found = paired_shift(list(before), list(1.2 * before * np.exp(rng.standard_t(3, 16) * 0.05)))
        missed += not found.low <= 1.2 <= found.high
    assert missed <= 4


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, 0.5], stages=STAGES) == pytest.approx([0.06, 1.0])
    assert holm([]) == []
