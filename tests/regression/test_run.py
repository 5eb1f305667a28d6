"""A small model is benched and compared on the device, unchanged and with a kernel that is slower."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import onnx
import pytest
import tvm
from click.testing import CliRunner, Result

import bench_compare
import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.tools.regression import Bench
from romou.tools.regression.timing import MODEL, REPEATS
from romou.tuner.records import Record, RecordStore
from support.models.small_networks import NetworkBuilder
from support.servers import forked
from support.servers.rpc_servers import serving

# Dilated, so its sums are direct: one kernel.
CONV = "conv2d_1x32x20x20_32_3x3_s1_d2"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = NetworkBuilder({"image": (1, 32, 20, 20)})
    x = g.add("Relu", g.conv("image", 32, 32, pads=[2, 2, 2, 2], dilations=[2, 2]))
    x = g.add("Relu", g.conv(x, 32, 48, (1, 1)))
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(g.model(g.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])), path)
    return path


@pytest.fixture(scope="module")
def baseline(model: Path, tmp_path_factory: pytest.TempPathFactory, opencl_device: tvm.runtime.Device) -> Path:
    path = tmp_path_factory.mktemp("bench") / "baseline.json"
    result = CliRunner().invoke(main, ["bench", str(model), "--save", str(path), "--repeats", "8"])
    assert result.exit_code == 0, result.output
    assert "Whole model:" in result.stdout
    return path


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_a_bench_holds_every_repeat_of_every_operator(baseline: Path) -> None:
    made = Bench.load(baseline)
    assert CONV in {o.name for o in made.operators}
    assert {o.function for o in made.operators} == {k.function for k in romou.inspect(made.model)}
    for rounds in (made.model_times_ms, made.reference_times_ms, *(o.times_ms for o in made.operators)):
        assert {len(r) for r in rounds} == {REPEATS}
        assert len(rounds) == 8
    assert made.device is not None
    conv = next(o for o in made.operators if o.name == CONV)
    (kernel,) = romou.inspect(made.model, kernel=CONV)
    assert conv.measures["registers"] == round(kernel.registers.live)
    assert conv.measures["integer_operations_in_loops"] == kernel.operations.in_loops
    assert conv.config == dict(kernel.config)
    assert [name.split(" ")[0] for name in conv.nodes] == ["Conv", "Relu"]
    assert conv.nodes == kernel.nodes


def test_loops_of_the_target_null_are_timed_and_have_no_measures(model: Path, tmp_path: Path) -> None:
    """The processor runs them, and they are no kernels."""
    path = tmp_path / "null.json"
    result = CliRunner().invoke(main, ["bench", str(model), "--target", "null", "--save", str(path), "--repeats", "8"])
    assert result.exit_code == 0, result.output
    made = Bench.load(path)
    assert [len(times) for times in made.model_times_ms] == [REPEATS] * 8
    assert made.operators
    assert [o.measures for o in made.operators] == [{}] * len(made.operators)
    assert all(o.times_ms and min(map(min, o.times_ms)) > 0 for o in made.operators)


def test_the_same_model_is_measured_in_turns_and_passes(model: Path, baseline: Path) -> None:
    result = compare(baseline, model, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["timing"] == "in turns"
    assert found["rows"][0]["name"] == MODEL
    assert all(row["times"] is not None and row["notes"] == [] for row in found["rows"][1:])


def test_a_kernel_that_really_is_slower_fails(model: Path, baseline: Path, tmp_path: Path) -> None:
    conv = next(o for o in Bench.load(baseline).operators if o.name == CONV)
    with bench_compare.slower(conv.function, 1.0):
        made = romou.bench(model, repeats=8)
    assert next(o for o in made.operators if o.name == CONV).source_sha256 != conv.source_sha256
    result = compare(baseline, made.save(tmp_path / "slower.json"), "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["timing"] == "in turns"
    row = next(row for row in found["rows"] if row["name"] == CONV)
    assert row["times"]["verdict"] == "slower"
    assert row["times"]["shift"]["ratio"] > 1.1
    assert row["notes"] == ["another text"]
    assert {r["name"] for r in found["rows"] if r["is_regression"]} <= {CONV, MODEL}
    with serving() as server:
        result = compare(baseline, tmp_path / "slower.json", "--rpc", server.address, "--json")
    assert result.exit_code == 1, result.output
    row = next(row for row in json.loads(result.stdout)["rows"] if row["name"] == CONV)
    assert row["times"]["verdict"] == "slower", "behind a connection, too"
    assert row["times"]["shift"]["ratio"] > 1.1
    # The registered function must not stay.
    assert romou.bench(model, times=False).operators[0].source_sha256 in {
        o.source_sha256 for o in Bench.load(baseline).operators
    }


def test_without_the_compiled_model_recorded_times_are_compared(model: Path, baseline: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.json"
    shutil.copy(baseline, alone)
    found = json.loads(compare(alone, model, "--repeats", 8, "--json").stdout)
    assert found["timing"] == "recorded"
    assert found["reason"] == "the baseline's compiled model is not at hand"
    assert found["machine"] > 0
    # With the compiled model, another device does not matter.
    shutil.copytree(baseline.with_suffix(".romou"), tmp_path / "moved.romou")
    made = Bench.load(baseline)
    assert made.device is not None
    (tmp_path / "moved.json").write_text(dataclasses.replace(made, device={**made.device, "name": "Another"}).to_json())
    found = json.loads(compare(tmp_path / "moved.json", model, "--repeats", 8, "--json").stdout)
    assert (found["timing"], found["reason"]) == (
        "in turns",
        "the baseline was compiled within the limits of 'Another'",
    )
    # On a device of another name, only static measures are compared.
    made = Bench.load(alone)
    assert made.device is not None
    dataclasses.replace(made, device={**made.device, "name": "Another"}).save(alone)
    result = compare(alone, model)
    assert result.exit_code == 0, result.output
    assert "Times were NOT compared: the baseline was measured on 'Another'" in " ".join(result.stdout.split())


def test_configs_come_from_records_and_then_from_the_baseline(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = romou.bench(model, times=False)
    conv = next(o for o in plain.operators if o.name == CONV)
    other = {**conv.config, "tile_w": 2 if conv.config["tile_w"] != 2 else 1}
    # Faster, but a choice that only another target has.
    elsewhere = {**other, "multiply_add": "tf32", "steps": 2}
    with RecordStore(tmp_path / "records") as store:
        store.append(
            Record(task_key=conv.key, task_name=CONV, config=elsewhere, device={}, outcome="ok", times_s=(0.5,))
        )
        store.append(Record(task_key=conv.key, task_name=CONV, config=other, device={}, outcome="ok", times_s=(1.0,)))
    tuned = romou.bench(model, times=False, work_dir=tmp_path / "records")
    assert next(o for o in tuned.operators if o.name == CONV).config == other
    assert "1 records in" in caplog.text
    assert "made for other knobs than this version and target have" in caplog.text
    found = romou.compare(tuned, model, times=False)
    assert all(row.notes == () for row in found.rows), "built again as the baseline was"
    found = romou.compare(plain, tuned, times=False)
    assert next(row for row in found.rows if row.name == CONV).notes == (
        "another config (tile_w): measures not compared",
    )


def test_measures_need_no_device(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "measures.json"
    commands = [
        ["bench", model, "--save", path, "--target", "opencl -device=adreno640", "--no-times"],
        ["compare", path, model, "--only", "measures"],
        ["compare", path, model],
    ]
    # One process that sees no device.
    code = "import json, sys\nfrom click.testing import CliRunner\nfrom romou.cli import main\n"
    code += (
        "for words in json.loads(sys.argv[1]): r = CliRunner().invoke(main, words); print(json.dumps([r.exit_code,"
        " r.output]))"
    )
    env = {**os.environ, "OCL_ICD_VENDORS": str(tmp_path), "ROMOU_OPENCL_LIBRARY": "libOpenCL.so.1"}
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = forked.run("-c", code, words, env=env)
    assert done.returncode == 0, done.stderr
    (benched, output), (compared, said), (timed, _) = map(json.loads, done.stdout.splitlines())
    assert benched == 0, output
    assert not path.with_suffix(".romou").exists()
    assert compared == 0, said
    assert "Times were NOT compared: times were not asked for." in said
    assert timed == 3


def test_a_function_that_is_not_there(baseline: Path) -> None:
    with pytest.raises(UsageError, match="the model has no function 'none'"):
        romou.load(baseline.with_suffix(".romou")).operator_timer("none", (), ())
