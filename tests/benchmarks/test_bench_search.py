"""The comparison of searches: the runs that it keeps, and the data of other operators that a search uses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import bench_search
import simulated_searches


def test_runs_are_gone_on_from_but_for_a_line_that_was_cut_off(tmp_path: Path) -> None:
    run = simulated_searches.Run(
        operator="dense", method="pruned", seed=3, trials=4, seconds=1.5, curve=(0.5, 1.0), overhead=0.1
    )
    file = tmp_path / "search.jsonl"
    assert bench_search.kept_runs(file) == []
    line = json.dumps(dataclasses.asdict(run))
    file.write_text(f"{line}\n{line[:20]}", encoding="utf-8")
    assert bench_search.kept_runs(file) == [run]


def test_a_search_has_seen_so_many_configs_of_another_operator() -> None:
    path = simulated_searches.SPACES / "dense.json.gz"
    few, others = (simulated_searches.records_of(path, seed, 100) for seed in (0, 1))
    assert len(few) == len(others) == 100
    assert few != others
    assert path not in simulated_searches.others_of(path)
    assert len(simulated_searches.others_of(path)) == 7


def test_a_target_is_that_of_the_recording() -> None:
    path = simulated_searches.SPACES / "dense.json.gz"
    unknown, known = (simulated_searches.target_of(path, *device) for device in ((None,), ()))
    assert (unknown.kind, known.kind) == ("opencl", "opencl")
    assert (unknown.device_name, known.device_name) == (None, "nvidia_h200")
