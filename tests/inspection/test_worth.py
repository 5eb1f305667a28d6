"""Is the GPU worth it: a model's estimate beside phones' CPUs."""

from __future__ import annotations

import dataclasses

import onnx
import pytest

import romou
from romou.tools.inspection.check_report import on_cpus
from romou.tools.inspection.worth import DOUBT, PHONE_CPUS, OnCpu, verdict
from romou.tools.report.check_page import check_lines
from support.models.small_networks import NetworkBuilder


def one_convolution() -> onnx.ModelProto:
    g = NetworkBuilder({"x": (1, 64, 56, 56)})
    return g.model(g.conv("x", 64, 64, kernel=(3, 3), pads=[1, 1, 1, 1]))


def test_a_verdict_needs_estimates_that_differ_by_more_than_their_doubt() -> None:
    assert [verdict(1.0, cpu_ms) for cpu_ms in (0.99 / DOUBT, 1.01 / DOUBT, 1.0, 0.99 * DOUBT, 1.01 * DOUBT)] == [
        "slower",
        "unknown",
        "unknown",
        "unknown",
        "faster",
    ]


def test_rates_are_of_arithmetic_and_of_bytes() -> None:
    cpu = dataclasses.replace(PHONE_CPUS[0], gflops=10.0, gbps=2.0)
    assert cpu.ms(flops=1e9, fp32_bytes=1e6) == pytest.approx(100 + 0.5)


@pytest.mark.parametrize(("precision", "element_bytes"), [("float32", 4), ("float16", 2)])
def test_check_has_a_model_on_phones_cpus_in_either_precision(precision: str, element_bytes: int) -> None:
    report = romou.check(one_convolution(), device="adreno640", precision=precision)
    operations = sum(layer.calls * layer.flops for layer in report.layers)
    moved = sum(layer.calls * layer.bytes for layer in report.layers) * 4 / element_bytes
    assert report.ms is not None
    for found, cpu in zip(report.on_cpus, PHONE_CPUS, strict=True):
        assert (found.name, found.ms) == (cpu.name, pytest.approx(cpu.ms(operations, moved)))
        assert found.gpu_is == verdict(report.ms, found.ms)
        assert {*found.layers} == {layer.name for layer in report.layers}
    old, slow, new = report.on_cpus
    # By what others published: 2.3e8 operations take 5 ms on four old cores, and 1 ms on four of 2018 in fp16.
    assert new.ms < old.ms < slow.ms
    lines = next(lines for heading, lines in check_lines(report) if heading.startswith("Beside a phone's CPU"))
    assert [line.split(":")[0] for line in lines] == [cpu.name for cpu in PHONE_CPUS]


def test_words_say_what_is_faster_and_how_many_layers_stay_behind() -> None:
    cpu = OnCpu("a CPU", 30.0, "faster", {"one": "faster", "two": "slower"})
    assert (
        cpu.words(10.0) == "a CPU: 30 ms, the GPU is faster, 3.0x as fast; by themselves 1 of 2 layers are faster on it"
    )
    near = dataclasses.replace(cpu, ms=11.0, gpu_is="unknown", layers={"one": "unknown"})
    assert near.words(10.0) == "a CPU: 11 ms, too near to say which is faster"


def test_what_has_no_estimate_of_its_own_is_not_compared() -> None:
    """No phone has an H200, and the estimate of Mali-G715 has facts of G76."""
    known, unknown = romou.Target("opencl -device=adreno640"), romou.Target("opencl -device=mali_g715")
    report = romou.check(one_convolution(), target=known)
    assert len(on_cpus(report.layers, known, 4)) == len(PHONE_CPUS)
    assert (
        on_cpus(report.layers, unknown, 4) == on_cpus(report.layers, romou.Target("cuda -device=nvidia_h200"), 4) == ()
    )
    without = [dataclasses.replace(layer, ms=None) for layer in report.layers]
    assert on_cpus(without, known, 4) == ()
