"""The choice of tuned kernels by times of the whole model: which remain, and how many models are compiled for it."""

from __future__ import annotations

import importlib
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import romou
from romou.api.tune import searching
from romou.base.space import Config
from romou.compiler import task as task_module
from romou.compiler.compilation import Compilation, import_model
from romou.driver import model
from romou.driver.choice import finalist
from romou.driver.choice.finish import finish
from romou.driver.choice.kept import FOLDER_NAME, choice_of
from romou.driver.choice.whole_model import GROUPS, MOST_ROUNDS, Kept, best_by_model_time
from romou.driver.options import TuneOptions
from romou.driver.search import course as courses
from romou.driver.search.course import Course
from romou.runtime.module import Timed
from romou.tuner.measure import DeviceFingerprint
from romou.tuner.search import TaskResult, TuningSession
from support.models.small_networks import NetworkBuilder

MOST_COMPILED = 1 + GROUPS + 5 * (MOST_ROUNDS - 1)
NOISE = 0.002


class Models:
    """Models of tuned kernels, with times as a function of the chosen set."""

    def __init__(self, time_of: Callable[[Kept], float]) -> None:
        self.time_of = time_of
        self.compiled: list[Kept] = []

    def compare(self, best: Kept, sets: Sequence[Kept]) -> Mapping[Kept, float]:
        self.compiled += sets
        shares = {kept: self.time_of(kept) / self.time_of(best) for kept in sets}
        return {kept: share if share < 1.0 - NOISE else max(share, 1.0) for kept, share in shares.items()}


def additive(effects: Mapping[str, float]) -> Callable[[Kept], float]:
    return lambda kept: 100.0 + sum(effects[key] for key in kept)


def chosen(saved: Mapping[str, float], time_of: Callable[[Kept], float]) -> tuple[Kept, list[Kept]]:
    models = Models(time_of)
    kept = best_by_model_time(saved, models.compare, lambda: True)
    assert frozenset() not in models.compiled
    assert len(models.compiled) == len(set(models.compiled)) <= MOST_COMPILED
    assert time_of(kept) <= time_of(frozenset(saved))
    return kept, models.compiled


SAVED = {"a": 8.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0, "f": 1.0, "g": 0.5, "h": 0.5}


def test_kernels_that_help_together_are_all_kept() -> None:
    assert chosen(SAVED, additive({key: -saved for key, saved in SAVED.items()}))[0] == SAVED.keys()


def test_a_kernel_that_is_faster_only_in_isolation_is_put_back() -> None:
    effects = {key: -saved for key, saved in SAVED.items()} | {"a": 6.0}
    assert chosen(SAVED, additive(effects))[0] == SAVED.keys() - {"a"}


def test_of_a_group_that_is_put_back_the_kernels_that_help_are_added_again() -> None:
    effects = {key: -saved for key, saved in SAVED.items()} | {"g": 10.0, "h": 9.0}
    kept, _ = chosen(SAVED, additive(effects))
    assert {"a", "b", "c", "d"} <= kept
    assert not {"g", "h"} & kept


def test_groups_that_each_slow_the_model_down_are_put_back_together() -> None:
    effects = dict.fromkeys(SAVED, 3.0) | {"a": -8.0}
    assert chosen(SAVED, additive(effects))[0] == {"a"}


def test_kernels_that_are_slow_only_beside_each_other() -> None:
    def time_of(kept: Kept) -> float:
        return 100.0 - sum(SAVED[key] for key in kept) + 15.0 * ({"b", "h"} <= kept)

    kept, _ = chosen(SAVED, time_of)
    assert not {"b", "h"} <= kept
    assert time_of(kept) <= 100.0 - sum(SAVED.values()) + max(SAVED["b"], SAVED["h"])


def test_what_is_below_the_noise_is_not_put_back() -> None:
    effects = {key: -saved for key, saved in SAVED.items()} | {"g": 0.05, "h": 0.05}
    assert chosen(SAVED, additive(effects))[0] == SAVED.keys()


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_at_least_as_fast_as_all_kernels(seed: int) -> None:
    rng = random.Random(seed)
    saved = {f"{number:02}": rng.expovariate(1.0) for number in range(rng.randint(1, 40))}
    effects = {key: rng.gauss(-0.5, 1.0) * time_ms for key, time_ms in saved.items()}
    chosen(saved, additive(effects))


def test_without_time_the_half_that_saves_the_most_is_tried_only_if_all_do_not_help() -> None:
    for worst, expected in (("a", set(SAVED)), ("h", set("abcd"))):
        effects = {key: -saved for key, saved in SAVED.items()} | ({"h": 40.0} if worst == "h" else {})
        models = Models(additive(effects))
        assert best_by_model_time(SAVED, models.compare, lambda: False) == expected
        assert len(models.compiled) == (1 if worst == "a" else 2)  # with all kernels, which is compiled before


