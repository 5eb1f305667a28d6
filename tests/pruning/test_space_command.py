"""romou space: a table for a person, the same numbers as JSON, without a device."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from romou.base.space import Space
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
        assert max(task["constraints"].values()) > 0.1
        assert all(re.fullmatch(r"(Conv|Relu|Add|MaxPool) \(t\d\)", node) for node in task["nodes"])
        assert task["nodes"]
        assert all(0 <= share <= 1 - task["before"] / task["declared"] for share in task["constraints"].values())
        assert all(0 <= c["only"] <= c["alone"] <= task["before"] for c in task["criteria"])


def test_constraints_are_counted_one_by_one() -> None:
    """The share of each constraint is that of an enumeration, also if a knob chooses between spaces."""

    def part(most: int) -> Space:
        space = Space()
        space.define_knob("a", [1, 2, 3, 4])
        space.define_knob("b", list(range(1, most + 1)))
        space.add_constraint(lambda c: {"small": c["a"] * c["b"] <= most, "even": c["a"] % 2 == 0})
        return space

    assert part(5).ruled_out() == {"small": pytest.approx(11 / 20), "even": pytest.approx(1 / 2)}
    whole = Space.one_of("algorithm", {"wide": part(5), "narrow": part(2)})
    assert whole.size == 40
    shares = {"small": (11 + 5) / 40, "even": (10 + 4) / 40, "choices that its algorithm has": 12 / 40}
    assert whole.ruled_out() == pytest.approx(shares)


def test_tables_name_tasks_and_criteria(model: Path) -> None:
    text = run(str(model), "--target", "opencl -device=adreno640", "--l1", "paper")
    assert "conv2d_" in text
    assert "l1_cache" in text
    assert "local memory, device's limit" in text
    assert "all together" in text
    assert re.search(r"conv2d_1x6x9x9_8_3x3_s1 .* Conv \(t0\) \+1", text), "a task's ONNX nodes stand in its row"
    assert "dropped" in text or " x2" in text or " x4" in text or " x8" in text


def test_two_devices_are_compared(model: Path) -> None:
    data = json.loads(run(str(model), "--compare-devices", "adreno640,adreno640", "--json"))
    assert data["tasks"]
    assert all(task["shared"] == [1.0, 1.0] for task in data["tasks"])
    data = json.loads(run(str(model), "--compare-devices", "adreno640,mali_g76", "--json"))
    assert any(min(task["shared"]) < 1 for task in data["tasks"])
    text = run(str(model), "--compare-devices", "adreno640,mali_g76")
    assert "kept on" in text
    assert re.search(r"conv2d_1x6x9x9_8_3x3_s1: Conv \(t0\) \+1", text), "ONNX nodes are named beside tasks"
    assert "buffers" in text
    wrong = CliRunner().invoke(main, ["space", str(model), "--compare-devices", "adreno640"])
    assert wrong.exit_code == 2
    assert "expected two names, A,B" in wrong.output
