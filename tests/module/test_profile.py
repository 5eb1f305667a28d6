"""The profile of a run: every call with its ONNX nodes, times, a trace, and the model unchanged after it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.cli import main
from romou.compiler.frontend.host_table import UNSERVED
from romou.compiler.frontend.reference import run_onnxruntime
from romou.runtime.module.profile import nodes_text
from support.models.small_networks import NetworkBuilder


def net() -> onnx.ModelProto:
    """Return two equal convolutions around a host node, so that their kernel is called twice."""
    g = NetworkBuilder({"image": (1, 8, 12, 12)})
    x = g.add("Relu", g.conv("image", 8, 8, (1, 1)))
    x = g.add("Relu", g.conv(g.add("Selu", x), 8, 8, (1, 1)))
    return g.model(g.add("GlobalAveragePool", x))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(UNSERVED, "Selu", (lambda node: True, "for a test"))
        return romou.compile(net(), target="opencl", verify=False).save(tmp_path_factory.mktemp("m") / "m.romou")


def test_each_call_of_the_run_is_timed_and_has_its_nodes(saved: Path) -> None:
    model = romou.load(saved)
    assert {row.default_ms for row in model.summary().rows} == {None}, "compiling measures nothing"
    profile = model.profile(repeat=3)
    proto = net()
    names = [(node.op_type, node.output[0]) for node in proto.graph.node]
    computed = [tuple(text.rstrip(")").split(" (")) for call in profile.calls for text in call.nodes]
    assert set(computed) == set(names)
    kernels = [call for call in profile.calls if call.nodes and call.nodes[0].startswith("Conv (")]
    convolutions = [call for call in kernels if call.layer.startswith("conv2d_")]
    assert len({call.layer for call in convolutions}) == 1
    assert [call.nodes[0] for call in convolutions] == [f"Conv ({name})" for op, name in names if op == "Conv"]
    assert [call.title for call in profile.calls if call.place == "host"] == ["Selu (t2)"]
    assert all(len(call.times_ms) == 3 for call in profile.calls if call.place == "device")
    assert all(0 < call.ms < 1e4 for call in profile.calls)
    assert profile.whole_ms == pytest.approx(sum(call.ms for call in profile.calls))


def test_rows_of_a_summary_name_their_nodes(saved: Path) -> None:
    summary = romou.load(saved).summary()
    (row,) = [row for row in summary.rows if row.name.startswith("conv2d_")]
    assert row.calls == 2
    assert [name for name in row.nodes if name.startswith("Conv")] == ["Conv (t0)", "Conv (t3)"]
    assert type(summary).from_dict(summary.to_dict()) == summary


def test_a_model_that_cannot_be_pickled_prints_nothing(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """TVM printed a line for each scope before it failed."""
    with pytest.raises((AttributeError, TypeError)):
        pickle.dumps(romou.load(saved))
    assert capfd.readouterr().err == ""


def test_a_run_after_a_profile_is_right(saved: Path) -> None:
    model = romou.load(saved)
    inputs = {"image": np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype("float32")}
    right = run_onnxruntime(net(), inputs)
    assert right is not None
    model.profile(inputs, repeat=1)
    np.testing.assert_allclose(model.run(inputs)[0], right[0], rtol=1e-4, atol=1e-5)


def test_the_command_measures_writes_a_trace_and_json(saved: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = CliRunner().invoke(main, ["run", str(saved), "--trace", str(trace), "--repeat", "2", "--json"])
    assert done.exit_code == 0, done.output
    profile = json.loads(done.stdout)["profile"]
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in events] == [call["title"] for call in profile["calls"]]
    assert [event["dur"] for event in events] == pytest.approx([1e3 * call["ms"] for call in profile["calls"]])
    ends = [event["ts"] + event["dur"] for event in events]
    assert [event["ts"] for event in events] == pytest.approx([0.0, *ends[:-1]])
    text = CliRunner().invoke(main, ["run", str(saved), "--profile", "--repeat", "1"]).stdout
    assert "launched: " not in text
    assert "launched: " in CliRunner().invoke(main, ["run", str(saved), "-v", "--repeat", "1"]).stdout
    assert "Conv (t0) +1" in text
    assert "conv2d_1x8x12x12_8_1x1_s1" in text
    assert "The time of a run is divided among its calls" in text
    (shown,) = re.findall(r"time: (\d+\.\d+) ms", text)
    (footer,) = [line for line in text.splitlines() if "all calls" in line]
    assert shown in footer


def test_nodes_in_short_are_the_first_and_the_number_of_others() -> None:
    assert nodes_text(("Conv (/backbone/pw2/Conv)", "Relu (/r)")) == "Conv (/backbone/pw2/Conv) +1"
    assert nodes_text(("Conv (/pw2)",)) == "Conv (/pw2)"
    assert nodes_text(()) == ""