def test_time_that_runs_out_ends_the_rounds() -> None:
    effects = dict.fromkeys(SAVED, 3.0) | {"a": -8.0}
    answers = iter([True, False])
    models = Models(additive(effects))
    kept = best_by_model_time(SAVED, models.compare, lambda: next(answers))
    assert len(models.compiled) <= 1 + GROUPS
    assert additive(effects)(kept) < additive(effects)(frozenset(SAVED))


def test_kernels_without_times_form_groups_of_equal_numbers() -> None:
    effects = dict.fromkeys("abcdefgh", -1.0) | {"c": 30.0}
    assert chosen(dict.fromkeys("abcdefgh", 0.0), additive(effects))[0] == set("abdefgh")


# Whole models


def network(convs: int) -> Any:
    graph, x = NetworkBuilder({"x": (1, 8, 15, 15)}), "x"
    for number in range(convs):
        x = graph.conv(x, 8 + number, 9 + number)
    return graph.model(x)


class FakeSearch:
    """Searches of one model. They find the configs with these `numbers`, 0 for the default one, task by task.

    costs: task number -> number of a config -> its time in the model, on the target "null".
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: Sequence[Sequence[float]], target: str = "null") -> None:
        self.costs, self.numbers, self.target = costs, [0] * len(costs), target
        self.configs: dict[str, list[Config]] = {}
        self.made: dict[romou.TunedModel, Compilation] = {}
        make = model.tuned_model

        def tuned_model(compilation: Compilation, *arguments: Any) -> romou.TunedModel:
            made = make(compilation, *arguments)
            self.made[made] = compilation
            return made

        monkeypatch.setattr(finalist, "tuned_model", tuned_model)
        monkeypatch.setattr(
            finalist,
            "time_layers",
            lambda *_: dict.fromkeys(self.configs, Timed(default_ms=2.0, tuned_ms=1.0)),
        )
        monkeypatch.setattr(TuningSession, "run", lambda session, _progress: self.results(session))
        if target == "null":
            monkeypatch.setattr(romou.TunedModel, "times", lambda tuned, *, repeat: [self.time_of(tuned)] * repeat)

    def results(self, session: TuningSession) -> dict[str, TaskResult]:
        for state in session._states:
            others = itertools.islice((config for config in state.space if config != state.default), 3)
            self.configs.setdefault(state.task.key, [state.default, *others])
        return {
            key: TaskResult(
                task_key=key,
                config=configs[number],
                best_ms=1.0 if number else 2.0,
                default_ms=2.0,
                is_default=not number,
                trials=2,
                outcomes={"ok": 2},
            )
            for (key, configs), number in zip(self.configs.items(), self.numbers, strict=True)
        }

    def numbers_of(self, tuned: romou.TunedModel) -> list[int]:
        configs = self.made[tuned].configs
        return [known.index(configs.get(key) or known[0]) for key, known in self.configs.items()]

    def time_of(self, tuned: romou.TunedModel) -> float:
        return 10.0 + sum(costs[number] for costs, number in zip(self.costs, self.numbers_of(tuned), strict=True))

    def finished(self, found: Sequence[Sequence[int]], share: float) -> list[romou.TunedModel]:
        """Return the models after pauses of one search, in which it has found these configs.

        share: see `CHOICE_SHARE`.
        """
        tuned: list[romou.TunedModel] = []
        options = TuneOptions.from_dict({"target": self.target, "trials": 2, "work_dir": False, "progress": False})
        course = Course(started=time.monotonic() - 60.0)
        with (
            searching(lambda: import_model(network(len(self.costs)), None), options, course) as (site, search, kernels),
            patch.object(courses, "CHOICE_SHARE", share),
        ):
            for self.numbers in found:
                searched = search.run(kernels, course)
                before = choice_of(tuned[-1], searched.compilation) if tuned else None
                tuned.append(finish(searched, site, course, before=before))
                summary = tuned[-1].summary()
                assert summary.default_ms is not None
                assert summary.tuned_ms is not None
                assert summary.tuned_ms <= summary.default_ms
                if self.target == "null":
                    assert summary.tuned_ms == self.time_of(tuned[-1])
                row_of = {row.key: row for row in summary.rows}
                for number, (key, configs) in zip(self.numbers_of(tuned[-1]), self.configs.items(), strict=True):
                    assert row_of[key].config == dict(configs[number])
        return tuned


ENOUGH = 100.0


def test_a_model_has_no_kernels_that_slow_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(monkeypatch, [(2.0, 1.0), (2.0, 2.5), (2.0, 1.0), (2.0, 1.0), (2.0, 2.2), (2.0, 1.0)])
    (tuned,) = search.finished([[1] * 6], ENOUGH)
    assert search.numbers_of(tuned) == [1, 0, 1, 1, 0, 1]
    assert len(search.made) <= 2 + MOST_COMPILED


def test_a_model_whose_kernels_all_help_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(monkeypatch, [(2.0, 1.0)] * 6)
    (tuned,) = search.finished([[1] * 6], ENOUGH)
    assert search.numbers_of(tuned) == [1] * 6
    assert len(search.made) <= 2 + MOST_COMPILED


def test_a_search_without_time_to_spare_compiles_no_other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(monkeypatch, [(2.0, 1.0), (2.0, 2.5), (2.0, 1.0)])
    (tuned,) = search.finished([[1] * 3], 0.0)
    assert search.numbers_of(tuned) == [1] * 3
    assert len(search.made) == 2


def test_kernels_are_kept_from_an_earlier_model_where_newer_ones_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(monkeypatch, [(2.0, 1.0, 1.4), (2.0, 1.0, 0.5), (2.0, 1.0, 1.2), (2.0, 1.0, 0.7)])
    first, second = search.finished([[1, 1, 1, 1], [2, 2, 2, 2]], ENOUGH)
    assert search.numbers_of(first) == [1, 1, 1, 1]
    assert search.numbers_of(second) == [1, 2, 1, 2]


@pytest.mark.parametrize("share", [0.0, ENOUGH])
def test_a_later_model_is_not_slower(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    search = FakeSearch(monkeypatch, [(2.0, 1.0, 1.4)] * 3)
    models = search.finished([[1, 1, 1], [2, 2, 2], [0, 0, 0], [1, 1, 1]], share)
    assert [search.numbers_of(each) for each in models] == [[1, 1, 1]] * 4


def test_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    search = FakeSearch(monkeypatch, [(0.0, 0.0)] * 3, target="opencl")
    (tuned,) = search.finished([[1, 1, 1]], ENOUGH)
    assert tuned.summary().is_right
    assert len(search.made) > 2


# Several calls of `tune`


class Calls:
    """Calls of `tune` with one `work_dir`. The times of the search say that every config it found is faster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work_dir: Path, costs: Sequence[Sequence[float]]) -> None:
        self.search, self.work_dir = FakeSearch(monkeypatch, costs), work_dir

    def numbers_after(self, found: Sequence[int], **options: Any) -> list[int]:
        """Return the numbers of the configs that the model has if the search has found these."""
        self.search.numbers = list(found)
        self.search.configs.clear()
        keywords = {"target": "null", "trials": 2, "work_dir": self.work_dir, "progress": False} | options
        return self.search.numbers_of(romou.tune(network(len(self.search.costs)), **keywords))

    def file(self) -> Path:
        (path,) = (self.work_dir / FOLDER_NAME).iterdir()
        return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    return Calls(monkeypatch, tmp_path, [(2.0, 1.0, 1.4)] * 3)


