"""Searches simulated on the phones' recordings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import phone_searches
from phone_searches import SearchedLayer, searched_layers
from phone_tasks import load_tasks
from pretrain_on_phones import Layer
from support.data.autotvm_logs import ARGUMENTS, knobs_of, log_line, write_log

# The same convolution on data of two networks.
SIDES = (17, 56)


def write_networks(path: Path) -> Path:
    """Write the log of 36 configs for each of two networks."""
    lines = []
    for line in write_log(path).read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        for side in SIDES:
            data["input"][2] = [["TENSOR", [1, 16, side, side], "float16"], *ARGUMENTS[1:]]
            lines.append(json.dumps(data))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def searched(path: Path) -> list[SearchedLayer]:
    tasks = load_tasks(path, default_gpu="adreno660")
    return list(searched_layers([Layer.of(task) for task in tasks]))


def test_a_failed_config_is_a_trial(tmp_path: Path) -> None:
    times = [(2e-3, 0), (1e-3, 0), (1e9, 4), (1.05e-3, 0), (1.01e-3, 0)]
    lines = [log_line(knobs_of(pixels=(n, 2)), [time], error) for n, (time, error) in enumerate(times, 1)]
    path = tmp_path / "phone.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    (task,) = load_tasks(path, default_gpu="adreno660")
    layer = SearchedLayer(Layer.of(task), None)
    assert layer.trials([0, 2, 3, 4, 1]).tolist() == [4, 3]
    assert layer.trials([2, 1]).tolist() == [2, 2]
    assert layer.trials([0, 2]).tolist() == [5, 5], "a search that never got there counts as all configs"
    assert [len({*layer.random(seed)}) for seed in range(3)] == [5] * 3


def test_a_model_of_the_other_network_helps(tmp_path: Path) -> None:
    layers = searched(write_networks(tmp_path / "phone.log"))
    assert [layer.layer.task.template.workload.in_hw for layer in layers] == [(side, side) for side in SIDES]  # type: ignore[attr-defined]
    for layer in layers:
        assert layer.corrected is not None
        estimated, corrected = (layer.trials(layer.ranked(s)) for s in (layer.layer.expected, layer.corrected))
        # Both layers have the same times, so the model of one has seen the other's.
        assert (corrected <= estimated).all()
        assert {*layer.ranked(layer.corrected)} == {*layer.kept}


def test_the_search_tries_kept_kernels_once_and_learns(tmp_path: Path) -> None:
    (layer, _) = searched(write_networks(tmp_path / "phone.log"))
    times = layer.layer.task.time_s
    # The opposite of the truth: a search that did not learn would try the best one last.
    wrong = np.nan_to_num(times, nan=np.nanmax(times))
    for batch_size in (1, 4):
        order = layer.searched(np.log(wrong), batch_size)
        assert len({*order}) == len(order)
        assert {*order} <= {*layer.kept}
        is_best_kept = np.nanargmin(times) in layer.kept
        assert is_best_kept == (order[-1] == np.nanargmin(times))
        assert len(order) < len(layer.kept) or not is_best_kept


def test_the_table(tmp_path: Path) -> None:
    path = write_networks(tmp_path / "phone.log")
    arguments = [str(path), "--gpu", "adreno660", "--least", "36", "--strategies", ""]
    done = CliRunner().invoke(phone_searches.main, arguments)
    assert done.exit_code == 0, done.output
    rows = re.findall(r"│ (.+?) +│ +2 │ +(\d+) │", done.output)
    assert [name for name, _ in rows] == [
        "random",
        *("estimate, all configs", "estimate, configs that the criteria keep"),
        *(f"Romou's search from the estimate, {count} at a time" for count in (4, 1)),
        *("trained model, all configs", "trained model, configs that the criteria keep"),
        *(f"Romou's search from the trained model, {count} at a time" for count in (4, 1)),
    ]
    for wrong, text in (
        (["--least", "37"], "no layer has 37 configs"),
        (["--strategies", "tabu"], "known: random_sample"),
    ):
        assert text in str(CliRunner().invoke(phone_searches.main, [*arguments, *wrong]).exception)


def test_a_strategy_of_kernel_tuner_ends_at_the_goal(tmp_path: Path) -> None:
    pytest.importorskip("kernel_tuner", reason="NOT TESTED, Kernel Tuner is not installed")
    (layer, _) = searched(write_networks(tmp_path / "phone.log"))
    order = layer.by_kernel_tuner("random_sample", 0)
    assert len({*order}) == len(order)
    assert layer.trials(order)[0] <= len(order)
