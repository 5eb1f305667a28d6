"""Spaces that others recorded: read in both formats, searched by only knobs and measurements, and scored."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import foreign_searches
from foreign_spaces import load_foreign
from knob_process import KnobProcess
from knob_search import KnobFeatures
from romou.base.errors import RecordError
from romou.base.outcome import Outcome

EXCERPT = Path(__file__).parent / "data/pnpoly-RTX_2080_Ti_T4.json.gz"


def as_cache(path: Path) -> Path:
    """Convert the excerpt to Kernel Tuner's cache format."""
    results = json.loads(gzip.decompress(EXCERPT.read_bytes()))["results"]
    names = list(results[0]["configuration"])
    cache = {}
    for result in results:
        times = {"compile_time": result["times"]["compilation"], "framework_time": result["times"]["framework"]}
        time = result["measurements"][0]["value"] if result["invalidity"] == "correct" else "RuntimeFailedConfig"
        cache[",".join(map(str, result["configuration"].values()))] = {**result["configuration"], "time": time, **times}
    path.write_text(json.dumps({"tune_params_keys": names, "cache": cache}), encoding="utf-8")
    return path


def test_both_formats_give_the_same_space(tmp_path: Path) -> None:
    t4, cache = load_foreign(EXCERPT), load_foreign(as_cache(tmp_path / "cache.json"))
    assert t4.knobs["block_size_x"] == (32, 64, 96, 128, 160, 192, 224, 256)
    assert t4.knobs == cache.knobs
    assert len(t4.configs) == len(cache.configs) == 320
    for index, found in t4.configs.items():
        assert found.time_s == cache.configs[index].time_s
        assert (found.outcome == Outcome.OK) == (found.time_s is not None)
        assert dict(t4.space().at(index)).keys() == t4.knobs.keys()
    # The objective, in seconds, is not the mean of the repeats: copies are in it.
    first = t4.configs[t4.space().index_of({"between_method": 0, "block_size_x": 32, "tile_size": 1, "use_method": 0})]
    assert first.time_s == pytest.approx(52.507584e-3)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"results": []}',
        '{"results": [{"configuration": {}}]}',
        '{"cache": {"1": {}}, "tune_params_keys": ["a"]}',
    ],
)
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x_T4.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecordError, match="neither T4 nor a cache of Kernel Tuner"):
        load_foreign(path)


def test_the_explorer_is_ahead_of_random_search() -> None:
    """Its fastest config of 20 trials is nearer to the best config than that of random search."""
    recorded = load_foreign(EXCERPT)
    orders = [list(itertools.islice(foreign_searches.romou_order(recorded, seed), 20)) for seed in range(3)]
    assert all(len(set(order)) == len(order) for order in orders)
    assert orders[0] == list(itertools.islice(foreign_searches.romou_order(recorded, 0), 20))
    by_chance = [np.random.default_rng(seed).permutation(sorted(recorded.configs))[:20] for seed in range(100)]
    ours, theirs = (
        np.mean([min(recorded.configs[int(index)].time_s or np.inf for index in order) for order in some])
        for some in (orders, by_chance)
    )
    best_s = foreign_searches.best_of(recorded)
    assert ours - best_s < (theirs - best_s) / 2


def test_transfer_begins_with_what_was_fast_elsewhere() -> None:
    """The other GPU is the same one: the best config is among the first."""
    recorded = load_foreign(EXCERPT)
    order = itertools.islice(foreign_searches.romou_order(recorded, 0, [recorded]), 12)
    best_s = foreign_searches.best_of(recorded)
    assert min(recorded.configs[index].time_s or np.inf for index in order) <= 1.02 * best_s


def test_the_score_is_1_with_the_best_and_near_0_by_chance() -> None:
    pytest.importorskip("autotuning_methodology", reason="NOT TESTED, autotuning_methodology is not installed")
    recorded = load_foreign(EXCERPT)
    best = min(recorded.configs, key=lambda index: recorded.configs[index].time_s or np.inf)
    runs = [
        foreign_searches.ForeignRun(
            space=recorded.name, method="any", seed=seed, order=[best], own_ms=[own_ms], cpu_s=0.0
        )
        for own_ms in (0, 10**6)
        for seed in range(40)
    ]
    # A search whose own time is over its budget is not scored: nothing works in the compared seconds.
    assert foreign_searches.curve(EXCERPT, runs) == pytest.approx(1.0)
    by_chance = [dataclasses.replace(run, order=[], own_ms=[]) for run in runs[:40]]
    assert abs(foreign_searches.curve(EXCERPT, by_chance).mean()) < 0.3


def test_scales_tell_the_knob_that_matters() -> None:
    """One of two knobs decides: measurements far along the other knob still count."""
    rng = np.random.default_rng(0)
    rows = rng.random((40, 2))
    process = KnobProcess(rows, -2 * rows[:, 0])
    found = process.mean(np.array([[0.1, 0.9], [0.9, 0.1]]), np.zeros(2), np.zeros(2))
    assert found == pytest.approx([-0.2, -1.8], abs=0.15)
    # The expected improvement is larger near the high score than near the low one.
    improvement = process(np.array([[0.01, 0.5], [0.95, 0.5]]), np.zeros(2), np.zeros(2))
    assert improvement[0] > improvement[1]


def test_features_are_logarithms_of_numbers_from_0_to_1() -> None:
    recorded = load_foreign(EXCERPT)
    features = KnobFeatures(recorded.space())
    rows = features([recorded.space().at(index) for index in recorded.configs])
    assert features.columns == ("between_method", "block_size_x", "tile_size", "use_method")
    assert (rows.min(axis=0), rows.max(axis=0)) == (pytest.approx(0), pytest.approx(1))