def test_a_later_call_is_not_slower_than_an_earlier_one(calls: Calls) -> None:
    assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    assert calls.numbers_after([2, 2, 2]) == [1, 1, 1]
    assert calls.numbers_after([0, 0, 0]) == [1, 1, 1]


def test_a_choice_of_an_older_version_is_found(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for user in ("task", "graph.join_chains"):
            module = importlib.import_module(f"romou.compiler.{user}")
            patched.setattr(module, "key_of", lambda plain, _: task_module.structure_of(plain))
        assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    old = calls.file()
    calls.search.configs.clear()
    assert calls.numbers_after([2, 2, 2]) == [1, 1, 1]
    assert not set(json.loads(old.read_text())) & set(calls.search.configs)


@pytest.mark.parametrize("options", [{"target": "null -device=adreno640"}, {"precision": "float16"}])
def test_a_choice_is_of_one_target_and_precision(calls: Calls, options: Mapping[str, str]) -> None:
    assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    assert calls.numbers_after([2, 2, 2], **options) == [2, 2, 2]


def test_a_choice_is_of_one_device(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    of_facts = DeviceFingerprint.of_facts
    monkeypatch.setattr(DeviceFingerprint, "of_facts", lambda kind, facts: of_facts(kind, {**facts, "driver": "other"}))
    assert calls.numbers_after([2, 2, 2]) == [2, 2, 2]


def test_a_damaged_choice_is_named_and_replaced(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    whole = calls.file().read_text()
    for text in (whole[: len(whole) // 2], "[]", "7", '{"key": 7}'):
        calls.file().write_text(text)
        caplog.clear()
        assert calls.numbers_after([2, 2, 2]) == [2, 2, 2]
        assert f"{calls.file()} is not used, since it is damaged" in caplog.text
        calls.file().unlink()
        assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]


def test_a_choice_of_other_knobs_is_not_used(calls: Calls) -> None:
    assert calls.numbers_after([1, 1, 1]) == [1, 1, 1]
    calls.file().write_text(calls.file().read_text().replace("tile_w", "tile_v"))
    assert calls.numbers_after([2, 2, 2]) == [2, 2, 2]
