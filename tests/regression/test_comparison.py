"""`romou compare` on two benches: verdicts, refusals, and the files that it writes."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.devices.targets import Target
from romou.tools.regression import Bench, Comparison, parse_threshold
from support.data.benches import DEVICE, MEASURES, bench, operator, rounds

BEFORE = bench(operator("conv"), operator("pool"))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def row_of(comparison: Comparison, name: str) -> romou.tools.regression.Row:
    return next(row for row in comparison.rows if row.name == name)


def with_measures(**given: int) -> Bench:
    return bench(operator("conv", measures=MEASURES | given), operator("pool"))


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), (" 2.5 % ", 0.025), ("0.05", 0.05), (0.1, 0.1), ("0", 0.0), ("150%", 1.5)]
)
def test_thresholds(text: str | float, share: float) -> None:
    assert parse_threshold(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "five", "5", "-5%", "5%%", "1e3", "nan", "inf%", "20000%", -0.1])
def test_unreadable_thresholds(text: str | float) -> None:
    with pytest.raises(UsageError, match=r"cannot be read\nWrite a share: 5% or 0.05"):
        parse_threshold(text)


def test_equal_benches_pass_and_a_slower_operator_does_not() -> None:
    same = romou.compare(BEFORE, bench(operator("conv", times_ms=rounds(1.0, seed=7)), operator("pool")))
    assert same.regressions == []
    assert same.timing == "recorded"
    assert {row.times.verdict for row in same.rows if row.times is not None} == {"same"}
    slower = romou.compare(BEFORE, bench(operator("conv", times_ms=rounds(1.1, seed=7)), operator("pool")))
    (row,) = slower.regressions
    assert row.name == "conv"
    assert row.times is not None
    assert row.times.shift.ratio == pytest.approx(1.1, rel=0.01)
    assert (
        romou.compare(
            BEFORE, bench(operator("conv", times_ms=rounds(1.1, seed=7)), operator("pool")), fail_over="15%"
        ).regressions
        == []
    )


def test_a_slower_whole_model_fails() -> None:
    found = romou.compare(BEFORE, dataclasses.replace(BEFORE, model_times_ms=rounds(6.0)))
    assert [row.name for row in found.regressions] == ["whole model"]


def test_a_slower_machine_is_no_slower_kernel() -> None:
    slow = {"model_times_ms": rounds(7.5, seed=1), "reference_times_ms": rounds(3.0, seed=2)}
    found = romou.compare(
        BEFORE, bench(operator("conv", times_ms=rounds(1.5)), operator("pool", times_ms=rounds(1.5)), **slow)
    )
    assert found.machine == pytest.approx(1.5, rel=0.01)
    assert found.regressions == []


@pytest.mark.parametrize("measure", [name for name in MEASURES if name != "multiply_adds_per_iteration"])
def test_every_measure_can_fail(measure: str) -> None:
    found = romou.compare(BEFORE, with_measures(**{measure: 2 * MEASURES[measure] + 1}), times=False)
    (row,) = found.regressions
    assert [(row.name, rise.measure) for rise in row.rises] == [("conv", measure)]
    better = romou.compare(BEFORE, with_measures(**{measure: MEASURES[measure] // 2}), times=False)
    assert better.regressions == []
    if MEASURES[measure]:
        assert measure in row_of(better, "conv").notes[0]


def test_measures_have_the_threshold_too_and_bytes_count_by_multiply_adds() -> None:
    assert romou.compare(BEFORE, with_measures(registers=52), times=False).regressions == []
    assert romou.compare(BEFORE, with_measures(registers=53), times=False).regressions != []
    assert romou.compare(BEFORE, with_measures(registers=51), fail_over=0, times=False).regressions != []
    unrolled = with_measures(bytes_per_iteration=256, multiply_adds_per_iteration=128, group_bytes_per_iteration=2048)
    assert romou.compare(BEFORE, unrolled, times=False).regressions == []


def test_another_text_alone_is_told_and_passes() -> None:
    found = romou.compare(BEFORE, bench(operator("conv", source_sha256="1" * 64), operator("pool")), times=False)
    assert found.regressions == []
    assert row_of(found, "conv").notes == ("another text",)


def test_measures_of_another_config_are_not_compared() -> None:
    found = romou.compare(
        BEFORE,
        bench(operator("conv", config={"tile_w": 8}, measures=MEASURES | {"registers": 99}), operator("pool")),
        times=False,
    )
    assert found.regressions == []
    assert row_of(found, "conv").notes == ("another config (tile_w): measures not compared",)


def test_operators_that_come_and_go_are_told() -> None:
    found = romou.compare(BEFORE, bench(operator("conv"), operator("dense")), times=False)
    assert [(row.name, row.notes) for row in found.rows] == [("conv", ()), ("dense", ("new",)), ("pool", ("gone",))]
    with pytest.raises(UsageError, match=r"have no operator in common\nAre they of one model\?"):
        romou.compare(BEFORE, bench(operator("dense")))


def test_times_of_another_device_are_refused_with_the_reason() -> None:
    other = dataclasses.replace(with_measures(registers=99), device=DEVICE | {"name": "Another GPU"})
    found = romou.compare(BEFORE, other)
    assert found.timing == "not compared"
    assert found.reason is not None
    assert "measured on 'A GPU' (opencl, Platform, driver 1.0), this device is 'Another GPU'" in found.reason
    assert [row.name for row in found.regressions] == ["conv"], "measures count on any machine"
    assert all(row.times is None for row in found.rows)
    with pytest.raises(
        UsageError, match=r"times cannot be compared: the baseline was measured on(?s:.*)\.romou folder"
    ):
        romou.compare(BEFORE, other, measures=False)
    driver = dataclasses.replace(BEFORE, device=DEVICE | {"driver": "2.0"})
    assert "measured with driver '1.0', this one is '2.0'" in (romou.compare(BEFORE, driver).reason or "")


def test_another_version_of_romou_is_what_is_compared() -> None:
    assert romou.compare(BEFORE, dataclasses.replace(BEFORE, romou="0.2.0")).timing == "recorded"


def test_benches_of_two_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="the benches are of two targets"):
        romou.compare(BEFORE, dataclasses.replace(BEFORE, target=Target("opencl -device=adreno640").to_json()))


def test_untimed_benches_compare_measures() -> None:
    untimed = dataclasses.replace(BEFORE, device=None, model_times_ms=())
    assert romou.compare(untimed, BEFORE).reason == "the baseline has no times"
    assert romou.compare(BEFORE, untimed).reason == "the current bench has no times"
    with pytest.raises(UsageError, match="neither times nor measures"):
        romou.compare(BEFORE, BEFORE, times=False, measures=False)
    with pytest.raises(UsageError, match="repeats=7: must be a whole number, at least 8"):
        romou.compare(BEFORE, BEFORE, repeats=7)


def test_command_and_its_files(tmp_path: Path) -> None:
    before = BEFORE.save(tmp_path / "before.json")
    worse = bench(
        operator("conv", times_ms=rounds(1.3), source_sha256="1" * 64), operator("de|nse<&\x01"), model="b*d|model"
    ).save(tmp_path / "after.json")
    result = invoke(before, worse, "--junit", tmp_path / "j.xml", "--markdown", tmp_path / "m.md")
    assert result.exit_code == 1, result.output
    assert "b*d|model: 1 of 4 rows worse by more than 5%." in result.stdout
    words = " ".join(result.stdout.split())
    assert "Times: as recorded on A GPU, because the baseline's compiled model is not at hand." in words

    suite = ET.parse(tmp_path / "j.xml").getroot()[0]
    assert {k: suite.get(k) for k in ("tests", "failures", "skipped", "errors")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "2",
        "errors": "0",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["conv"][0].tag == "failure"
    assert "1.300 times as long" in (cases["conv"][0].get("message") or "")
    assert cases["de|nse<&"][0].tag == "skipped"
    assert cases["pool"][0].get("message") == "gone"

    text = (tmp_path / "m.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {9}, "every line has as many cells"
    assert lines[0] == "| layer | calls | before ms | after ms | ratio | 99% bounds | times | measures and notes |"
    assert "| **conv** | 1 | 0.9991 | 1.2991 | 1.300 |" in text

    assert invoke(before, before).exit_code == 0
    data = json.loads(invoke(before, worse, "--json").stdout)
    assert data["is_regression"] is True
    assert [row["name"] for row in data["rows"] if row["is_regression"]] == ["conv"]


def test_wrong_use_is_exit_code_2(tmp_path: Path) -> None:
    before = BEFORE.save(tmp_path / "before.json")
    (tmp_path / "cut.json").write_text(before.read_text()[:-50])
    for arguments, message in (
        ((before, before, "--fail-over", "much"), "threshold 'much' cannot be read"),
        ((tmp_path / "none.json", before), "none.json: No such file"),
        ((before, tmp_path / "cut.json"), "cut.json: no file of `romou bench`: not JSON"),
        ((before, tmp_path / "none.onnx"), "none.onnx' does not exist"),
        ((before, before, "--junit", tmp_path / "none" / "j.xml"), "none' for j.xml does not exist"),
        ((before, before, "--only", "speed"), "Invalid value for '--only'"),
        ((before,), "Missing argument 'CURRENT'"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert "Traceback" not in result.output
