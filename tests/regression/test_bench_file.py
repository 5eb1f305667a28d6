"""The bench's file: a saved bench is read back, and any other file is refused with a clear error."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from romou.base.errors import UsageError
from romou.tools.regression import Bench, load_module
from romou.tools.regression.comparison import compare_benches
from support.data.benches import bench, operator


def test_written_and_read(tmp_path: Path) -> None:
    made = bench(operator("conv", times_ms=((1.5, 1.25), (2.0, 1.0))), operator("pool"))
    path = made.save(tmp_path / "folder" / "baseline.json")
    assert Bench.load(path) == made
    assert made.operators[0].time_ms == 1.125
    assert len(path.read_text().splitlines()) == 18, "a line for each field and operator"


def test_untimed(tmp_path: Path) -> None:
    made = dataclasses.replace(bench(operator("conv")), device=None, model_times_ms=(), reference_times_ms=())
    assert Bench.load(made.save(tmp_path / "b.json")) == made
    assert made.time_ms is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=3), "written in schema 3, this Romou reads 1 and 2"),
        (lambda d: d.update(schema=[1] * 900), r"written in schema \[1(, 1)*.{0,3}\.\.\., this Romou reads 1 and 2"),
        (lambda d: d.update(kind="archprobe"), "no file of `romou bench`: it lacks kind"),
        (lambda d: d.update(target="opencl"), "target: target is no JSON object: not JSON"),
        (lambda d: d.update(target='{"kind": "opengl"}'), "target: unknown target kind 'opengl'"),
        (lambda d: d.pop("operators"), ".*operators is missing"),
        (lambda d: d.update(compiler="Mesa"), ".*compiler is 'Mesa'; expected"),
        (lambda d: d.update(compiler={"mesa": "25.0.7"}), ".*compiler.gpu is missing"),
        (lambda d: d.update(model=7), ".*model is 7; expected a text"),
        (lambda d: d["operators"][1].pop("measures"), r".*operators\[1\].measures is missing"),
        (
            lambda d: d["operators"][0].update(calls="many"),
            r".*\[0\].calls is 'many'; expected a whole number",
        ),
        (
            lambda d: d["operators"][0].update(arguments=[{"shape": [1]}]),
            r".*\[0\].arguments\[0\].dtype is missing",
        ),
        (
            lambda d: d["operators"][0].update(times_ms=[[1.0, -1.0]]),
            r".*operators\[0\].times_ms\[0\]\[1\] is -1.0; expected at least 1e-09",
        ),
        (
            lambda d: d["operators"][0].update(times_ms=[["quick"]]),
            r".*times_ms\[0\]\[0\] is 'quick'; ex",
        ),
        (lambda d: d.update(model_times_ms=[[]]), "a round has no times"),
        (lambda d: d["operators"].append(d["operators"][0]), "two operators have one name"),
        (lambda d: d["operators"].append(3), r".*operators\[2\] is 3; expected an object"),
    ],
)
def test_what_is_no_bench_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    path = bench(operator("conv"), operator("pool")).save(tmp_path / "b.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"b.json: {message}(?s:.*)\nWrite it anew: romou bench MODEL --save"):
        Bench.load(path)


def test_registers_of_an_older_file_are_not_compared(tmp_path: Path) -> None:
    """Schema 1 held the number of a former estimate. Everything else in such a file still counts."""
    now = bench(operator("conv", measures={"registers": 96, "local_memory_bytes": 64}))
    data = json.loads(now.to_json())
    data["schema"] = 1
    data["operators"][0]["measures"] = {"registers": 54, "local_memory_bytes": 32}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    old = Bench.load(path)
    assert dict(old.operators[0].measures) == {"local_memory_bytes": 32}
    (row,) = compare_benches(old, now, fail_over=0).rows
    assert [rise.measure for rise in row.rises] == ["local_memory_bytes"]
    assert "registers: not compared, the baseline lacks it or was counted otherwise" in row.notes


def test_every_truncated_file_is_refused(tmp_path: Path) -> None:
    path = bench(operator("conv")).save(tmp_path / "b.json")
    text = path.read_text()
    for length in range(0, len(text) - 2, 37):
        path.write_text(text[:length])
        with pytest.raises(UsageError, match="b.json: no file of `romou bench`: not JSON"):
            Bench.load(path)
    path.write_bytes(b"\xff\x00\x80")
    with pytest.raises(UsageError, match="not JSON: 'utf-8'"):
        Bench.load(path)
    with pytest.raises(UsageError, match=r"none.json: No such file or directory"):
        Bench.load(tmp_path / "none.json")


def test_a_model_beside_that_belongs_to_another_bench_is_refused(tmp_path: Path) -> None:
    made = dataclasses.replace(bench(operator("conv")), module="module-one.so")
    path = tmp_path / "b.json"
    path.write_text(made.to_json())
    assert load_module(made, path, device=lambda: 0) is None, "nothing lies there"
    (tmp_path / "b.romou").mkdir()
    (tmp_path / "b.romou" / "module-two.so").write_bytes(b"")
    with pytest.raises(UsageError, match=r"b.romou holds another model than .*b.json was measured with"):
        load_module(made, path, device=lambda: 0)
    (tmp_path / "b.romou" / "module-two.so").rename(tmp_path / "b.romou" / "module-one.so")
    with pytest.raises(UsageError, match=r"no saved model(?s:.*)Restore the folder, or delete it"):
        load_module(made, path, device=lambda: 0)
