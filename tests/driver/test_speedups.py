"""Ten searches of one model on a noisy device: no speedup of equal kernels is claimed, and a faster config is found."""

from __future__ import annotations

import random
from typing import Any

import onnx
import pytest

import romou
from romou.api.tune import searching
from romou.compiler.compilation import Compilation, import_model
from romou.driver import model
from romou.driver.choice import finalist, finish
from romou.driver.options import TuneOptions
from romou.driver.search.course import Course
from romou.tuner.search import TaskResult, TuningSession
from support.models.small_networks import NetworkBuilder

SEED = 5


def mobile() -> onnx.ModelProto:
    """Return a network with a depthwise and a pointwise convolution, which may become one kernel."""
    g = NetworkBuilder({"x": (1, 8, 15, 15)})
    y = g.add("Relu", g.conv("x", 8, 16))
    y = g.add("Relu", g.conv(y, 16, 16, kernel=(3, 3), pads=[1, 1, 1, 1], groups=16))
    return g.model(g.conv(y, 16, 24, kernel=(1, 1)))


class NoisyDevice:
    """Models that take a millisecond, or less with the planted config, on a device with exponential noise.

    planted: whether the search finds another config of the first task, with which the model takes a third of the time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, planted: bool, noise: float) -> None:
        self.rng, self.noise, self.planted = random.Random(SEED), noise, planted
        self.made: dict[romou.TunedModel, Compilation] = {}
        self.defaults: dict[str, Any] = {}
        make = model.tuned_model

        def tuned_model(compilation: Compilation, *arguments: Any) -> romou.TunedModel:
            made = make(compilation, *arguments)
            self.made[made] = compilation
            return made

        monkeypatch.setattr(finalist, "tuned_model", tuned_model)
        monkeypatch.setattr(finalist, "time_layers", lambda *_: {})
        monkeypatch.setattr(TuningSession, "run", lambda session, _progress: self.results(session))
        monkeypatch.setattr(romou.TunedModel, "times", lambda tuned, *, repeat: [self.time_of(tuned)] * repeat)

    def results(self, session: TuningSession) -> dict[str, TaskResult]:
        """Return what six trials find: one config of each task, none of the kernel that joins two."""
        results = {}
        assert session._prior.alternatives, "the convolutions may be one kernel"
        for number, state in enumerate(session._states):
            is_joined = state.task.key in session._prior.alternatives
            is_other = self.planted and number == 0
            self.defaults[state.task.key] = state.default
            results[state.task.key] = TaskResult(
                task_key=state.task.key,
                config=next(config for config in state.space if config != state.default) if is_other else state.default,
                best_ms=None if is_joined else 0.3,
                default_ms=None if is_joined else 0.9 if is_other else 0.3,
                is_default=not is_other,
                trials=0 if is_joined else 2,
                outcomes={},
            )
        return results

    def time_of(self, tuned: romou.TunedModel) -> float:
        configs = self.made[tuned].configs
        is_default = all(configs.get(key, config) == config for key, config in self.defaults.items())
        return (1.0 if is_default else 1 / 3) * (1 + self.noise * self.rng.expovariate(1.0))

    def summaries(self, count: int) -> list[romou.TunedModel]:
        options = TuneOptions.from_dict({"target": "null", "trials": 6, "work_dir": False, "progress": False})
        course = Course()
        with searching(lambda: import_model(mobile(), None), options, course) as (site, search, kernels):
            return [finish.finish(search.run(kernels, course), site, course) for _ in range(count)]


@pytest.mark.parametrize("noise", [0.05, 0.5, 3.0])
def test_ten_searches_that_find_nothing_claim_nothing(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    for tuned in NoisyDevice(monkeypatch, planted=False, noise=noise).summaries(10):
        summary = tuned.summary()
        assert summary.speedup is None
        assert summary.default_ms == summary.tuned_ms
        assert "no faster configs found" in repr(tuned)
        assert all(row.speedup is None and row.default_ms == row.tuned_ms for row in summary.rows)


def test_ten_searches_that_find_a_faster_config_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for tuned in NoisyDevice(monkeypatch, planted=True, noise=0.3).summaries(10):
        speedup = tuned.summary().speedup
        assert speedup is not None
        assert speedup > 1.5
