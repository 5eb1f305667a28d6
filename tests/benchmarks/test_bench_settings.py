"""benchmarks/bench_settings.py: which configs operators have in common, correlations, and the single config."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import bench_settings
from romou.devices.targets import Target
from romou.tuner.records.recorded_space import RecordedSpace
from support.docs.documents import ROOT
from support.kernels.operators import conv, task_of

TARGET = Target("opencl")
SPACES = ROOT / "benchmarks/data"


def test_settings_are_configs_of_every_operator() -> None:
    """A 3x3 convolution has the knob of algorithms, which a 1x1 one has not: only its default is common."""
    tasks = [
        task_of(conv(16, (9, 9), 16, kernel, padding=(kernel[0] // 2,) * 4), has_epilogue=False)
        for kernel in ((3, 3), (1, 1))
    ]
    spaces = [task.space(TARGET) for task in tasks]
    assert set(spaces[0].knobs) - set(spaces[1].knobs) == {"algorithm"}
    settings = bench_settings.settings_of(tasks, TARGET, 10, seed=1)
    assert len(settings) == 10
    assert {setting["algorithm"] for setting in settings} == {"direct"}
    for setting in settings:
        for task, space in zip(tasks, spaces, strict=True):
            config = bench_settings.config_for(task, TARGET, setting)
            assert config is not None
            assert space.is_valid(config)
    winograd = next(
        config for config in spaces[0].sample(np.random.default_rng(0), 200) if config["algorithm"] != "direct"
    )
    assert bench_settings.config_for(tasks[1], TARGET, winograd) is None


def test_correlation_is_of_rates() -> None:
    first = {"a": 1.0, "b": 0.5, "c": 0.25, "only here": 9.0}
    assert bench_settings.correlation(first, {"a": 3.0, "b": 1.5, "c": 0.75})[0] == pytest.approx(1.0)
    # Rates 1, 2, 4 against 4, 2, 1.
    assert bench_settings.correlation(first, {"a": 0.25, "b": 0.5, "c": 1.0})[0] == pytest.approx(-0.928571, rel=1e-4)
    assert bench_settings.correlation(first, {"a": 3.0, "b": 1.5}) == (None, ["a", "b"])
    assert bench_settings.correlation(first, {"a": 3.0, "b": 3.0, "c": 3.0})[0] is None


def test_the_single_config_has_the_smallest_sum() -> None:
    times = {"one": {"x": 1.0, "y": 2.0, "z": 0.5}, "two": {"x": 5.0, "y": 2.0}}
    table = bench_settings.single_setting(times, {"one": 0.25})
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    # "z" does not work on the second operator, and "y" is 4 s in all where "x" is 6.
    assert rows[0] == ("one", "2000000.0", "500000.0", "4.00x", "250000.0", "8.00x")
    assert rows[1] == ("two", "2000000.0", "2000000.0", "1.00x", "-", "-")
    assert rows[2] == ("geometric mean", "", "", "2.00x", "", "8.00x")


def test_histogram_and_heat_maps_of_a_recording() -> None:
    path = SPACES / "spaces_pocl/dense.json.gz"
    recorded = RecordedSpace.load(path)
    rates = bench_settings.rates_of(recorded)
    best, rate = max(rates, key=lambda entry: entry[1])
    assert len(rates) == 93
    assert rate == pytest.approx(
        recorded.task["flops"] / recorded.configs[recorded.space().index_of(best)].time_s / 1e9
    )
    table = bench_settings.histogram(recorded)
    assert sum(int(cell) for cell in table.columns[1].cells) == 93
    whole, first, *rest = bench_settings.heat_maps(recorded)
    assert len(rest) == bench_settings.GROUPS - 1
    for table, row, column in (
        (whole, best["wg_o"] * best["wg_w"], best["tile_o"] * best["tile_h"] * best["tile_w"]),
        (first, best["tile_o"], best["tile_h"] * best["tile_w"]),
    ):
        header, *columns = ([str(c.header), *c.cells] for c in table.columns)
        (cells,) = [cells for cells in columns if cells[0] == str(column)]
        assert cells[header.index(str(row))] == "1.00"
    result = CliRunner().invoke(bench_settings.main, ["--space", str(path)])
    assert result.exit_code == 0, result.output
    assert "0 of 93 configs failed" in " ".join(result.output.split())


def test_two_recordings(tmp_path: Path) -> None:
    """A file of the script stands for a folder of recordings."""
    device, seconds = bench_settings.loaded(SPACES / "spaces_pocl")
    assert len(seconds["dense"]) == 93
    file = tmp_path / "here.json"
    file.write_text(json.dumps({"device": device, "seconds": seconds}))
    for first in (SPACES / "spaces_pocl", file):
        result = CliRunner().invoke(bench_settings.main, ["--compare", str(first), str(SPACES / "spaces_intel")])
        assert result.exit_code == 0, result.output
        assert "│ dense           │      91 │  0.445 │           11% │            72% │" in result.output
    with pytest.raises(SystemExit, match="has no recorded space"):
        bench_settings.main(["--compare", str(tmp_path), str(tmp_path)], standalone_mode=False)
