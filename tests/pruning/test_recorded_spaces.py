"""Pruning and the estimate on spaces with all configs measured on the judging device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.estimate import estimate_seconds
from romou.compiler.tir.primitives import LANES
from romou.devices.hardware import load_device
from romou.devices.targets import Target
from romou.tuner.pruning import prune
from romou.tuner.records.recorded_space import RecordedSpace
from simulation import SimulatedTask
from support.suite.exhaustive import few

PATHS = sorted((Path(__file__).parents[2] / "benchmarks/data/spaces_h200").glob("*.json.gz"))
TARGET, SPEC = Target("opencl -device=nvidia_h200"), load_device("nvidia_h200")


@pytest.fixture(scope="module", params=few(PATHS, 0, 4, 6), ids=lambda path: path.name.partition(".")[0])
def recording(request: pytest.FixtureRequest) -> tuple[SimulatedTask, list[int], np.ndarray]:
    """Return the task, the indices of its recorded configs, and their seconds, which are infinite for failed ones."""
    recorded = RecordedSpace.load(request.param)
    indices = sorted(recorded.configs)
    times = [recorded.configs[i].time_s for i in indices]
    return SimulatedTask.of_recording(recorded), indices, np.asarray([np.inf if t is None else t for t in times])


def test_there_are_eight_operators() -> None:
    assert len(PATHS) >= 8


def test_the_best_config_or_one_within_2_percent_survives(
    recording: tuple[SimulatedTask, list[int], np.ndarray],
) -> None:
    task, indices, times = recording
    limits = TARGET.limits
    space = task.template.space(limits)
    # Faster ones, of more work-items for a sum, were not recorded.
    space.add_constraint(
        lambda config: {
            "as recorded": config["split_k"] <= LANES * config["tile_o"] * config["tile_h"] * config["tile_w"]
        }
    )
    kept = prune(task.template, space, SPEC, limits)
    survives = np.asarray([kept.is_valid(task.recorded.space().at(index)) for index in indices])
    assert kept.report.pruned_share > 0.5
    assert times[survives].min() <= 1.02 * times.min()


def test_the_estimate_puts_configs_in_order(recording: tuple[SimulatedTask, list[int], np.ndarray]) -> None:
    task, indices, times = recording
    columns = columns_of([task.recorded.space().at(index) for index in indices])
    estimated = np.broadcast_to(estimate_seconds(task.template.form(TARGET.limits).usage(columns), SPEC), len(indices))
    ran = np.isfinite(times)
    ranks = [np.argsort(np.argsort(values[ran])) for values in (estimated, times)]
    assert np.corrcoef(*ranks)[0, 1] > 0.6
    # The fastest of its first hundred. Random draws need ten times the trials to be that close.
    assert times[np.argsort(estimated)[:100]].min() <= 1.1 * times.min()
