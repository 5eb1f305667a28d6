"""romou space: a table for a person, the same numbers as JSON, without a device."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from romou.cli import main
from support.models.small_networks import short_net


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "net.onnx"
    onnx.save(short_net(), path)
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["space", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_counts_what_each_criterion_removes(model: Path) -> None:
    data = json.loads(run(str(model), "--target", "opencl -device=mali_g76", "--json"))
    assert data["tasks"]
    for task in data["tasks"]:
        assert 0 < task["kept"] <= task["before"] <= task["declared"]
        assert task["pruned_share"] == pytest.approx(1 - task["kept"] / task["before"])
        assert {c["criterion"] for c in task["criteria"]} >= {"l1_cache", "registers", "warp", "padding"}
        assert all(0 <= c["only"] <= c["alone"] <= task["before"] for c in task["criteria"])


def test_tables_name_tasks_and_criteria(model: Path) -> None:
    text = run(str(model), "--target", "opencl -device=adreno640", "--l1", "paper")
    assert "conv2d_" in text
    assert "l1_cache" in text
    assert "all together" in text
    assert "dropped" in text or " x2" in text or " x4" in text or " x8" in text


def test_two_devices_are_compared(model: Path) -> None:
    data = json.loads(run(str(model), "--compare-devices", "adreno640,adreno640", "--json"))
    assert data["tasks"]
    assert all(task["shared"] == [1.0, 1.0] for task in data["tasks"])
    data = json.loads(run(str(model), "--compare-devices", "adreno640,mali_g76", "--json"))
    assert any(min(task["shared"]) < 1 for task in data["tasks"])
    text = run(str(model), "--compare-devices", "adreno640,mali_g76")
    assert "kept on" in text
    assert "buffers" in text
    wrong = CliRunner().invoke(main, ["space", str(model), "--compare-devices", "adreno640"])
    assert wrong.exit_code == 2
    assert "expected two names, A,B" in wrong.output
