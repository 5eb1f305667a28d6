"""romou.check: nodes on the host with reasons, estimates, memory, quirks and fp16, without a kernel being built."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import romou
from romou.base.errors import UsageError
from romou.cli import main
from romou.compiler.assembly import build
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.costs.estimate import call_parts, estimate_parts, estimate_seconds
from romou.compiler.single_operator import conv, task_of
from romou.devices.hardware import load_device
from romou.devices.hardware.quirks import known_quirks
from romou.runtime.module.profile import nodes_text
from romou.tools.inspection.check_report import CheckReport, quirk_lines
from romou.tools.report.check_page import check_lines
from support.models.small_networks import NetworkBuilder


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "codegen_build", None)
    monkeypatch.delenv("ROMOU_NO_FALLBACK", raising=False)


def net() -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 16, 14, 14)})
    x = g.add("Relu", g.conv("image", 16, 32, (3, 3), pads=[1, 1, 1, 1]))
    return g.model(g.conv(x, 32, 32, (3, 3), groups=32))


def with_a_count_that_depends_on_data() -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 16, 14, 14)})
    y, z = g.conv("image", 16, 16, (1, 1)), g.add("NonZero", "image")
    proto = g.model(y)
    proto.graph.output.append(helper.make_tensor_value_info(z, TensorProto.INT64, None))
    return proto


@pytest.fixture(scope="module")
def report() -> CheckReport:
    return romou.check(net(), device="Redmi K70")


def test_times_are_the_estimate_of_default_kernels(report: CheckReport) -> None:
    assert report.device.startswith("Qualcomm Adreno 740")
    target = romou.Target("opencl -device=adreno740")
    tasks = Compilation.of(import_model(net(), None), target).lowered().tasks
    for task, layer in zip(tasks, report.layers, strict=True):
        usage = task.usage_of(task.default_config(target), target)
        parts = call_parts(usage, target.spec, task.moved_bytes)
        assert parts is not None
        assert parts["kernel"] == pytest.approx(1.1 * float(estimate_seconds(usage, target.spec)))
        assert parts["launch"] == 35e-6
        # Each operand once, at a third of the second-level cache's 112 GB/s.
        assert parts["memory"] == pytest.approx(task.moved_bytes / 0.33 / 112e9, rel=0.5)
        assert layer.ms == pytest.approx(1e3 * float(sum(parts.values())))
        assert layer.limit == "launch"
    assert report.ms == pytest.approx(sum(layer.ms or 0 for layer in report.layers))
    convolution, depthwise = (
        next(layer for layer in report.layers if layer.name.startswith(kind)) for kind in ("conv2d", "depthwise")
    )
    assert convolution.ms is not None
    assert convolution.between_ms == pytest.approx((0.79 * convolution.ms, 1.12 * convolution.ms))
    assert depthwise.between_ms is not None
    assert report.between_ms is not None
    assert report.between_ms[0] < report.ms < report.between_ms[1]
    shown = next(lines for heading, lines in check_lines(report) if heading == "Time")[0]
    middle, low, high = map(float, re.findall(r"(\d+\.\d+) (?:ms in all|and|ms by)", shown))
    assert low <= middle <= high, shown
    # 2 x multiply-adds over the time, against 6 cores of 256 ALUs at 680 MHz.
    peak = 2 * 6 * 256 * 680e6
    assert convolution.flops == 2 * 14 * 14 * 32 * 16 * 9
    assert convolution.peak_share == pytest.approx(convolution.flops / (convolution.ms * 1e-3) / peak)
    assert convolution.nodes[0].startswith("Conv (")
    assert f"{convolution.peak_share:.0%} of peak" in convolution.words


def test_the_cpu_is_timed_beside_the_estimate(report: CheckReport) -> None:
    """Without a time by onnxruntime, the line is left out."""
    assert report.cpu_ms is not None
    assert 0 < report.cpu_ms < 1e4
    (time,) = (lines for heading, lines in check_lines(report) if heading == "Time")
    assert re.fullmatch(r"onnxruntime takes \S+ ms on this machine's CPU, which is not the device's\.", time[1])
    (time,) = (lines for heading, lines in check_lines(dataclasses.replace(report, cpu_ms=None)) if heading == "Time")
    assert "onnxruntime" not in time[1]


def test_what_it_says_of_memory_fp16_and_drivers(report: CheckReport) -> None:
    assert report.largest is not None
    assert report.largest.bytes == 1 * 32 * 14 * 14 * 4
    assert report.largest_allowed == load_device("adreno740").max_buffer_bytes
    assert report.precision[0].startswith("fp16 is exact enough: relative L2 error ")
    # Faults of the Adreno 830, the 660 and of Windows' drivers are not this device's.
    assert [line.split(":")[0] for line in report.quirks] == [
        "the compiler makes slower code of the same source when programs are compiled in another order; so a model's"
        " programs are compiled in a fixed order, by one thread"
    ]
    elsewhere = quirk_lines(romou.Target("opencl -device=adreno660"), None)
    assert any(line.startswith("with compilers before E031.38.11: the compiler crashes") for line in elsewhere)
    assert not any("\\" in quirk.drivers for quirk in known_quirks())
    assert all(
        quirk.drivers for quirk in known_quirks() if {"driver", "compiler_from", "compiler_before"} & quirk.when.keys()
    )
    assert not any("PoCL" in line or "Mali" in line for line in report.quirks)
    assert report.problems == ()
    assert (report.host, report.host_share, report.is_off_device) == ((), 0.0, False)


def test_fp16_that_overflows_is_advised_against() -> None:
    g = NetworkBuilder({"x": (1, 8)})
    report = romou.check(g.model(g.add("Exp", g.add("Mul", "x", g.weight(1, 8, scale=40.0)))), device="adreno740")
    assert report.precision[0].startswith("fp16 overflows in 1 nodes (Exp (")
    assert "--precision mixed" in report.precision[0]


def test_nodes_on_the_host_have_a_reason_and_advice() -> None:
    report = romou.check(with_a_count_that_depends_on_data(), device="mali_g76")
    (node,) = report.host
    assert node.name.startswith("NonZero (")
    assert node.reason == "a shape that it reads or writes depends on data"
    assert "fixed shapes" in node.hint
    assert any("No times were recorded on such a GPU" in remark for remark in report.remarks)


def test_limits_are_problems() -> None:
    report = romou.check(net(), target="opencl -device=adreno740 -max_buffer_bytes=20000", max_ms=1e-6, max_memory=9)
    assert [problem.split(",")[0].split(";")[0] for problem in report.problems] == [
        "a tensor of fused_conv2d_add_relu",
        "the model takes 0.13 MiB of the device's memory",
        f"the estimate is {report.ms:.3f} ms",
    ]
    with pytest.raises(UsageError, match="max_ms=0: must be a number, above 0"):
        romou.check(net(), max_ms=0)


def test_a_cpu_is_not_estimated() -> None:
    report = romou.check(net(), device="host")
    assert report.ms is None
    assert "not estimated" in report.remarks[0]


def invoke(model: onnx.ModelProto, path: Path, *arguments: str) -> Result:
    onnx.save(model, path / "model.onnx")
    return CliRunner().invoke(main, ["check", str(path / "model.onnx"), *arguments])


def test_the_command_prints_json_and_a_page_and_has_exit_codes(tmp_path: Path) -> None:
    page = tmp_path / "check.html"
    done = invoke(net(), tmp_path, "--device", "adreno740", "--json", "--html", str(page))
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = json.loads(done.stdout)
    assert data["ms"] == pytest.approx(sum(layer["ms"] for layer in data["layers"]))
    text = page.read_text()
    assert "<h2>Memory</h2>" in text
    assert "color-scheme: light dark" in text
    assert all(f"<td>{layer['name']}</td></tr>" in text for layer in data["layers"])
    assert f'<th scope="row">{nodes_text(data["layers"][0]["nodes"])}</th>' in text
    assert invoke(net(), tmp_path, "--device", "adreno740", "--max-ms", "0.0001").exit_code == 1
    g = NetworkBuilder({"image": (1, 4, 4)})
    off_device = g.model(g.add("Relu", "image"))
    off_device.graph.output.append(helper.make_tensor_value_info(_non_zero(off_device), TensorProto.INT64, None))
    assert invoke(off_device, tmp_path, "--device", "adreno740").exit_code == 3
    assert invoke(off_device, tmp_path, "--device", "adreno740", "--allow-host").exit_code == 0


def test_node_data_adds_up_to_the_estimate(tmp_path: Path) -> None:
    """Keys are tensors of the ONNX file. A node on the host has a colour."""
    proto = with_a_count_that_depends_on_data()
    path = tmp_path / "nodes.json"
    done = invoke(proto, tmp_path, "--device", "adreno740", "--json", "--node-data", str(path), "--allow-host")
    assert done.exit_code == 0, done.output
    data = json.loads(path.read_text())
    results = data["results"]
    assert set(results) == {output for node in proto.graph.node for output in node.output}
    assert sum(entry["value"] for entry in results.values()) == pytest.approx(json.loads(done.stdout)["ms"])
    (counted,) = (node.output[0] for node in proto.graph.node if node.op_type == "NonZero")
    assert [name for name, entry in results.items() if "bgColor" in entry] == [counted]
    assert [stop["stop"] for stop in data["gradient"]] == [0, 1]


def _non_zero(proto: onnx.ModelProto) -> str:
    proto.graph.node.append(helper.make_node("NonZero", ["image"], ["places"]))
    return "places"


def test_a_call_has_launches_and_each_byte_that_it_reads_once() -> None:
    target = romou.Target("opencl -device=adreno640")
    task = task_of(conv(64, (28, 28), 64, (3, 3), padding=(1, 1, 1, 1)))
    launches, kernels = {}, {}
    for config in task.starts(target):
        usage = task.usage_of(config, target)
        parts, much = (call_parts(usage, target.spec, size) for size in (task.moved_bytes, 1 << 40))
        assert parts is not None
        assert much is not None
        launches[config["algorithm"][:4]] = round(float(1e6 * parts["launch"]))
        assert float(parts["memory"]) == pytest.approx(task.moved_bytes / 28e9)
        # A kernel does not move more of an operand than it reads.
        assert float(parts["memory"]) < float(much["memory"]) < 1
        kernels[config] = float(parts["kernel"]) / float(estimate_seconds(usage, target.spec))
    assert launches == {"dire": 35, "wino": 105}
    assert set(kernels.values()) == {2.0}
    assert call_parts(usage, load_device("host"), 1) is None


def test_data_that_no_other_group_shares_come_from_memory() -> None:
    """Depthwise windows, if their bytes do not fit into the second-level cache."""
    limit = {}
    for name, size in (("adreno640", 56), ("adreno640", 7), ("nvidia_h200", 56)):
        target = romou.Target(f"opencl -device={name}")
        for groups in (64, 1):
            task = task_of(conv(64, (size, size), 64, (3, 3), padding=(1, 1, 1, 1), groups=groups))
            usage = task.usage_of(task.direct_config(target), target)
            parts, shared = (
                estimate_parts(each, target.spec) for each in (usage, dataclasses.replace(usage, is_data_shared=True))
            )
            assert parts is not None
            assert shared is not None
            limit[name, size, groups] = float(parts["l2"] / shared["l2"])
    # 96 GB/s out of the cache of 128 KiB, 28 GB/s out of memory. The H200's cache holds all.
    assert limit.pop(("adreno640", 56, 64)) == pytest.approx(96 / 28)
    assert set(limit.values()) == {1.0}
